"""`refold record`: run a program, and capture its requests to models."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from refold.explorer.cli.options import on_log
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.record.proxy import (
    CLOSING_S,
    budget_of,
    budget_option,
    capture_modules,
    capture_settings,
    policy_option,
    print_stored,
    resumed_settings,
    spool_max_option,
    spool_option,
)
from refold.explorer.cli.runs.code import redact_option
from refold.explorer.queries.log_target import LogTarget


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--agent", metavar="NAME", help="The agent's name in the runs [the program's name].")
@click.option("--upstream", metavar="URL",
              help="The provider [from OPENAI_BASE_URL and its like, else the provider's own address].")  # fmt: skip
@redact_option
@policy_option
@budget_option
@click.option("--resume", metavar="RUN", help="Go on from what was captured under this id; a new one, if nothing was.")
@spool_option
@spool_max_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True, metavar="-- COMMAND...")
@on_log
def record(
    target: LogTarget, agent: str | None, upstream: str | None, redact: str | None, policy: str | None,
    limits: tuple[tuple[str, float], ...], resume: str | None, spool: Path | None, spool_mib: int,
    command: tuple[str, ...],
) -> int:  # fmt: skip
    """Run a program and capture its model calls.

    The program runs unchanged, on this terminal. A proxy listens on a free port, and the variables that tell SDKs and
    agents where their provider is are set to the proxy: OPENAI_BASE_URL, OPENAI_API_BASE, OPENAI_HOST,
    ANTHROPIC_BASE_URL, ANTHROPIC_API_BASE, ANTHROPIC_HOST, GOOGLE_GEMINI_BASE_URL, OLLAMA_HOST; and
    AWS_ENDPOINT_URL_BEDROCK_RUNTIME and ANTHROPIC_BEDROCK_BASE_URL if AWS_BEARER_TOKEN_BEDROCK is set. Claude Code
    (`claude`) and Codex (`codex`) also get the command-line switches that they need; the provider that their own
    settings name is the upstream. The record says which variables and switches were set.

    With --policy a request that the policy denies is not passed on: the program gets status 403, with an error in the
    provider's own form, and the denial is recorded. --budget bounds what the program may use, with or without a policy.

    With --resume a program that was captured under that id before, and was killed or failed, is run again. Each request
    that it makes again is answered from the log, and is not paid again. The others are sent to the provider, and become
    forks of the recorded runs.

    At the end it prints what was captured, or that nothing was. The exit status is that of the program; if a signal
    ended the program, the same signal ends this command.

    \b
    Examples
      refold record -- python my_agent.py
      refold record --agent fixer --upstream http://localhost:11434 -- ./fix.sh 17
      refold record --resume nightly-17 -- python my_agent.py
      refold record --budget tokens=200000 -- claude -p "what does this folder do?"
    """
    module = capture_modules()
    from refold.agents.capture.agent_settings import provider_settings
    from refold.agents.capture.program import VARIABLES, pointing, run_program, upstreams_of
    from refold.agents.policy.guard import policy_of

    own = provider_settings(command, os.environ, Path.cwd())
    upstreams = upstreams_of(os.environ, upstream, own)
    shown = {name: module.shown(url) for name, url in upstreams.items()}
    name = Path(command[0]).name
    settings = {"program": name, "upstreams": shown}
    given = capture_settings(target, agent or name, settings, redact, spool, spool_mib,
                             policy=policy_of(policy, budget_of(limits)))  # fmt: skip
    if resume is not None:
        given = resumed_settings(given, resume)
    capture = module.Capture(given, upstreams)
    try:
        pointed = pointing(command, capture.url, upstreams, os.environ, own)
        settings |= {"set": pointed.variables, "switches": pointed.switches}
        ended = run_program(pointed.arguments, {**os.environ, **pointed.variables})
    finally:
        stored = capture.close(CLOSING_S)
        answered = 0 if given.replaying is None else given.replaying.served
        if answered:
            click.echo(f"refold: {counted(answered, 'request')} answered from run {resume}", err=True)
        print_stored(stored, given.log_url)
    if not (stored.exchanges or stored.missed or stored.waiting or answered):
        names = ", ".join(each.name for each in VARIABLES if each.name in pointed.variables)
        click.echo(
            f"refold: nothing was captured: {name} made no request by {names}. Point it at a proxy by its own "
            "settings: refold proxy --help",
            err=True,
        )
    return exit_as(ended)


def exit_as(ended: int) -> int:
    """Return the exit status. If a signal ended the program, end this process by the same signal."""
    if ended >= 0:
        return ended
    sys.stdout.flush()
    if -ended != signal.SIGKILL:
        signal.signal(-ended, signal.SIG_DFL)
    os.kill(os.getpid(), -ended)
    return 128 - ended  # the signal does not end this process
