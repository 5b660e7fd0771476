"""`refold play`: run a program, its models answered from a recording."""

from __future__ import annotations

import os

import click

from refold.explorer.cli.options import LogTarget, on_log
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.record.proxy import serve_recording
from refold.explorer.cli.record.record import exit_as
from refold.explorer.cli.runs.argument import run_argument
from refold.explorer.cli.runs.code import redact_option

KEYS = dict.fromkeys(
    ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"), "none-is-needed"
)
"""SDKs ask for keys, which nothing is done with here."""


@click.command(context_settings={"ignore_unknown_options": True})
@run_argument
@click.option("--rhythm", type=click.Choice(["none", "recorded"]), default="none", show_default=True,
              help="Pieces of streams at once, or with the pauses that they had.")  # fmt: skip
@redact_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
@on_log
def play(place: LogTarget, run_id: str, rhythm: str, redact: str | None, command: tuple[str, ...]) -> int:
    """Run a program; its model calls are answered from a recording.

    The program runs as it is. What it asks of models is answered by the run, and by the others that were captured with
    it: the same bytes in the same pieces. No provider is connected to, and no token is paid. The program's tools run:
    only models are answered.

    A request that is not recorded gets an error that names the turn and what differs. Then this exits with 1, if the
    program itself exits with 0.

    \b
    Examples
      refold play 8f2c -- python my_agent.py
      refold play 8f2c --rhythm recorded -- python my_agent.py
    """
    from refold.agents.capture.program import pointing, run_program, upstreams_of

    serving, replaying, run_id = serve_recording(place, run_id, redact, "127.0.0.1", 0, is_paced=rhythm == "recorded")
    try:
        environment = {**KEYS, **os.environ}
        pointed = pointing(command, serving.url, upstreams_of({}, None), environment)
        ended = run_program(pointed.arguments, {**environment, **pointed.variables})
    finally:
        serving.close()
    said = f"{counted(replaying.served, 'request')} answered from run {run_id}, {replaying.waiting} not asked for"
    click.echo(f"refold: {said}", err=True)
    return exit_as(ended) or (1 if replaying.unrecorded else 0)
