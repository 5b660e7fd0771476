"""Writing to the terminal: aligned lines, never cut short, coloured only where someone looks."""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Sequence

from rich.console import Console
from rich.text import Text

HEAD, GOOD, BAD, DIM, NAME, MARKED = "bold", "green", "bold red", "dim", "cyan", "yellow"
ID_DIGITS = 12


class Page:
    """Where the demo's text goes."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def line(self, text: str = "", style: str = "") -> None:
        """A line as it is."""
        self._console.print(Text(text, style=style))

    def head(self, text: str) -> None:
        """A heading."""
        self.line()
        self.line(text, HEAD)

    def by(self, who: str, text: str) -> None:
        """Who does something, and what."""
        self._console.print(Text.assemble("   ", (f"{who:<13} ", NAME), text))

    def verdict(self, label: str, good: bool, text: str) -> None:
        """A label, coloured by whether that is good, and what stands behind it."""
        self._console.print(Text.assemble("   ", (f"{label:<18}  ", GOOD if good else BAD), text))

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], marked: Container[str] = ()) -> None:
        """Columns as wide as they need to be; a row with a cell among `marked` stands out."""
        widths = [max(len(cell) for cell in column) for column in zip(head, *rows, strict=True)]
        self.line()
        for index, row in enumerate((head, *rows)):
            cells = (f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            style = DIM if index == 0 else MARKED if any(cell in marked for cell in row) else ""
            self.line(f"   {'  '.join(cells)}".rstrip(), style)


def clock(micros: int) -> str:
    """A time of the day in UTC, to the millisecond."""
    return f"{_moment(micros):%H:%M:%S}.{micros // 1000 % 1000:03}"


def stamp(micros: int) -> str:
    """The first millisecond that is not before this, in RFC 3339."""
    millis = -(-micros // 1000)
    return f"{_moment(millis * 1000):%Y-%m-%dT%H:%M:%S}.{millis % 1000:03}Z"


def day(micros: int) -> str:
    """A date in UTC."""
    return f"{_moment(micros):%Y-%m-%d}"


def _moment(micros: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(micros // 1_000_000, dt.UTC)
