"""`refold run flag` and `refold run pin`: keep a run longer than its retention class."""

from __future__ import annotations

import click

from refold.agents.retention.marks import flag as set_flag
from refold.agents.retention.marks import pin as set_pin
from refold.agents.retention.marks import unflag, unpin
from refold.avro.errors import InputError
from refold.explorer.cli.options import as_json, on_log, run_argument
from refold.explorer.cli.output.screen import Screen
from refold.explorer.cli.runs.code import redact_option, redactor_for
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run


@click.command()
@run_argument
@click.option("--reason", default="", metavar="TEXT", help="Why, for a later reader.")
@click.option("--unflag", "takes_back", is_flag=True, help="Remove the flag.")
@redact_option
@as_json
@on_log
def flag(target: LogTarget, run_id: str, reason: str, takes_back: bool, redact: str | None, as_json: bool) -> int:
    """Flag a run: it is kept longer, and `runs --flagged` lists it.

    The reason is redacted by the standard rules, or by the function that --redact names.

    \b
    Examples
      refold run flag 8f2c --reason "refunded twice"
      refold run flag 8f2c --unflag
    """
    if takes_back and reason:
        raise InputError("--unflag and --reason: give one of them")
    redactor = redactor_for(redact)
    with target.write(make=False) as log:
        run = known_run(log, run_id, log.point().cut)
        observation = unflag(log, run) if takes_back else set_flag(log, log.vault, run, reason, redactor)
    return _report(run, observation, "no longer flagged" if takes_back else "flagged", as_json=as_json)


@click.command()
@run_argument
@click.option("--unpin", "takes_back", is_flag=True, help="Let it expire as other runs do.")
@as_json
@on_log
def pin(target: LogTarget, run_id: str, takes_back: bool, as_json: bool) -> int:
    """Keep a run's content until it is unpinned.

    \b
    Examples
      refold run pin 8f2c
      refold run pin 8f2c --unpin
    """
    with target.write(make=False) as log:
        run = known_run(log, run_id, log.point().cut)
        observation = unpin(log, run) if takes_back else set_pin(log, log.vault, run)
    return _report(run, observation, "no longer pinned" if takes_back else "pinned", as_json=as_json)


def _report(run: str, observation: str, done: str, *, as_json: bool) -> int:
    screen = Screen()
    if as_json:
        screen.json({"run": run, "observation": observation})
    else:
        screen.say(f"run {run} is {done} (observation {screen.id(observation)})")
    return 0
