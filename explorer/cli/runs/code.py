"""Helpers of `refold run replay`, `resume` and `fork`: find the agent's code by its name, and run it."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from refold.agents.confined.files import unrestricted_files
from refold.agents.entry import Agent, agent_of, require_known
from refold.agents.journal.record import Plain, Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redact, Redactor, groups_in
from refold.avro.errors import InputError, RefoldError
from refold.avro.strict_json import json_or_text
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.cli.runs.lines import Lines
from refold.explorer.queries.run_shapes import run_json

TRACE = "openai-agents"
"""The `kind` of a run that is a trace of the OpenAI Agents SDK."""

agent_option = click.option(
    "--agent", "entry", metavar="NAME",
    help="The agent's function: module:function or folder/file.py:function [as the run names it].",
)  # fmt: skip

redact_option = click.option(
    "--redact", is_flag=False, flag_value="", default=None, metavar="[NAME]",
    help="The redactor of the recording: the standard rules, or a function of yours, module:function.",
)  # fmt: skip

guard_option = click.option(
    "--guard", metavar="FILE", help="A policy that checks the run's tool and model calls (docs/guides/policy.md)."
)


def redactor_for(given: str | None) -> Redact | None:
    """Return the redactor that --redact names: None without the option, the standard rules, or a function."""
    if given is None:
        return None
    return agent_of(given, Path.cwd(), "redactor") if given else Redactor(groups=groups_in(os.environ))


def entry_of(log: AgentLog, run: str) -> str:
    """Return the name of the function that is the run's code; empty if the run names none."""
    name: str = log.state(f"run/{run}").fields.get("entry", "")
    return name


def _warn_of_limits(context: click.Context, option: click.Parameter, confined: bool) -> bool:
    if confined and (what := unrestricted_files()):
        click.echo(f"warning: --confined holds sockets and processes here, but {what}", err=True)
    return confined


confined_option = click.option(
    "--confined", is_flag=True, callback=_warn_of_limits,
    help="Run in a separate process; the kernel lets it open no socket, start no process, and write files in a "
    "temporary folder only (Linux).",
)  # fmt: skip


def agent_for(log: AgentLog, run: str, entry: str | None) -> tuple[str, Agent]:
    """Return the name of the run's function, and the function, imported from the current folder.

    Raises:
        InputError: The run names no function and none is given, or the run was imported.
    """
    name = name_for(log, run, entry)
    return name, agent_of(name, Path.cwd())


def name_for(log: AgentLog, run: str, entry: str | None) -> str:
    """Return the name of the run's function.

    Raises:
        InputError: The run names no function and none is given, or the run was imported.
    """
    fields = log.state(f"run/{run}").fields
    if fields.get("imported_from"):
        raise InputError(
            f"run {run} was imported: there is no code for it; step through it with `refold run steps {run}`"
        )
    name = entry or entry_of(log, run)
    if not name and fields.get("kind") == TRACE:
        raise InputError(
            f"run {run} is a trace, which holds no bytes that the SDK got: step through it with `refold run steps "
            f"{run}`; how to make such runs replayable is in docs/guides/openai-agents.md"
        )
    if not name:
        raise InputError(
            f"run {run} names no agent: give its function with --agent module:function, or step through the recording "
            f"alone with `refold run steps {run}`"
        )
    if not entry:
        require_known(name, Path.cwd())
    return name


def driven(run: Run, agent: Agent) -> Exception | None:
    """Run the agent's code to its end.

    The code's standard output is redirected to standard error, because standard output is for the command's answer.

    Returns:
        The exception that the code raised, or its departure from the recording; None if it raised nothing.

    Raises:
        RefoldError: refold itself failed.
    """
    try:
        with redirect_stdout(sys.stderr):
            if inspect.iscoroutinefunction(agent):
                asyncio.run(run.drive_async(agent))
            else:
                run.drive(agent)
    except Departure as error:
        return error
    except RefoldError:
        raise
    except Exception as error:  # the agent's own: it may raise anything
        return error
    return None


def print_end(screen: Screen, run: Recording, begun_at: int, error: Exception | None, *, as_json: bool) -> int:
    """Print how a run ended; return the exit status.

    Args:
        screen: The output.
        begun_at: The number of the last step that was fully recorded before. Later steps count as the run's own.
        error: The exception of the agent's code, or its departure from the recording; None if it raised nothing.
        as_json: Whether to print JSON.
    """
    if as_json:
        departure = str(error) if isinstance(error, Departure) else None
        screen.json({**run_json(run), "departure": departure})
        return 0 if run.outcome == "succeeded" else 1
    lines = Lines()
    own = len(run.steps) - begun_at
    screen.say(f"run {run.run} {run.outcome or 'did not end'}, after {counted(own, 'step')} of its own", "bold")
    if isinstance(error, Departure):
        for line in str(error).splitlines():
            screen.say(f"  {line}", "red")
    elif run.failure is not None:
        screen.say(f"  failed    {lines.failure(run.failure)}", "red")
    if run.output is not None:
        screen.say(f"  output    {lines.value(run.output)}")
    if run.hash:
        screen.say(f"  hash      {run.hash}")
    return 0 if run.outcome == "succeeded" else 1


def pairs(given: tuple[str, ...], option: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Parse a repeated option of the form NAME=VALUE.

    Raises:
        InputError: A text has no =, or a name is given twice.
    """
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise InputError(f"{option} {each}: write it NAME=VALUE")
        if name in found:
            raise InputError(f"{option} {name}: given twice")
        found[name] = read(value)
    return found


def plain_value(text: str) -> Plain:
    """Parse JSON, so that 50 is a number and "50" a text. Text that is not valid JSON is returned unchanged."""
    return json_or_text(text)
