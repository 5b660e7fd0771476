"""Create and encode large values in a thread, so that an agent's event loop is not blocked."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from refold.agents.recorder.context import in_thread, task_here, waited_for
from refold.agents.recorder.plain import is_large

T = TypeVar("T")


class BesideLoop:
    """Works on the values of one run: on large ones in a thread, one at a time, so that the loop has its turn."""

    def __init__(self) -> None:
        self._turn = threading.Lock()

    async def done(self, work: Callable[[], T], value: object) -> T:
        """Return the result of the work on a value. The work is completed, even if the task is cancelled meanwhile."""
        if not is_large(value) or task_here() is None:
            return work()

        def done_alone() -> T:
            with self._turn:
                return work()

        future = in_thread(done_alone)
        await waited_for(future)
        return future.result()
