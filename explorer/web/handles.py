"""The logs of the threads that answer: a log is for one thread, so each has its own, opened when it is first needed."""

from __future__ import annotations

import threading

from refold.agents.log import AgentLog
from refold.explorer.queries.log_target import LogTarget


class Handles:
    """Opens the log of a place to read, once a thread."""

    def __init__(self, place: LogTarget) -> None:
        self._place = place
        self._own = threading.local()
        self._lock = threading.Lock()
        self._opened: list[AgentLog] = []

    def log(self) -> AgentLog:
        """This thread's log. RefoldError where it cannot be opened; the next call tries again."""
        found: AgentLog | None = getattr(self._own, "log", None)
        if found is None:
            found = self._own.log = self._place.read()
            with self._lock:
                self._opened.append(found)
        return found

    def close(self) -> None:
        """Close all of them; the threads have ended, or ask no more."""
        with self._lock:
            while self._opened:
                self._opened.pop().close()
