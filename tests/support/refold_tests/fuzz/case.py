"""A case: the files it needs, and the command line, or the reader, that gets them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from refold_tests.fuzz.world import World

Log: TypeAlias = Literal["shared", "own", "none"]
"""shared: the world's log; own: a log that does not exist yet; none: the case opens no log."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. files: name to content, written to the folder first; log: the log it runs on, see Log."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    log: Log = "shared"


Make: TypeAlias = Callable[[random.Random, World], Case]


def read_by(name: str, data: bytes) -> Case:
    """Return a case with bytes for one of refold_tests.fuzz.readers."""
    return Case([f"@{name}", "record"], {"record": data}, log="none")


def as_given(words: list[str]) -> list[str]:
    """Make words possible on a command line: without zero bytes, and with bytes in place of what is not UTF-8."""
    return [
        word.replace("\x00", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for word in words
    ]
