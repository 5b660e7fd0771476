"""Measures whether the cost of an observation depends on the number of observations, of entities, or of observations
per entity.

Each point is a separate embedded log (folding.py). The cost is the CPU time of the whole process, because on a machine
that does other work the rate says little.
"""

from __future__ import annotations

from pathlib import Path

from folding import Case, measure
from page import draw
from results import Picture
from rich.console import Console
from rich.table import Table

from refold.avro.kernel import find_kernel

COUNTS = (10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
QUICK_MAX = 100_000
ENTITIES = (1_000, 10_000, 100_000, 1_000_000)
EACH = (1, 10, 100, 1_000, 10_000)
COUNT = 500_000
A_TENTH = 10
GROWING = {"observations": "observations", "entities": "entities", "history": "observations an entity"}
"""What grows, and its name."""


def show(name: str, console: Console, folder: Path, share: int) -> None:
    """Print the table of one of GROWING, and collect its picture."""
    what = GROWING[name]
    table = Table(title=f"The cost of an observation on the embedded log, by {what}, CPU us")
    for column in ("observations", "entities", "with the kernel", "by Python"):
        table.add_column(column, justify="right")
    series: dict[str, list[tuple[float, float]]] = {"kernel": [], "Python": []}
    for observations, entities in _sizes(name, share):
        costs = [_cost(console, observations, entities, folder, uses_kernel=each) for each in (True, False)]
        x = {"observations": observations, "entities": entities, "history": observations / entities}[name]
        for key, cost in zip(series, costs, strict=True):
            if cost is not None:
                series[key].append((x, cost))
        shown = ["-" if cost is None else f"{cost:.1f}" for cost in costs]
        table.add_row(f"{observations:,}", f"{entities:,}", *shown)
    there = {key: points for key, points in series.items() if points}
    draw(console, Picture(name, f"The cost of an observation, by {what}", what, "CPU us", there))
    console.print(table)


def _sizes(name: str, share: int) -> list[tuple[int, int]]:
    """Return the points: how many observations of how many entities."""
    count = COUNT // share
    if name == "observations":
        # Fewer than 10,000 end before anything can be measured.
        counts = [each for each in _shares(COUNTS, share, 10_000) if share == 1 or each <= QUICK_MAX]
        return [(each, max(10, each // A_TENTH)) for each in counts]
    if name == "entities":
        return [(count, each) for each in _shares(ENTITIES, share, 100)]
    return [(count, max(1, count // each)) for each in EACH if each * 10 <= count]


def _shares(sizes: tuple[int, ...], share: int, least: int) -> list[int]:
    return sorted({max(least, each // share) for each in sizes})


def _cost(console: Console, observations: int, entities: int, folder: Path, *, uses_kernel: bool) -> float | None:
    if uses_kernel and find_kernel().kernel is None:
        return None
    with console.status(f"{observations:,} observations of {entities:,} entities"):
        return measure(Case("", observations, entities), folder, uses_kernel=uses_kernel).cpu_us
