"""Writing to the terminal: aligned lines, never cut short, coloured only where someone looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

HEAD, GOOD, BAD, DIM, NAME = "bold", "green", "bold red", "dim", "cyan"
ID_DIGITS = 12


class Page:
    """Where the demo's text goes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """A line as it is."""
        self._console.print(Text(text, style=style))

    def head(self, text: str) -> None:
        """A heading."""
        self.line()
        self.line(text, HEAD)

    def by(self, who: str, text: str) -> None:
        """Who does something, and what."""
        self._console.print(Text.assemble("  ", (f"{who:<13} ", NAME), text))

    def verdict(self, label: str, good: bool, text: str) -> None:
        """A label, coloured by whether that is good, and what stands behind it."""
        self._console.print(Text.assemble("   ", (label, GOOD if good else BAD), text))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Columns as wide as they need to be."""
        widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
        for index, row in enumerate((head, *rows)):
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            self.line(f"   {'  '.join(cells)}".rstrip(), DIM if index == 0 else "")


def clock(micros: int) -> str:
    """A time of the day in UTC, to the millisecond."""
    return f"{_moment(micros):%H:%M:%S}.{micros // 1000 % 1000:03}"


def day(micros: int) -> str:
    """A date in UTC."""
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(micros // 1_000_000, dt.UTC)
