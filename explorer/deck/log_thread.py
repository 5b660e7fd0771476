"""The one thread that uses the log. A log may be used by one thread only, and the deck's own thread must handle
keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from refold.agents.log import AgentLog
from refold.explorer.queries.log_target import LogTarget
from refold.streams.entity_index import EntityIndexes

T = TypeVar("T")


class LogThread:
    """Asks questions about a log in a separate thread. The first question opens the log read-only."""

    def __init__(self, target: LogTarget) -> None:
        self.target = target
        self._log: AgentLog | None = None
        self._thread = ThreadPoolExecutor(1, "refold-deck-log")

    async def ask(self, question: Callable[[AgentLog], T]) -> T:
        """Run `question` with the log and return its result. Questions run one after another.

        Raises:
            RefoldError: The log cannot be opened, or the question has no answer. The next question tries again.
        """
        return await asyncio.wrap_future(self._thread.submit(lambda: question(self._open_log())))

    def close(self) -> None:
        """Close the log after the current question."""
        self._thread.submit(self._close)
        self._thread.shutdown()

    def _open_log(self) -> AgentLog:
        if self._log is None:
            self._log = self.target.read()
            self._log.indexes = EntityIndexes()
        return self._log

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
