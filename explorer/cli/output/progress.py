"""Progress on standard error: a bar on a terminal, otherwise a line every few seconds if the command asks for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

UPDATE_EVERY_S = 0.1
LINE_EVERY_S = 5.0

Advance = Callable[[int], None]
Reached = Callable[[int, int], None]


@contextmanager
def counting(doing: str, total: int, unit: str) -> Iterator[Advance]:
    """Show a bar. The yielded function adds to it."""
    with reading(doing, unit) as reached:
        yield lambda more: reached(more, total)


@contextmanager
def reading(doing: str, unit: str, *, lines: bool = False) -> Iterator[Reached]:
    """Show a bar. The yielded function takes how many more are done, and the total as known so far.

    Args:
        doing: The text to show, such as `Verifying`.
        unit: What is counted, in the plural, such as `records`.
        lines: Whether to print a line every LINE_EVERY_S seconds if standard error is not a terminal.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(doing, unit) if lines else lambda more, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield _seldom(lambda more, total: bar.update(task, advance=more, total=total))


def _lines(doing: str, unit: str) -> Reached:
    """Report progress as lines of text. The first one comes after LINE_EVERY_S seconds, so a short command prints
    none.
    """
    done, said_at = 0, time.monotonic()

    def add(more: int, total: int) -> None:
        nonlocal done, said_at
        done += more
        now = time.monotonic()
        if now - said_at >= LINE_EVERY_S:
            said_at = now
            print(f"refold: {doing}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    return add


def _seldom(advance: Reached) -> Reached:
    """Update the bar in larger steps, because drawing costs more than the counted work."""
    waiting, drawn_at = 0, 0.0

    def add(more: int, total: int) -> None:
        nonlocal waiting, drawn_at
        waiting += more
        now = time.monotonic()
        if now - drawn_at >= UPDATE_EVERY_S:
            advance(waiting, total)
            waiting, drawn_at = 0, now

    return add


@contextmanager
def files_read(doing: str, paths: Sequence[Path]) -> Iterator[list[Reached | None]]:
    """Show a bar for the bytes of several files. Yields, for each file, a function of (bytes read, bytes in all), or
    None.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield [None] * len(paths)
        return
    sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(doing, total=sum(sizes))
        yield [_draw_function(bar, task, sum(sizes[:number])) for number in range(len(paths))]


def _draw_function(bar: Progress, task: object, before: int) -> Reached:
    drawn_at = 0.0

    def draw(read: int, size: int) -> None:
        nonlocal drawn_at
        now = time.monotonic()
        if now - drawn_at >= UPDATE_EVERY_S:
            bar.update(task, completed=before + read)  # type: ignore[arg-type]
            drawn_at = now

    return draw
