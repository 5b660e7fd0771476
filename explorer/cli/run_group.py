"""`refold run`: everything about one run. Each command stands in a module of its own."""

from __future__ import annotations

import click

from refold.explorer.cli.late import Late
from refold.explorer.cli.options import Place, merged, place_options

COMMANDS = {
    "show": ("run_show:show", "Show a run: what it was given, where it stands, what it came to."),
    "steps": ("run_show:steps", "Show what a run did, step by step."),
    "replay": (
        "run_replay:replay",
        "Run the agent's code again on what was recorded, and say whether it did the same.",
    ),
    "resume": ("run_resume:resume", "Go on with a run from where its record ends."),
    "fork": ("run_fork:fork", "Run it again from one of its steps on, with something changed."),
    "compare": ("comparing:compare", "Find the first point where two runs part, and why."),
    "flag": ("run_marks:flag", "Mark a run as remarkable: it is kept longer, and `refold runs --flagged` lists it."),
    "pin": ("run_marks:pin", "Keep a run's content until it is unpinned, whatever its class."),
}


@click.group("run", cls=Late, late=COMMANDS, invoke_without_command=True)
@place_options
@click.pass_context
def run_group(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Look at one run of an agent, and work with it.

    RUN is a run's id, as `refold runs` lists it, or the beginning of one.

    \b
    Examples
      refold run show 8f2c
      refold run steps 8f2c --step 3
      refold run compare 8f2c 91aa
    """
    context.obj = merged(context.find_object(Place) or Place(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0
