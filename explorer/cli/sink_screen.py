"""What `refold sink` shows on standard error: bars while it loads, then how far behind it is.

The bars are for a terminal alone. Everywhere: a line when the store refuses, when it answers again, when it has caught
up, and once a minute while it is behind.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

SAY_EVERY_S = 60.0
DRAW_EVERY_S = 0.1


class SinkScreen:
    """For one sink; is_long: whether it goes on at the log's end. A context manager."""

    def __init__(self, name: str, *, is_long: bool) -> None:
        self._name = name
        self._is_long = is_long
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._waiting: dict[str, int] = {}
        self._drawn_at_s = 0.0
        self._refusal = ""
        self._is_behind: bool | None = None
        self._said_at_s = 0.0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def loading(self, more: int, total: int) -> None:
        """More records were read, of so many."""
        self._advance("reading the log (records)", more, total)

    def storing(self, more: int, total: int) -> None:
        """More entities were handed to the store, of so many."""
        self._advance("loading the store (entities)", more, total)

    def wrote(self, changes: int) -> None:
        """A transaction was committed."""
        for task in self._tasks.values():
            if self._bar is not None:
                self._bar.remove_task(task)
        self._tasks.clear()
        self._waiting.clear()
        self.answered()

    def answered(self) -> None:
        """The store takes what it is given."""
        if self._refusal:
            self._refusal = ""
            self._say("the store answers again")

    def refused(self, why: str, retry_after_s: float) -> None:
        """The store takes nothing now."""
        if why != self._refusal:
            self._refusal = why
            self._say(f"waiting, for the store refuses: {why}")

    def lags(self, changes: int, seconds: float) -> None:
        """So many changes are not in the store, and the oldest was recorded so long ago."""
        now, is_behind = time.monotonic(), changes > 0
        turned = is_behind != self._is_behind and not is_behind
        if self._is_long and (turned or (is_behind and now - self._said_at_s >= SAY_EVERY_S)):
            self._say(f"{changes:,} changes behind, {seconds:.0f} s" if is_behind else "caught up")
            self._said_at_s = now
        self._is_behind = is_behind

    def _advance(self, doing: str, more: int, total: int) -> None:
        if self._bar is None:
            return
        self._waiting[doing] = self._waiting.get(doing, 0) + more
        now = time.monotonic()
        if now - self._drawn_at_s >= DRAW_EVERY_S:
            self._drawn_at_s = now
            if doing not in self._tasks:
                self._tasks[doing] = self._bar.add_task(doing, total=total)
            self._bar.update(self._tasks[doing], completed=self._waiting[doing], total=total)

    def _say(self, text: str) -> None:
        line = f"{self._name}: {text}"
        if self._bar is None:
            click.echo(line, err=True)
        else:  # above the bars
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
