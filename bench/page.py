"""Writes the page of a run of `make bench --write`: its tables and pictures, as docs/reference/figures.md.

Everything printed is also collected: each table as Markdown, each line unchanged. A picture is an SVG with a line for
each series; its x axis is logarithmic, its y axis starts at 0.
"""

from __future__ import annotations

import datetime as dt
import math
import os
import platform
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NAME = "figures.md"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 300, 60, 44, 34, 20
_COLOURS = ("#3949ab", "#c62828", "#2e7d32", "#6d4c41")


class Picture(NamedTuple):
    """A picture: its file's name, its title, the names of the axes, and the points of each series."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]


class Figure(NamedTuple):
    """A measured figure with its goal and its peer. at_least: whether more is better."""

    name: str
    measured: float
    goal: float
    unit: str
    peer: str
    at_least: bool = True

    @property
    def is_reached(self) -> bool:
        return self.measured >= self.goal if self.at_least else self.measured <= self.goal


class PageConsole(Console):
    """A console that also collects its output, pictures and figures for the page."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.blocks: list[str] = []
        self.pictures: list[Picture] = []
        self.figures: list[Figure] = []

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print, and collect tables and lines."""
        for each in objects:
            self.blocks.append(markdown(each) if isinstance(each, Table) else str(each))
        super().print(*objects, **settings)


def note(console: Console, figure: Figure) -> None:
    """Collect a figure for the page, if one will be written."""
    if isinstance(console, PageConsole):
        console.figures.append(figure)


def write(console: PageConsole, command: str, left_out: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write the page and its pictures, and return the page's path."""
    for each in console.pictures:
        (folder / f"figures-{each.name}.svg").write_text(drawn(each), encoding="utf-8")
    page = folder / NAME
    page.write_text(rendered(console, command, left_out), encoding="utf-8")
    return page


def rendered(console: PageConsole, command: str, left_out: Sequence[str]) -> str:
    """Return the page's text."""
    lines = [
        "# Figures", "",
        f"Made by one run of `{command}` on {dt.datetime.now(dt.UTC):%Y-%m-%d}: {_machine()}, load "
        f"{os.getloadavg()[0]:.1f} at its end. Run it to repeat it.", "",
    ]  # fmt: skip
    if left_out:
        lines += [f"Left out of this run: {', '.join(left_out)}.", ""]
    if console.figures:
        lines += ["## Goals", "", "| figure | measured | goal | reached | peer |", "|---|---|---|---|---|"]
        for each in console.figures:
            sign = "at least" if each.at_least else "at most"
            lines.append(f"| {each.name} | {each.measured:,.2f} {each.unit} | {sign} {each.goal:g} {each.unit} | "
                         f"{'yes' if each.is_reached else 'no'} | {each.peer} |")  # fmt: skip
        lines.append("")
    if console.pictures:
        lines += ["## The cost of an observation", ""]
        for picture in console.pictures:
            lines += [f"![{picture.title}](figures-{picture.name}.svg)", ""]
    lines += ["## Tables", ""]
    for block in console.blocks:
        lines += [block, ""]
    return "\n".join(lines).rstrip() + "\n"


def markdown(table: Table) -> str:
    """Return a table as Markdown, preceded by its title."""
    columns = [str(each.header) for each in table.columns]
    rows = zip(*(list(each.cells) for each in table.columns), strict=True)
    signs = ["---:" if each.justify == "right" else "---" for each in table.columns]
    lines = [columns, signs, *([str(cell) for cell in row] for row in rows)]
    body = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
    return f"**{' '.join(str(table.title or '').split())}**\n\n{body}"


def drawn(picture: Picture) -> str:
    """Return a picture as SVG."""
    points = [point for series in picture.series.values() for point in series]
    low, high = (math.log10(each(x for x, _ in points)) for each in (min, max))
    top = max(y for _, y in points) * 1.15 or 1.0

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(x) - low) / (high - low or 1.0)
        return (_LEFT + share * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - _TOP))

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
             'font-size="12">', f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>',
             _text(_LEFT, 18, picture.title, 'font-weight="bold"')]  # fmt: skip
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        _, y = at(10**low, top * share)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(_text(_LEFT - 6, y + 4, f"{top * share:,.0f}", 'text-anchor="end"'))
    for x in sorted({x for x, _ in points}):
        parts.append(_text(at(x, 0)[0], _HEIGHT - _BOTTOM + 16, f"{x:,.0f}", 'text-anchor="middle"'))
    parts.append(_text((_LEFT + _WIDTH) / 2, _HEIGHT - 8, f"{picture.x}; up: {picture.y}", 'text-anchor="middle"'))
    for number, (name, series) in enumerate(picture.series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (at(*point) for point in series))
        parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in series)]
        parts.append(_text(_WIDTH - _RIGHT, _TOP + 14 * number, name, f'text-anchor="end" fill="{colour}"'))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(x: float, y: float, said: str, more: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(said)}</text>'


def _machine() -> str:
    return f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} on {platform.machine()}"
