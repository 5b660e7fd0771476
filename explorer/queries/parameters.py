"""The parameters of questions that the HTTP API and the MCP tools share."""

from __future__ import annotations

from typing import NamedTuple

from refold.streams.defaults import CLOCKS


class Parameter(NamedTuple):
    """A parameter of a question. kind: of JSON Schema; choices: the possible values, if they are few."""

    name: str
    kind: str = "string"
    about: str = ""
    choices: tuple[str, ...] = ()
    is_required: bool = False


AT = Parameter("at", about="The point to answer for, as WHEN of the command line; without it, now.")
CLOCK = Parameter("clock", about="What a time means.", choices=CLOCKS)
