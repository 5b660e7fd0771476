"""What a case is: the files it needs and the command line, or the reader, that is given them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from refold_tests.fuzz.world import World

Log: TypeAlias = Literal["shared", "own", "none"]
"""shared: the world's; own: one that is not there yet; none: the case opens no log."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case. files: name to content, written to the folder first. log: which one it is run on, see Log."""

    arguments: list[str]
    files: dict[str, bytes] = field(default_factory=dict)
    log: Log = "shared"


Make: TypeAlias = Callable[[random.Random, World], Case]


def read_by(name: str, data: bytes) -> Case:
    """Bytes for one of refold_tests.fuzz.readers."""
    return Case([f"@{name}", "record"], {"record": data}, log="none")


def as_given(words: list[str]) -> list[str]:
    """As a command line can be: its words hold no zero byte, and what is not UTF-8 in it are bytes."""
    return [
        word.replace("\x00", "").encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for word in words
    ]
