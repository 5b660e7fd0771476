"""A thread that existed before a run began, so its work carries nothing of the run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def older_thread() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Yield a function that runs work in an older thread, through a queue, and returns its result or raises its
    error.
    """
    asked: queue.Queue[Callable[[], Any] | None] = queue.Queue()
    answered: queue.Queue[Any] = queue.Queue()

    def serve() -> None:
        while (work := asked.get()) is not None:
            try:
                answered.put(work())
            except BaseException as error:
                answered.put(error)

    thread = threading.Thread(target=serve)
    thread.start()

    def through(work: Callable[[], Any]) -> Any:
        asked.put(work)
        found = answered.get(timeout=60)
        if isinstance(found, BaseException):
            raise found
        return found

    try:
        yield through
    finally:
        asked.put(None)
        thread.join()
