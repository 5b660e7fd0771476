"""A question about a log: the command that asks it, and the answer as that command prints it with `--json`.

The command line, the explorer's pages and its HTTP API share these questions. A page that shows a command therefore
shows exactly that command's answer.

`Parameter` describes a parameter of a question; the HTTP API and the MCP tools share it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from refold.agents.log import AgentLog
from refold.streams.defaults import CLOCKS


class Parameter(NamedTuple):
    """A parameter of a question.

    Attributes:
        kind: Its JSON Schema type.
        choices: The allowed values, if there are few.
    """

    name: str
    kind: str = "string"
    about: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False


AT = Parameter("at", about="The point to answer for, as WHEN of the command line; without it, now.")
CLOCK = Parameter("clock", about="What a time means.", choices=CLOCKS)


class Query(Protocol):
    """One question about a log."""

    @property
    def arguments(self) -> list[str]:
        """The arguments of the `refold` command that asks this question, without the log."""

    def answer(self, log: AgentLog) -> Any:
        """Return the JSON tree that the command prints with `--json`.

        Raises:
            RefoldError: The question has no answer; the command ends with the same error.
        """


def command_text(arguments: Sequence[str], log_url: str | None = None) -> str:
    """Return a command that can be pasted into a shell.

    Args:
        arguments: The arguments of `refold`, without the log.
        log_url: The log to name; None: REFOLD_LOG names it.
    """
    named = [] if log_url is None else ["--log", log_url]
    return shlex.join(["refold", *arguments, *named])


def options_of(arguments: Mapping[str, object]) -> list[str]:
    """Return command-line options. An empty value leaves the option out; True gives an option without a value.

    A value is joined to its option with `=`, so a value that starts with `-` is not read as an option.
    """
    found: list[str] = []
    for name, value in arguments.items():
        if value is True:
            found.append(f"--{name}")
        elif value not in (None, "", False):
            found.append(f"--{name}={value}")
    return found


def arguments_of(words: Sequence[str], named: Mapping[str, object], *arguments: str) -> list[str]:
    """Return a command's arguments: its words, what it asks about, its options.

    A cut is long, so options come last, and what is asked about can be read first. If a positional argument starts with
    `-`, all of them follow the options and `--`.

    Args:
        words: The command, such as `run`, `steps`.
        named: The options, as for `options_of`.
        arguments: The positional arguments.
    """
    options = options_of(named)
    if any(each.startswith("-") for each in arguments):
        return [*words, *options, "--", *arguments]
    return [*words, *arguments, *options]
