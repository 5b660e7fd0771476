"""The tools with which an agent queries its history. Each is a question of explorer/queries, shared with the commands.

1. A WHEN is first resolved to a cut, and the question is asked at that cut. The answer repeats its arguments with the
   cut, so the same answer can be retrieved later, whatever has been recorded since.
2. An answer has a bounded size (bounded.py); a cursor continues what was shortened.
3. A model reads all tool definitions at each start, so together they stay under 3,000 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from refold.agents.effects.listing import FATES
from refold.agents.log import AgentLog
from refold.agents.recordings.find import OUTCOMES
from refold.avro.errors import InputError, ValidationError
from refold.avro.times import parse_time
from refold.explorer.queries.compare import CompareQuery
from refold.explorer.queries.effects import EffectsQuery
from refold.explorer.queries.entity import RECORDED, DiffQuery, StateQuery, WhyQuery, field_of
from refold.explorer.queries.find import FindQuery
from refold.explorer.queries.operate import VerifyQuery
from refold.explorer.queries.query import CLOCK, Parameter, Query
from refold.explorer.queries.run import KnewQuery, RunQuery, StepsQuery
from refold.explorer.queries.runs import RunsQuery

CURSOR = "cursor"
RUNS_LISTED = 50
TEXT_CHARS_MAX = 8_000
"""The maximum length of an argument. The cut of a log with 500 partitions is shorter."""

_AT = Parameter("at", about="WHEN; default now")
_ENTITY = Parameter("entity", about="TYPE/ID", is_required=True)
_RUN = Parameter("run", about="Id of a run, or its beginning", is_required=True)
_CURSOR = Parameter(CURSOR, about="From `more`; give it with the arguments in `again`")

Given = Mapping[str, Any]


class HistoryTool(NamedTuple):
    """A tool.

    Attributes:
        pin: Returns the arguments with each WHEN resolved to a cut.
        hint: What to do if nothing is found.
    """

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    make: Callable[[Given], Query]
    pin: Callable[[AgentLog, Given], dict[str, Any]]
    hint: str
    is_slow: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of its arguments."""
        every = (*self.parameters, _CURSOR)
        required = [each.name for each in self.parameters if each.is_required]
        return {
            "type": "object",
            "properties": {each.name: _parameter_schema(each) for each in every},
            **({"required": required} if required else {}),
            "additionalProperties": False,
        }

    def checked(self, arguments: Given) -> dict[str, Any]:
        """Return the arguments without those that are null.

        Raises:
            InputError: An argument is unknown, missing or of the wrong type. The message lists the known ones.
        """
        known = {each.name: each for each in (*self.parameters, _CURSOR)}
        found = {name: value for name, value in arguments.items() if value is not None}
        for name, value in found.items():
            if name not in known:
                raise InputError(f"{name!r:.60}: {self.name} takes {', '.join(known)}")
            _check(known[name], value)
        for each in self.parameters:
            if each.is_required and not found.get(each.name):
                raise InputError(f"{self.name} needs {each.name}: {each.about}")
        return found


def _parameter_schema(each: Parameter) -> dict[str, Any]:
    about = {"description": each.about} if each.about else {}
    return {"type": each.kind, **about, **({"enum": list(each.choices)} if each.choices else {})}


def _check(parameter: Parameter, value: Any) -> None:
    kinds: dict[str, type] = {"string": str, "boolean": bool, "integer": int}
    is_right = isinstance(value, kinds[parameter.kind]) and not (
        parameter.kind == "integer" and isinstance(value, bool)
    )
    if not is_right or (parameter.kind == "integer" and not 0 <= value < 10**9):
        kind = "a whole number of 0 or more" if parameter.kind == "integer" else f"a {parameter.kind}"
        raise InputError(f"{parameter.name}: {kind}, given {value!r:.60}")
    if isinstance(value, str) and len(value) > TEXT_CHARS_MAX:
        raise InputError(f"{parameter.name}: at most {TEXT_CHARS_MAX:,} characters, given {len(value):,}")
    if parameter.choices and value not in parameter.choices:
        raise InputError(f"{parameter.name}: one of {', '.join(parameter.choices)}, given {value!r:.60}")


def _at_a_point(log: AgentLog, arguments: Given) -> dict[str, Any]:
    return {**arguments, "at": str(log.point(arguments.get("at")).cut)}


def _at_a_point_of_entity(log: AgentLog, arguments: Given) -> dict[str, Any]:
    return {
        **arguments,
        "at": str(log.point(arguments.get("at"), arguments["entity"], arguments.get("clock", RECORDED)).cut),
    }


def _at_a_point_of_value(log: AgentLog, arguments: Given) -> dict[str, Any]:
    point, _, _ = field_of(log, arguments["value"], arguments.get("at"), arguments.get("clock", RECORDED))
    return {**arguments, "at": str(point.cut)}


