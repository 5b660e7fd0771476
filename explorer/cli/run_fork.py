"""`refold run fork`: a run again from one of its steps, with something changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from msgspec import UNSET

from refold.agents.journal.record import Asked, Call
from refold.agents.recorder.answers import Place as Where
from refold.agents.replay.forked import Policy
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError
from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.recorded import known_run, run_argument
from refold.explorer.cli.run_code import (
    agent_for,
    agent_option,
    driven,
    pairs,
    plain_value,
    redact_option,
    redactor_for,
    tell_end,
)
from refold.explorer.cli.screen import Screen

POLICIES: dict[str, Policy] = {"live": "live", "recorded": "recorded", "ask": "asked"}
WORLD = "live"


@click.command()
@run_argument
@click.option("--at", "at", type=click.IntRange(0), required=True, metavar="STEP",
              help="The step after which the child parts from its parent; 0: before the first.")  # fmt: skip
@click.option("--set", "changed", multiple=True, metavar="PATH=VALUE",
              help="Change the state there: order.items[0].price=12; may be repeated.")  # fmt: skip
@click.option("--drop", multiple=True, metavar="PATH", help="Take this out of the state; may be repeated.")
@click.option("--input", "given", metavar="JSON", help="Give the code this input instead of the parent's.")
@click.option("--tool-result", "--result", "results", multiple=True, metavar="STEP/NAME=VALUE",
              help="Answer that call with this: 4/search=[]; may be repeated.")  # fmt: skip
@click.option("--argument", "arguments", multiple=True, metavar="NAME.KEY=VALUE",
              help="Call it with this argument: chat.temperature=0; model.KEY is for every model.")  # fmt: skip
@agent_option
@redact_option
@click.option("--policy", type=click.Choice(list(POLICIES)), default="live", show_default=True,
              help="What comes after: ask the world, only what is recorded, or ask you.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="TOOL", help="Let this write tool run; may be repeated.")
@click.option("--id", "child", metavar="ID", help="The child's id [a fresh one].")
@as_json
@on_log
def fork(
    place: Place, run_id: str, at: int, changed: tuple[str, ...], drop: tuple[str, ...], given: str | None,
    results: tuple[str, ...], arguments: tuple[str, ...], entry: str | None, redact: str | None, policy: str,
    allow: tuple[str, ...], child: str | None, as_json: bool,
) -> int:  # fmt: skip
    """Run it again from one of its steps on, with something changed.

    The child is a run of its own, which names its parent, the step and what was changed. Up to that step everything
    comes from the recording, and the parent stays as it is. After it, models and tools that read are asked as --policy
    says; a tool that writes never runs unless --allow names it.

    A VALUE is JSON where it is any, so 50 is a number and "50" a text; else it is the text itself.

    Exits with 1 where the child failed.

    \b
    Examples
      refold run fork 8f2c --at 3 --set cents=1999 --allow payments.refund
      refold run fork 8f2c --at 3 --tool-result '4/search={"hits": []}' --policy recorded
      refold run fork 8f2c --at 0 --argument model.temperature=0 --agent desk.agents:refund
    """
    screen = Screen()
    state = pairs(changed, "--set", plain_value)
    answers = pairs(results, "--tool-result", plain_value)
    named = _by_name(pairs(arguments, "--argument", plain_value))
    with place.write(make=False) as log:
        parent = known_run(log, run_id, log.point().cut)
        name, agent = agent_for(log, parent, entry)
        if child is not None and log.states([f"run/{child}"]):
            raise InputError(f"--id {child}: a run of that id is in this log already")
        run = log.fork(
            parent, at=at, state=state or None, drop=drop, input=UNSET if given is None else plain_value(given),
            results=answers or None, arguments=named or None, policy=POLICIES[policy], allow=allow,
            ask=_asker(screen) if policy == "ask" else None, entry=name, id=child, redact=redactor_for(redact),
        )  # fmt: skip
        error = driven(run, agent)
        status = tell_end(screen, log.recording(run.id), at, error, as_json=as_json)
        if not as_json:
            screen.say(f"to see where it parts from its parent: refold run compare {parent} {run.id}")
        return status


def _by_name(given: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for path, value in given.items():
        name, dot, key = path.rpartition(".")
        if not dot or not name or not key:
            raise InputError(f"--argument {path}: write it NAME.KEY=VALUE, such as model.temperature=0")
        found.setdefault(name, {})[key] = value
    return found


def _asker(screen: Screen) -> Callable[[Where, Asked, Unrecorded], Call | None]:
    def ask(where: Where, asked: Asked, unrecorded: Unrecorded) -> Call | None:
        for line in str(unrecorded).splitlines():
            click.echo(line, err=True)
        text = click.prompt(f"what does it answer? JSON, or `{WORLD}` to ask the world", err=True)
        return None if text == WORLD else Call(asked=asked, answer=plain_value(text), source="recorded")

    return ask
