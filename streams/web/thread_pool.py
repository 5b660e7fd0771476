"""Threads that answer requests: a bounded number, with a bounded queue before them.

They are daemons. A request that takes an hour does not hold up the end of the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

WAITING_MAX = 64


class Busy(Exception):
    """Every thread has work, and the queue is full."""


class Lane:
    """Runs work in at most `threads` threads; `waiting_max` more may wait for one."""

    def __init__(self, name: str, threads: int, waiting_max: int = WAITING_MAX) -> None:
        self._name = name
        self._threads = threads
        self._waiting_max = waiting_max
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._started = self._pending = 0

    def submit(self, work: Callable[[], Any]) -> Future[Any]:
        """The result to come; raises Busy."""
        future: Future[Any] = Future()
        with self._lock:
            if self._pending >= self._threads + self._waiting_max:
                raise Busy
            self._pending += 1
            if self._started < min(self._threads, self._pending):
                threading.Thread(target=self._run, name=f"{self._name}-{self._started}", daemon=True).start()
                self._started += 1
        self._queue.put((future, work))
        return future

    def close(self) -> None:
        """End each thread after the work it has; what waits is not begun."""
        with self._lock:
            started, self._started = self._started, self._threads
        for _ in range(started):
            self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            try:
                if future.set_running_or_notify_cancel():
                    future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
            finally:
                with self._lock:
                    self._pending -= 1
                del item, future, work
