"""`refold play`: run a program, and answer its model calls from a recording."""

from __future__ import annotations

import os
from pathlib import Path

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log, run_argument
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.record.proxy import (
    CLOSING_S,
    SPOOL_MIB,
    capture_modules,
    capture_settings,
    fork_option,
    forking_settings,
    print_stored,
    serve_recording,
)
from refold.explorer.cli.record.record import exit_as
from refold.explorer.cli.runs.code import redact_option
from refold.explorer.queries.log_target import LogTarget

KEYS = dict.fromkeys(
    ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "AWS_BEARER_TOKEN_BEDROCK"), "none-is-needed"
)
"""SDKs require keys. These are placeholders, which are not used."""


@click.command(context_settings={"ignore_unknown_options": True})
@run_argument
@click.option("--rhythm", type=click.Choice(["none", "recorded"]), default="none", show_default=True,
              help="Send the pieces of streams at once, or with their recorded pauses.")  # fmt: skip
@fork_option
@click.option("--upstream", metavar="URL", help="With --fork: the provider [as for `refold record`].")
@redact_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
@on_log
def play(
    target: LogTarget, run_id: str, rhythm: str, is_forking: bool, upstream: str | None, redact: str | None,
    command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run a program; its model calls are answered from a recording.

    The program runs unchanged. Its requests to models are answered by the run, and by the others that were captured
    with it: the same bytes in the same pieces. It connects to no provider, and no token is paid. The program's tools
    run: only models are answered.

    A request that is not recorded gets an error that names the turn and what differs. Then the exit status is 1, if the
    program itself exits with 0.

    With --fork that request and all after it are sent to the provider. They become a fork: a run whose parent is RUN,
    with the turns of RUN up to there.

    \b
    Examples
      refold play 8f2c -- python my_agent.py
      refold play 8f2c --rhythm recorded -- python my_agent.py
      refold play 8f2c --fork -- python my_agent.py
    """
    from refold.agents.capture.agent_settings import ProviderSettings, provider_settings
    from refold.agents.capture.program import pointing, run_program, upstreams_of

    if is_forking:
        return _fork(target, run_id, rhythm, upstream, redact, command)
    if upstream is not None:
        raise InputError("--upstream is the provider for a --fork: a play alone connects to nothing")
    serving, replaying, run_id = serve_recording(target, run_id, redact, "127.0.0.1", 0, is_paced=rhythm == "recorded")
    try:
        environment = {**KEYS, **os.environ}
        if "GOOGLE_API_KEY" in os.environ and "GEMINI_API_KEY" not in os.environ:
            del environment["GEMINI_API_KEY"]  # Google's SDK warns if both are set
        # Of the agent's own settings only those of Claude Code are replaced: Codex gets a provider that needs no login.
        own = ProviderSettings(variables=provider_settings(command, environment, Path.cwd()).variables)
        pointed = pointing(command, serving.url, upstreams_of({}, None), environment, own)
        ended = run_program(pointed.arguments, {**environment, **pointed.variables})
    finally:
        serving.close()
    summary = f"{counted(replaying.served, 'request')} answered from run {run_id}, {replaying.waiting} not requested"
    click.echo(f"refold: {summary}", err=True)
    return exit_as(ended) or (1 if replaying.unrecorded else 0)


def _fork(
    target: LogTarget, run_id: str, rhythm: str, upstream: str | None, redact: str | None, command: tuple[str, ...]
) -> int:
    from refold.agents.capture.agent_settings import provider_settings
    from refold.agents.capture.program import pointing, run_program, upstreams_of

    module = capture_modules()
    own = provider_settings(command, os.environ, Path.cwd())
    upstreams = upstreams_of(os.environ, upstream, own)
    name = Path(command[0]).name
    settings = {"program": name, "upstreams": {each: module.shown(url) for each, url in upstreams.items()}}
    given = capture_settings(target, name, settings, redact, None, SPOOL_MIB)
    given, replaying, run_id = forking_settings(target, run_id, redact, given, is_paced=rhythm == "recorded")
    capture = module.Capture(given, upstreams)
    try:
        pointed = pointing(command, capture.url, upstreams, os.environ, own)
        settings |= {"set": pointed.variables, "switches": pointed.switches}
        ended = run_program(pointed.arguments, {**os.environ, **pointed.variables})
    finally:
        stored = capture.close(CLOSING_S)
        click.echo(f"refold: {counted(replaying.served, 'request')} answered from run {run_id}", err=True)
        print_stored(stored, given.log_url)
    return exit_as(ended)
