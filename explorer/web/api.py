"""The HTTP API under the pages: one endpoint for each reading command. `/api/openapi.json` describes it.

`GET /api/NAME` returns what `refold NAME --json` prints. Options of the command are query parameters, and its
positional argument is part of the path: `/api/state/TYPE/ID`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import refold
from refold.avro.errors import InputError
from refold.explorer.queries.agents import AgentsQuery
from refold.explorer.queries.compare import CompareQuery
from refold.explorer.queries.deadletters import DeadLettersQuery
from refold.explorer.queries.effects import EffectsQuery
from refold.explorer.queries.entity import DiffQuery, HistoryQuery, StateQuery, WhyQuery
from refold.explorer.queries.find import FindQuery
from refold.explorer.queries.healings import HealingsQuery
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.operate import (
    ApprovalsQuery,
    DoctorQuery,
    MarkersQuery,
    RebuildQuery,
    RetentionQuery,
    SnapshotsQuery,
    VerifyQuery,
)
from refold.explorer.queries.query import AT, CLOCK, Parameter, Query
from refold.explorer.queries.run import KnewQuery, RunQuery, StepsQuery
from refold.explorer.queries.runs import RunsQuery
from refold.explorer.queries.tail import TailQuery

OPENAPI = "openapi.json"


class Endpoint(NamedTuple):
    """One endpoint.

    Attributes:
        make: Creates the question.
        argument: The name of the part of the path after NAME; empty for none.
    """

    about: str
    make: Callable[[LogTarget, str, Mapping[str, Any]], Query]
    argument: str = ""
    parameters: tuple[Parameter, ...] = ()


_TEXTS = ("since", "until", "text", "tool", "error", "outcome", "agent", "user", "tag", "parent", "model")

ENDPOINTS: Mapping[str, Endpoint] = {
    "runs": Endpoint(
        "The runs of agents, the newest first.", lambda _, __, arguments: RunsQuery(**arguments),
        parameters=(*(Parameter(name) for name in _TEXTS), Parameter("flagged", "boolean"),
                    Parameter("limit", "integer"),
                    Parameter("search_steps", "integer", "How many steps a search in steps reads at most."), AT),
    ),
    "run": Endpoint("One run, with its steps.", lambda _, run, arguments: RunQuery(run, **arguments), "run", (AT,)),
    "steps": Endpoint(
        "The steps of a run, or one of them.", lambda _, run, arguments: StepsQuery(run, **arguments), "run",
        (AT, Parameter("step", "integer")),
    ),
    "knew": Endpoint(
        "What an agent knew by a moment.", lambda _, agent, arguments: KnewQuery(agent, **arguments), "agent",
        (
            AT, Parameter("run"), Parameter("step", "integer", "Only in this step of the run."),
            Parameter("every", "boolean", "Every read and answer, not the latest."),
        ),
    ),
    "state": Endpoint(
        "An entity as it was.", lambda _, entity, arguments: StateQuery(entity, **arguments), "entity", (AT, CLOCK)
    ),
    "find": Endpoint(
        "The entities whose id or values hold a text.", lambda _, __, arguments: FindQuery(**arguments),
        parameters=(Parameter("text"), Parameter("type"), AT),
    ),
    "history": Endpoint(
        "What changed in an entity.", lambda _, entity, arguments: HistoryQuery(entity, **arguments), "entity",
        (Parameter("since"), Parameter("until"), CLOCK),
    ),
    "why": Endpoint(
        "The observations a value rests on: TYPE/ID.FIELD[.KEY].",
        lambda _, value, arguments: WhyQuery(value, **arguments),
        "value", (AT, CLOCK, Parameter("depth", "integer", "At most so many causes back.")),
    ),
    "diff": Endpoint(
        "What leads from one point to another.", lambda _, __, arguments: DiffQuery(**arguments),
        parameters=(Parameter("a", is_required=True), Parameter("b", is_required=True), Parameter("entity"), CLOCK),
    ),
    "compare": Endpoint(
        "The first point where two runs part, and why.", lambda _, __, arguments: CompareQuery(**arguments),
        parameters=(Parameter("a", is_required=True), Parameter("b", is_required=True), AT,
                    Parameter("exact", "boolean"), Parameter("depth", "integer")),
    ),
    "markers": Endpoint("The points that have a name.", lambda _, __, ___: MarkersQuery()),
    "effects": Endpoint(
        "What write tools did, or may have done.", lambda _, __, arguments: EffectsQuery(**arguments),
        parameters=(Parameter("status"), Parameter("run"), Parameter("tool"), AT),
    ),
    "agents": Endpoint(
        "The supervised agents, and what they do.", lambda _, __, arguments: AgentsQuery(**arguments), parameters=(AT,)
    ),
    "approvals": Endpoint(
        "The calls of runs that wait for a person.",
        lambda _, __, arguments: ApprovalsQuery(arguments.get("all", False)),
        parameters=(Parameter("all", "boolean", "Also those that have an answer."),),
    ),
    "healings": Endpoint(
        "The attempts to heal runs, and how each failure fared.", lambda _, __, arguments: HealingsQuery(**arguments),
        parameters=(Parameter("run"),),
    ),
    "deadletters": Endpoint(
        "The records that are no observations.", lambda _, __, arguments: DeadLettersQuery(**arguments),
        parameters=(Parameter("limit", "integer"),),
    ),
    "snapshots": Endpoint("The sealed epochs.", lambda _, __, ___: SnapshotsQuery()),
    "retain": Endpoint(
        "The runs whose content has expired; reads every run, and removes nothing.", lambda _, __, ___: RetentionQuery()
    ),
    "tail": Endpoint(
        "The changes after a point.", lambda _, __, arguments: TailQuery(arguments["from"]),
        parameters=(Parameter("from", about="The point, as WHEN.", is_required=True),),
    ),
    "rebuild": Endpoint(
        "The number of entities, and the root; reads every entity.",
        lambda _, __, arguments: RebuildQuery(arguments.get("at"), (arguments["type"],) if "type" in arguments else ()),
        parameters=(AT, Parameter("type", about="Only entities of this type.")),
    ),
    "doctor": Endpoint("Whether the log can be used here.", lambda place, _, __: DoctorQuery(place)),
    "verify": Endpoint(
        "Whether stored state matches a full replay; reads the whole log.", lambda _, __, ___: VerifyQuery(),
    ),
}  # fmt: skip


def query_of(target: LogTarget, name: str, argument: str, query: Mapping[str, str]) -> Query:
    """Return the question for an address.

    Args:
        target: The log.
        name: The endpoint, one of ENDPOINTS.
        argument: The rest of the path.
        query: The query parameters.

    Raises:
        InputError: The endpoint does not exist, or the argument or a parameter does not fit it.
    """
    endpoint = ENDPOINTS.get(name)
    if endpoint is None:
        raise InputError(f"/api/{name:.60}: there are {', '.join(ENDPOINTS)}; /api/{OPENAPI} describes them")
    if bool(argument) != bool(endpoint.argument):
        wanted = f"/api/{name}/{endpoint.argument.upper()}" if endpoint.argument else f"/api/{name} alone"
        raise InputError(f"ask for {wanted}")
    known = {each.name: each for each in endpoint.parameters}
    arguments = {}
    for each, text in query.items():
        if each not in known:
            raise InputError(f"{each:.60}: /api/{name} has the parameters {', '.join(known) or 'none'}")
        arguments[each] = _value(known[each], text)
    for parameter in endpoint.parameters:
        if parameter.is_required and parameter.name not in arguments:
            raise InputError(f"/api/{name} needs the parameter {parameter.name}")
    return endpoint.make(target, argument, arguments)


def _value(parameter: Parameter, text: str) -> Any:
    if parameter.kind == "boolean":
        if text.lower() not in ("1", "0", "true", "false"):
            raise InputError(f"{parameter.name}: true or false, given {text!r:.40}")
        return text.lower() in ("1", "true")
    if parameter.kind == "integer":
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise InputError(f"{parameter.name}: a whole number of 0 or more, given {text!r:.40}")
        return int(text)
    if parameter.choices and text not in parameter.choices:
        raise InputError(f"{parameter.name}: one of {', '.join(parameter.choices)}, given {text!r:.40}")
    return text


def json_bytes(tree: Any) -> bytes:
    """Encode JSON in ASCII. Lone surrogates in recorded texts are thereby kept as recorded."""
    return (json.dumps(tree, separators=(",", ":")) + "\n").encode()


def openapi() -> dict[str, Any]:
    """Return the description of the API in OpenAPI 3.1."""
    error = {"description": "Why there is no answer.", "content": {"application/json": {"schema": {
        "type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}}}}  # fmt: skip
    paths = {}
    for name, endpoint in ENDPOINTS.items():
        argument = endpoint.argument
        in_path = [] if not argument else [
            {"name": argument, "in": "path", "required": True, "schema": {"type": "string"}}
        ]  # fmt: skip
        paths[f"/api/{name}" + (f"/{{{argument}}}" if argument else "")] = {"get": {
            "operationId": name, "summary": endpoint.about,
            "parameters": [*in_path, *map(_parameter_json, endpoint.parameters)],
            "responses": {
                "200": {"description": f"What `refold {' '.join(_command(name))} --json` prints.",
                        "content": {"application/json": {"schema": {}}}},
                "400": error, "404": error, "503": error,
            },
        }}  # fmt: skip
    return {"openapi": "3.1.0", "info": {"title": "refold explorer", "version": refold.__version__}, "paths": paths}


def _parameter_json(each: Parameter) -> dict[str, Any]:
    schema = {"type": each.kind, **({"enum": list(each.choices)} if each.choices else {})}
    about = {"description": each.about} if each.about else {}
    return {"name": each.name, "in": "query", "required": each.is_required, "schema": schema, **about}


def _command(name: str) -> list[str]:
    """Return the words of a command, without its options."""
    return {"run": ["run", "show"], "steps": ["run", "steps"], "compare": ["run", "compare"],
            "effects": ["effects", "list"], "agents": ["agents", "list"], "deadletters": ["deadletters", "list"],
            "healings": ["heal", "--report"], "snapshots": ["snapshot", "--list"]}.get(name, [name])  # fmt: skip