def _at_two_points(log: AgentLog, arguments: Given) -> dict[str, Any]:
    cuts = {
        side: str(log.point(arguments[side], arguments.get("entity"), arguments.get("clock", RECORDED)).cut)
        for side in "ab"
    }
    return {**arguments, **cuts}


def _at_a_point_of_agent(log: AgentLog, arguments: Given) -> dict[str, Any]:
    """Resolve a point. A time is kept as it is, because it refers to the agent's own clock (agents/knew.py)."""
    try:
        parse_time(arguments.get("at", ""), "at")
    except ValidationError:
        return _at_a_point(log, arguments)
    return dict(arguments)


def _unchanged(log: AgentLog, arguments: Given) -> dict[str, Any]:
    return dict(arguments)


def _show(arguments: Given) -> Query:
    return StepsQuery(**arguments) if "step" in arguments else RunQuery(**arguments)


TOOLS: Mapping[str, HistoryTool] = {each.name: each for each in (
    HistoryTool(
        "find", "Entities whose id or values hold a text. Without text: all. Leaves out what runs are recorded as.",
        (Parameter("text"), Parameter("type", about="Only this type"), _AT),
        lambda arguments: FindQuery(**arguments), _at_a_point, "runs with text searches what was said in runs",
        is_slow=True,
    ),
    HistoryTool(
        "state", "An entity as it was: fields, each with the observation and source that set it, links, conflicts.",
        (_ENTITY, _AT, CLOCK), lambda arguments: StateQuery(**arguments), _at_a_point_of_entity,
        "find lists the entities there are",
    ),
    HistoryTool(
        "knew", "What an agent had read and been answered by a moment, next to what the log held then.",
        (Parameter("agent", about="Its name", is_required=True),
         Parameter("at", about="WHEN; a time is one on the agent's clock; default now"),
         Parameter("run", about="Only in this run"), Parameter("every", "boolean", "Not only the latest")),
        lambda arguments: KnewQuery(**arguments), _at_a_point_of_agent, "runs lists agents with their runs",
    ),
    HistoryTool(
        "why", "The chain of observations that a value rests on, nearest first: who, when, from what causes.",
        (Parameter("value", about="TYPE/ID.FIELD[.KEY]", is_required=True), _AT, CLOCK,
         Parameter("depth", "integer", "At most so many causes back")),
        lambda arguments: WhyQuery(**arguments), _at_a_point_of_value, "state shows an entity's fields",
    ),
    HistoryTool(
        "diff", "What changed from one point to another, of one entity or of all: old, new, by whom.",
        (Parameter("a", about="WHEN", is_required=True), Parameter("b", about="WHEN", is_required=True),
         Parameter("entity", about="TYPE/ID"), CLOCK),
        lambda arguments: DiffQuery(**arguments), _at_two_points, "now and run:ID#STEP are points",
    ),
    HistoryTool(
        "runs", f"Recorded runs, newest first, at most limit ({RUNS_LISTED}). All that is given must hold.",
        (Parameter("text", about="In input, output, messages or calls"), Parameter("agent"),
         Parameter("outcome", choices=OUTCOMES), Parameter("tool", about="Called this tool"),
         Parameter("error", about="In an error"), Parameter("since", about="RFC 3339"),
         Parameter("until", about="RFC 3339"), Parameter("user"), Parameter("tag"),
         Parameter("parent", about="Forks of this run"), Parameter("flagged", "boolean"),
         Parameter("limit", "integer"), _AT),
        lambda arguments: RunsQuery(**{"limit": RUNS_LISTED, **arguments}), _at_a_point, "find searches entities",
    ),
    HistoryTool(
        "show", "A run with its steps: decisions, calls, answers, failures. With step: only that one, in more detail.",
        (_RUN, Parameter("step", "integer", "From 1"), _AT), _show, _at_a_point, "runs lists the runs there are",
    ),
    HistoryTool(
        "compare", "The first point where two runs differ, and the observations that led to it.",
        (Parameter("a", about="A run", is_required=True), Parameter("b", about="A run", is_required=True), _AT,
         Parameter("exact", "boolean", "Clock, randomness and fresh ids count too"),
         Parameter("depth", "integer", "Causes back")),
        lambda arguments: CompareQuery(**arguments), _at_a_point, "runs lists the runs there are",
    ),
    HistoryTool(
        "effects", "What write tools did or may have done, and whether it is known.",
        (Parameter("status", choices=FATES), Parameter("run", about="That this run, by its whole id, carried out"),
         Parameter("tool"), _AT),
        lambda arguments: EffectsQuery(**arguments), _at_a_point, "runs lists the runs there are",
    ),
    HistoryTool(
        "verify", "Whether everything stored matches a full replay of the log now. Reads all of it: slow.",
        (), lambda arguments: VerifyQuery(), _unchanged, "refold doctor says what to fix", is_slow=True,
    ),
)}  # fmt: skip
