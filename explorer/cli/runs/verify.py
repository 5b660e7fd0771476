"""`refold run verify`: check whether a run matches its hashes."""

from __future__ import annotations

import click

from refold.agents.journal.self_replay import checked_chain
from refold.explorer.cli.options import WHEN, as_json, at, on_log, run_argument
from refold.explorer.cli.output.screen import Screen
from refold.explorer.cli.runs.show import chain_text
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_names import recorded_run


@click.command(epilog=WHEN)
@run_argument
@at
@as_json
@on_log
def verify(target: LogTarget, run_id: str, at: str | None, as_json: bool) -> int:
    """Check the chain of hashes over a run.

    The hash of a step covers its requests, answers, decisions and changes, and the hash of the step before. In a
    captured run a step is a turn: its hash covers the model and the conversation. Every hash is computed again from the
    stored content. Exits with 1 if one differs.

    \b
    Examples
      refold run verify 8f2c
      refold run verify 8f2c --json
    """
    screen = Screen()
    with target.read() as log:
        point = log.point(at)
        run = recorded_run(log, run_id, point.cut)
    check = checked_chain(run)
    if as_json:
        screen.json({
            "run": run.run, "ok": check.is_whole, "steps": check.steps, "broken": check.broken,
            "is_end_whole": check.is_end_whole, "hash": run.hash or None,
        })  # fmt: skip
    else:
        screen.point(point)
        screen.say(f"run {run.run}: {chain_text(check, run)}", "green" if check.is_whole else "red")
    return 0 if check.is_whole else 1
