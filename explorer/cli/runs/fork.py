"""`refold run fork`: run again from one step of a run, with something changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import click
from msgspec import UNSET

from refold.agents.journal.record import Call, RecordedRequest
from refold.agents.journal.self_replay import state_at
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import CallSite as Where
from refold.agents.recorder.answers import Departure
from refold.agents.replay.forked import ForkPolicy
from refold.agents.replay.patch import added_paths, unused_results
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log, run_argument
from refold.explorer.cli.output.screen import Screen
from refold.explorer.cli.runs.code import (
    agent_for,
    agent_option,
    confined_option,
    driven,
    guard_option,
    name_for,
    pairs,
    plain_value,
    print_end,
    redact_option,
    redactor_for,
)
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run

POLICIES: dict[str, ForkPolicy] = {"live": "live", "recorded": "recorded", "ask": "asked"}
WORLD = "live"


@click.command()
@run_argument
@click.option("--at", "at", type=click.IntRange(0), required=True, metavar="STEP",
              help="The step after which the child diverges from its parent; 0: before the first.")  # fmt: skip
@click.option("--set", "changed", multiple=True, metavar="PATH=VALUE",
              help="Change the state there: order.items[0].price=12; may be repeated.")  # fmt: skip
@click.option("--drop", multiple=True, metavar="PATH", help="Remove this from the state; may be repeated.")
@click.option("--input", "given", metavar="JSON", help="Use this input instead of the parent's.")
@click.option("--tool-result", "--result", "results", multiple=True, metavar="STEP/NAME=VALUE",
              help="Answer that call with this: 4/search=[]; may be repeated.")  # fmt: skip
@click.option("--argument", "arguments", multiple=True, metavar="NAME.KEY=VALUE",
              help="Call it with this argument: chat.temperature=0; model.KEY is for every model.")  # fmt: skip
@agent_option
@redact_option
@click.option("--policy", type=click.Choice(list(POLICIES)),
              help="After the step: call the world, use only the recording, or prompt you [live].")  # fmt: skip
@click.option("--allow", multiple=True, metavar="TOOL", help="Let this write tool run; may be repeated.")
@confined_option
@guard_option
@click.option("--id", "child", metavar="ID", help="The child's id [a fresh one].")
@as_json
@on_log
def fork(
    target: LogTarget, run_id: str, at: int, changed: tuple[str, ...], drop: tuple[str, ...], given: str | None,
    results: tuple[str, ...], arguments: tuple[str, ...], entry: str | None, redact: str | None, policy: str | None,
    allow: tuple[str, ...], confined: bool, guard: str | None, child: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run again from one of its steps, with something changed.

    The child is a separate run, which names its parent, the step and the changes. Up to that step everything is
    answered from the recording, and the parent does not change. After it, models and read tools are called as --policy
    says. A write tool never runs unless --allow names it.

    With --confined the kernel confines the code, as in `refold run replay`: nothing outside is called, --policy is
    recorded, and no tool can be allowed.

    A VALUE that is valid JSON is parsed, so 50 is a number and "50" a text; any other VALUE is text.

    Exits with 1 if the child failed.

    \b
    Examples
      refold run fork 8f2c --at 3 --set cents=1999 --allow payments.refund
      refold run fork 8f2c --at 3 --tool-result '4/search={"hits": []}' --policy recorded
      refold run fork 8f2c --at 3 --set cents=1999 --tool-result 5/mail.send=null --confined
      refold run fork 8f2c --at 0 --argument model.temperature=0 --agent desk.agents:refund
    """
    if confined and (allow or policy not in (None, "recorded")):
        given_too = "--allow" if allow else f"--policy {policy}"
        raise InputError(f"--confined and {given_too}: the kernel lets a confined fork reach nothing; give one of them")
    if confined and guard:
        raise InputError(
            "--confined and --guard: a confined fork makes no call that a policy could deny; leave one out"
        )
    screen = Screen()
    state = pairs(changed, "--set", plain_value)
    answers = pairs(results, "--tool-result", plain_value)
    named = _group_by_name(pairs(arguments, "--argument", plain_value))
    with target.write(make=False) as log:
        parent = known_run(log, run_id, log.point().cut)
        if child is not None and log.states([f"run/{child}"]):
            raise InputError(f"--id {child}: a run of that id is in this log already")
        changes: dict[str, Any] = {
            "at": at, "state": state or None, "drop": drop, "input": UNSET if given is None else plain_value(given),
            "results": answers or None, "arguments": named or None, "redact": redactor_for(redact),
        }  # fmt: skip
        added = added_paths(state_at(log.recording(parent), at), state) if state else []
        error: Exception | None
        if confined:
            child = child or uuid4().hex
            error = _fork_confined(log, parent, child, name_for(log, parent, entry), changes)
        else:
            name, agent = agent_for(log, parent, entry)
            run = log.fork(
                parent, policy=POLICIES[policy or "live"], allow=allow, entry=name, id=child,
                ask=_asker(screen) if policy == "ask" else None, guard=guard, **changes,
            )  # fmt: skip
            child = run.id
            error = driven(run, agent)
        recording = log.recording(child)
        status = print_end(screen, recording, at, error, as_json=as_json)
        notes = [f"--set {path} added a value: the state had none at this path" for path in added]
        notes += [
            f"--tool-result {key} changed nothing: that step made no such call"
            for key in unused_results(answers, recording.steps)
        ]
        for note in notes:
            if as_json:
                click.echo(f"refold: {note}", err=True)
            else:
                screen.say(note)
        if not as_json:
            screen.say(f"to see where it diverges from its parent: refold run compare {parent} {child}")
        return status


def _fork_confined(log: AgentLog, parent: str, child: str, name: str, changes: dict[str, Any]) -> Departure | None:
    try:
        log.fork_confined(parent, name, id=child, **changes)
    except Departure as departure:
        return departure
    return None


def _group_by_name(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in given.items():
        name, dot, key = path.rpartition(".")
        if not dot or not name or not key:
            raise InputError(f"--argument {path}: write it NAME.KEY=VALUE, such as model.temperature=0")
        found.setdefault(name, {})[key] = value
    return found


def _asker(screen: Screen) -> Callable[[Where, RecordedRequest, Unrecorded], Call | None]:
    def ask(where: Where, request: RecordedRequest, unrecorded: Unrecorded) -> Call | None:
        for line in str(unrecorded).splitlines():
            click.echo(line, err=True)
        text = click.prompt(f"what does it answer? JSON, or `{WORLD}` to call it", err=True)
        return None if text == WORLD else Call(asked=request, answer=plain_value(text), source="recorded")

    return ask
