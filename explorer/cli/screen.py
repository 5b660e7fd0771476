"""Text on the screen: tables and lines, in colour and fitted on a terminal, whole and plain elsewhere.

Values come from agents: what is not printable is escaped, so that no recorded text can steer a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from refold.avro.times import time_text
from refold.streams.point import Point

ID_DIGITS = 12
CELL_CHARACTERS_MAX = 240
GAP = "  "


def printable(text: str) -> str:
    """The text on one line, with what a terminal would act on escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def moment(micros: int | None) -> str:
    """A time in RFC 3339, without zeros that say nothing."""
    if micros is None:
        return "-"
    text = time_text(micros)
    return text.removesuffix("Z").rstrip("0").rstrip(".") + "Z" if "." in text else text


class Screen:
    """Standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        self.is_terminal = self._console.is_terminal

    def say(self, text: str = "", style: str = "") -> None:
        """One line."""
        if self.is_terminal:
            self._console.print(Text(printable(text), style))
        else:
            sys.stdout.write(printable(text) + "\n")

    def id(self, hexadecimal: str) -> str:
        """An id or hash: its first digits on a terminal, whole elsewhere."""
        return hexadecimal[:ID_DIGITS] if self.is_terminal else hexadecimal

    def cell(self, text: str) -> str:
        """A value in a table: cut on a terminal, whole elsewhere."""
        if not self.is_terminal or len(text) <= CELL_CHARACTERS_MAX:
            return text
        return f"{text[:CELL_CHARACTERS_MAX]}... ({len(text):,} characters)"

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str] = ()) -> None:
        """Aligned columns; nothing where there are no rows."""
        if not rows:
            return
        if self.is_terminal:
            self._fitted(headers, rows, styles)
            return
        lines = [list(headers), *([printable(cell) for cell in row] for row in rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(headers) - 1)]
        for line in lines:
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=False)]
            sys.stdout.write(GAP.join([*padded, line[-1]]).rstrip() + "\n")

    def _fitted(self, headers: Sequence[str], rows: Sequence[Sequence[str]], styles: Sequence[str]) -> None:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False)
        for number, header in enumerate(headers):
            style = styles[number] if number < len(styles) else ""
            table.add_column(header, style=style, overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(self.cell(cell))) for cell in row))
        self._console.print(table)

    def point(self, point: Point, name: str = "at") -> None:
        """The cut that an answer about the past is for, and whether it may still grow."""
        self.say(f"{name} {point.cut} ({point.cut.short})", "dim")
        if point.open and point.cut.observed_until is not None:
            self.say(f"still open: what is recorded later may have been observed by {moment(point.cut.observed_until)}")
        elif point.open:
            self.say("still open: this time is not yet 5 s old, so more may be recorded before it")

    def json(self, tree: Any) -> None:
        """One JSON value, indented."""
        self._write_json(tree, 2)

    def json_line(self, tree: Any) -> None:
        """One JSON value on one line, out at once."""
        self._write_json(tree, None)
        sys.stdout.flush()

    def _write_json(self, tree: Any, indent: int | None) -> None:
        plain = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        sys.stdout.write(json.dumps(tree, ensure_ascii=plain, indent=indent) + "\n")
