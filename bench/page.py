"""Writes the page of a run of `make bench --write`: its tables and pictures, as docs/reference/PERFORMANCE.md.

Everything printed is also collected: each table as Markdown, each line unchanged. A picture is an SVG with a line for
each series; its x axis is logarithmic, its y axis starts at 0. The page is made from the results of the parts that are
done (results.py), so a run may be done in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec
from results import Figure, PartResult, Picture, Setting
from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NAME = "PERFORMANCE.md"
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 640, 300, 60, 44, 34, 20
_NOT_REACHED = """\
What holds a figure that is not reached, by its profile, and what was tried, is written down: of the worker in decisions
[196](../decisions/196-buffers-allocator-and-the-write-ahead-log.md), [199](../decisions/199-each-order-key-once.md) and
[201](../decisions/201-a-batch-is-folded-in-parts.md), of its bindings in
[bulk writes in rocksdict](rocksdict-bulk-writes.md), of verify in
[200](../decisions/200-verify-in-several-processes.md), of folding on `file:` and of rebuilding from snapshots in
[202](../decisions/202-the-kernel-checks-new-observations-and-merges-layers.md)."""
_COLOURS = ("#3949ab", "#c62828", "#2e7d32", "#6d4c41")


class PageConsole(Console):
    """A console that also collects its output, pictures, figures and recorded values for the page."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.begin()

    def begin(self) -> None:
        """Collect from here on, for another part."""
        self.blocks: list[str] = []
        self.pictures: list[Picture] = []
        self.figures: list[Figure] = []
        self.values: dict[str, Any] = {}

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print, and collect tables and lines."""
        for each in objects:
            self.blocks.append(markdown(each) if isinstance(each, Table) else str(each))
        super().print(*objects, **settings)


def titled_table(title: str, *columns: str) -> Table:
    """Return an empty table: its first column is text, the others are figures."""
    table = Table(title=title)
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    return table


def note(console: Console, figure: Figure) -> None:
    """Collect a figure for the page, if one will be written."""
    if isinstance(console, PageConsole):
        console.figures.append(figure)


def draw(console: Console, picture: Picture) -> None:
    """Collect a picture for the page, if one will be written."""
    if isinstance(console, PageConsole):
        console.pictures.append(picture)


def record(console: Console, name: str, value: object) -> None:
    """Keep measured values with the part's results."""
    if isinstance(console, PageConsole):
        console.values[name] = msgspec.to_builtins(value)


def write(results: Sequence[PartResult], setting: Setting, left_out: Sequence[str], folder: Path = FOLDER) -> Path:
    """Write the page and its pictures, and return the page's path."""
    for each in results:
        for picture in each.pictures:
            (folder / f"performance-{picture.name}.svg").write_text(drawn(picture), encoding="utf-8")
    page = folder / NAME
    page.write_text(rendered(results, setting, left_out), encoding="utf-8")
    return page


def rendered(results: Sequence[PartResult], setting: Setting, left_out: Sequence[str]) -> str:
    """Return the page's text."""
    days = sorted({each.begun[:10] for each in results})
    lines = [
        "# Figures", "",
        f"Made by `{setting.command}`, measured {' to '.join(sorted({days[0], days[-1]}))}. Run it to repeat it.",
        "", "| what | here |", "|---|---|", *(f"| {what} | {here} |" for what, here in setting.described()), "",
    ]  # fmt: skip
    if left_out:
        lines += [f"Left out of this run: {', '.join(left_out)}.", ""]
    figures = [figure for each in results for figure in each.figures]
    if figures:
        lines += ["## Goals", "", "| figure | measured | goal | moonshot | reached | peer | limit |",
                  "|---|---|---|---|---|---|---|", *map(_goal_row, figures), ""]  # fmt: skip
        if any(each.is_reached is False for each in figures):
            lines += [_NOT_REACHED, ""]
    pictures = [picture for each in results for picture in each.pictures]
    if pictures:
        lines += ["## The cost of an observation", ""]
        for picture in pictures:
            lines += [f"![{picture.title}](performance-{picture.name}.svg)", ""]
    lines += ["## Tables", ""]
    for block in (block for each in results for block in each.blocks):
        lines += [block, ""]
    lines += ["## Parts of the run", "", "| part | begun, UTC | minutes | load before | load after |",
              "|---|---|---:|---:|---:|"]  # fmt: skip
    for each in results:
        lines.append(f"| {each.name} | {each.begun[:16].replace('T', ' ')} | {each.seconds / 60:.1f} | "
                     f"{each.load_before:.1f} | {each.load_after:.1f} |")  # fmt: skip
    lines.append(f"| all | | {sum(each.seconds for each in results) / 60:.1f} | | |")
    return "\n".join(lines).rstrip() + "\n"


def _goal_row(figure: Figure) -> str:
    sign = "at least" if figure.at_least else "at most"
    goal, moonshot = (
        "-" if each is None else f"{sign} {each:,g} {figure.unit}" for each in (figure.goal, figure.moonshot)
    )
    reached = "-" if figure.is_reached is None else "yes" if figure.is_reached else "no"
    measured = f"{figure.measured:,.0f}" if figure.measured >= 1_000 else f"{figure.measured:,.2f}"
    return (f"| {figure.name} | {measured} {figure.unit} | {goal} | {moonshot} | {reached} | {figure.peer or '-'} | "
            f"{figure.limit or '-'} |")  # fmt: skip


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
