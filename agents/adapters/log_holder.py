"""The log of an adapter's object: opened by it, or given to it."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType
from typing import Self

from refold.agents.log import AgentLog, open_log


class LogHolder:
    """Holds a log, and closes it if it opened it."""

    _log: AgentLog
    _is_own: bool

    def _hold(self, log: str | os.PathLike[str] | AgentLog | None) -> None:
        """Take an open log, or open the one of a URL; None: the one that REFOLD_LOG names."""
        self._is_own = not isinstance(log, AgentLog)
        self._log = log if isinstance(log, AgentLog) else open_log(None if log is None else os.fspath(log))

    def close(self) -> None:
        """Close the log, if this object opened it."""
        if self._is_own:
            self._log.close()


class LogContext(LogHolder):
    """A LogHolder that is a context manager, sync and async: on exit it closes."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def log(self) -> AgentLog:
        """The log."""
        return self._log
