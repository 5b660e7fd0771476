"""Text output: tables and lines. On a terminal they are coloured and fitted; elsewhere they are plain and complete.

Values come from agents, so unprintable characters are escaped: no recorded text can control a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import click

from refold.avro.observation import Source
from refold.avro.times import time_text
from refold.explorer.cli.output.fitting import TableColumn, fitted
from refold.explorer.queries.untimed import untimed_runs
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.exchange.atomic_file import json_line
from refold.streams.point import Point

if TYPE_CHECKING:
    from rich.console import Console

ID_DIGITS = 12
CELL_CHARACTERS_MAX = 240
PADDED_CHARACTERS_MAX = 72
GAP = "  "
_FORCING = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})


def printable(text: str) -> str:
    """Return the text on one line. Characters that could control a terminal are escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(micros: int | None) -> str:
    """Format a time, in microseconds, as RFC 3339 without trailing zeros; "-" for None."""
    if micros is None:
        return "-"
    text = time_text(micros)
    return text.removesuffix("Z").rstrip("0").rstrip(".") + "Z" if "." in text else text


NO_TIME = "no time"
"""Shown if a source gave no time, and the time that orders the observation was generated."""


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: "1 step", "2,000 steps"."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


ObservedText = Callable[[int, Source], str]
"""Formats the time, in microseconds, at which a source observed something."""


def observed_texts(log: Log, sources: Iterable[Source], cut: Cut) -> ObservedText:
    """Return a function that formats when something was observed.

    Args:
        log: The log of the observations.
        sources: The sources of all observations that will be shown.
        cut: The point at which their runs are looked up.

    Returns:
        A function from a time and its source to text.
    """
    found = untimed_runs(log, (each.run for each in sources), cut)
    return lambda micros, source: NO_TIME if source.run in found else moment(micros)


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._has_begun = False
        # Rich is imported only if it is needed: without a terminal, only these variables make it treat a pipe as one.
        may_be = sys.stdout.isatty() or not _FORCING.isdisjoint(os.environ)
        self.is_terminal = may_be and self._console.is_terminal

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    def say(self, text: str = "", style: str = "") -> None:
        """Print a line. An empty line is printed only after other lines."""
        if not text and not self._has_begun:
            return
        self._has_begun = True
        if self.is_terminal:
            from rich.text import Text

            self._console.print(Text(printable(text), style))
        else:
            sys.stdout.write(printable(text) + "\n")

    def id(self, hexadecimal: str) -> str:
        """Return an id or hash: its first digits on a terminal, all of it elsewhere."""
        return hexadecimal[:ID_DIGITS] if self.is_terminal else hexadecimal

    def cell(self, text: str) -> str:
        """Return a value for a table: shortened on a terminal, complete elsewhere."""
        if not self.is_terminal or len(text) <= CELL_CHARACTERS_MAX:
            return text
        return f"{text[:CELL_CHARACTERS_MAX]}... ({len(text):,} characters)"

    def table(self, columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
        """Print aligned columns. Without rows, nothing is printed."""
        if not rows:
            return
        self._has_begun = True
        if self.is_terminal:
            self._fit_columns(columns, rows)
            return
        lines = [[column.header for column in columns], *([printable(cell) for cell in row] for row in rows)]
        # Only cells of ordinary length set the width of a column: a long value shifts its own row, not all rows.
        widths = [
            max(len(line[number]) for line in lines if len(line[number]) <= PADDED_CHARACTERS_MAX)
            for number in range(len(columns) - 1)
        ]
        for line in lines:
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            sys.stdout.write(GAP.join([*padded, line[-1]]).rstrip() + "\n")

    def _fit_columns(self, columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = [[printable(self.cell(cell)) for cell in row] for row in rows]
        fit = fitted(columns, cells, self._console.width)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", show_edge=False)
        for number, width in fit.widths.items():
            column = columns[number]
            table.add_column(
                column.header, style=column.style, width=width, no_wrap=column.is_fixed, overflow="ellipsis"
            )
        for row in cells:
            table.add_row(*(Text(row[number]) for number in fit.widths))
        self._console.print(table)
        if fit.dropped:
            self.say(f"no room here for: {', '.join(fit.dropped)} (--json has all)", "dim")

    def point(self, point: Point, name: str = "at") -> None:
        """Print the cut of an answer, and whether the answer may still change.

        On a terminal it is the last line, with the cut's short hash. Elsewhere it is printed at once, in full.
        """
        context = click.get_current_context(silent=True)
        if self.is_terminal and context is not None:
            context.call_on_close(partial(self.say, f"{name} cut {point.cut.short}", "dim"))
        else:
            self.say(f"{name} {point.cut} ({point.cut.short})", "dim")
        if point.open and point.cut.observed_until is not None:
            self.say(f"still open: more may be recorded that was observed by {moment(point.cut.observed_until)}")
        elif point.is_future:
            self.say("still open: this time lies in the future, so more may be recorded before it")
        elif point.open:
            self.say("still open: this time is not yet 5 s old, so more may be recorded before it")

    def json(self, tree: Any) -> None:
        """Print one JSON value, indented."""
        sys.stdout.write(json.dumps(tree, ensure_ascii=not _is_utf8(), indent=2) + "\n")

    def json_line(self, tree: Any) -> None:
        """Print one JSON value on one line."""
        sys.stdout.write(json_line(tree, ascii_only=not _is_utf8()))

    def flush(self) -> None:
        """Flush the output, so that the reader of a pipe sees everything so far."""
        sys.stdout.flush()


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
