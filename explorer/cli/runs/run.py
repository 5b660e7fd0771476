"""`refold run`: the commands about one run."""

from __future__ import annotations

import click

from refold.explorer.cli.lazy_group import LazyGroup
from refold.explorer.cli.options import merged, place_options
from refold.explorer.queries.log_target import LogTarget

COMMANDS = {
    "Commands": {
        "show": ("runs.show:show", "Show a run: its input, status and result."),
        "steps": ("runs.show:steps", "Show what a run did, step by step."),
        "search": ("runs.search:search_turns", "Find turns of all runs by what they say, the newest first."),
        "verify": ("runs.verify:verify", "Check the chain of hashes over a run."),
        "replay": ("runs.replay:replay", "Run the agent's code on its recording; report differences."),
        "resume": ("runs.resume:resume", "Continue a run from where its record ends."),
        "fork": ("runs.fork:fork", "Run again from one of its steps, with something changed."),
        "compare": ("runs.compare:compare", "Find the first point where two runs differ, and why."),
        "export": ("runs.export:export", "Write a run to one HTML file that opens without refold."),
        "flag": ("runs.marks:flag", "Flag a run: it is kept longer, and `runs --flagged` lists it."),
        "pin": ("runs.marks:pin", "Keep a run's content until it is unpinned."),
    }
}


@click.group("run", cls=LazyGroup, sections=COMMANDS, invoke_without_command=True)
@place_options
@click.pass_context
def run_group(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Show, replay, resume, fork or compare one run.

    RUN is a run's id, as `refold runs` lists it, or the beginning of one.

    \b
    Examples
      refold run show 8f2c
      refold run steps 8f2c --step 3
      refold run compare 8f2c 91aa
    """
    context.obj = merged(context.find_object(LogTarget) or LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0
