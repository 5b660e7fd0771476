"""`refold run resume`: continue a run that did not end, or that failed."""

from __future__ import annotations

import click

from refold.explorer.cli.options import as_json, on_log, run_argument
from refold.explorer.cli.output.screen import Screen
from refold.explorer.cli.runs.code import (
    agent_for,
    agent_option,
    driven,
    guard_option,
    print_end,
    redact_option,
    redactor_for,
)
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import known_run


@click.command()
@run_argument
@agent_option
@redact_option
@guard_option
@as_json
@on_log
def resume(
    target: LogTarget, run_id: str, entry: str | None, redact: str | None, guard: str | None, as_json: bool
) -> int:
    """Continue a run from where its record ends.

    Committed steps are not run again, and their requests are answered from the record: no model is paid twice, and no
    write tool takes effect twice. A step that was begun continues with its remaining attempts. An effect of unknown
    status is not repeated either: `refold effects` lists it.

    Exits with 1 if the run failed.

    \b
    Examples
      refold run resume 8f2c
      refold run resume 8f2c --agent desk.agents:refund
    """
    screen = Screen()
    with target.write(make=False) as log:
        run_id = known_run(log, run_id, log.point().cut)
        _, agent = agent_for(log, run_id, entry)
        stood = sum(step.outcome == "succeeded" for step in log.recording(run_id).steps)
        error = driven(log.run("", resume=run_id, redact=redactor_for(redact), guard=guard), agent)
        return print_end(screen, log.recording(run_id), stood, error, as_json=as_json)
