"""Write what a run records in parallel with the agent: a separate thread, and a queue of bounded length.

1. `put` queues a piece of work and returns at once. While the queue is full it waits: this is the back-pressure.
2. The thread does the pieces in order. When a piece reaches an idle thread, the thread waits GATHER_S for others:
   waking the thread, and making records durable, cost more than a piece, and the agent's thread pays for the first.
   When the queue is empty, the thread makes the written pieces durable. So a killed process loses what it did in the
   last moments.
3. `flush` returns when everything queued before it is written and durable. `await_written` returns when everything is
   written: its caller flushes the log next, and one sync is enough for both. So the thread leaves the sync to the
   caller. If none comes, it syncs by itself, GATHER_S after the first piece. For `flush` and `await_written`, and at
   the end, the thread does not wait for other pieces.
4. A piece that raises ends everything: nothing after it is written, and `put`, `flush` and `close` raise
   RecordingFailed from then on. An agent whose run cannot be recorded stops; it does not continue unrecorded.
5. Work that nobody would write is refused: after `close`, and in a process forked from the one that began the run,
   `put` raises RecordingFailed too.
6. An interpreter that exits while a run is open waits until everything queued is written and durable. The run stays
   open in the log, as if the process had been killed, and can be resumed.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
from collections.abc import Callable

from refold.avro.errors import RefoldError

QUEUE_MAX = 1000
_POLL_S = 0.5
_FULL_S = 0.002
GATHER_S = 0.01
_forks: list[None] = []
"""One item for each fork between the import of this module and this process. Its length tells processes apart without a
system call for each piece."""
os.register_at_fork(after_in_child=lambda: _forks.append(None))


class RecordingFailed(RefoldError):
    """A run could not be recorded any further; the cause says why."""


class DirectWriter:
    """Replaces a Writer if no thread must be kept from waiting: the caller does each piece."""

    def __init__(self, durable: Callable[[], None]) -> None:
        self._durable = durable

    def put(self, work: Callable[[], None]) -> None:
        """Do the piece. Its exceptions are raised."""
        work()

    def flush(self) -> None:
        """Make durable what was done."""
        self._durable()

    def await_written(self, written: Callable[[], None]) -> None:
        """As Writer. It becomes durable with the caller's next flush."""
        written()

    def close(self) -> None:
        """Same as `flush`."""
        self._durable()


class Writer:
    """Does one run's pieces of work in order, in one thread.

    Args:
        durable: Makes the written pieces durable.
    """

    def __init__(self, durable: Callable[[], None], name: str, gather_s: float = GATHER_S) -> None:
        self._durable = durable
        self._gather_s = gather_s
        # A queue class with a bound costs the agent several times as much for each piece.
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._problem: BaseException | None = None
        self._process = len(_forks)
        self._is_closed = False
        self._hurry = threading.Event()  # a caller waits
        self._is_lent = False  # another thread is about to make the written pieces durable
        self._lock = threading.Lock()  # so that nothing is queued after the end
        self._thread = threading.Thread(target=self._run, name=f"refold-recorder-{name}", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def put(self, work: Callable[[], None]) -> None:
        """Queue a piece; pieces are done in order.

        Raises:
            RecordingFailed: An earlier piece failed, or the writer is closed.
        """
        with self._lock:
            if self._problem is not None or self._is_closed or len(_forks) != self._process:
                self._raise_if_ended()
            if self._work.qsize() >= QUEUE_MAX:
                self._wait_for_room()
            self._work.put(work)

    def flush(self) -> None:
        """Return when everything is written and durable.

        Raises:
            RecordingFailed: A piece failed.
        """
        self._wait_for(self._durable)

    def await_written(self, written: Callable[[], None]) -> None:
        """Return when everything is written, for a caller that flushes the log next.

        Args:
            written: Writes what is held back.

        Raises:
            RecordingFailed: A piece failed.
        """

        def lend() -> None:
            written()
            self._is_lent = True

        self._wait_for(lend)

    def close(self) -> None:
        """Finish the queue, and end the thread.

        Raises:
            RecordingFailed: A piece failed.
        """
        if len(_forks) == self._process:
            self._end()
        if self._problem is not None:
            self._raise_if_ended()

    def _wait_for(self, work: Callable[[], None]) -> None:
        """Return when a piece of work is done, and all before it."""
        done = threading.Event()

        def report() -> None:
            work()
            done.set()

        self.put(report)
        self._hurry.set()
        while not done.wait(_POLL_S):
            self._raise_if_ended()

    def _wait_for_room(self) -> None:
        while self._work.qsize() >= QUEUE_MAX:
            self._hurry.set()
            time.sleep(_FULL_S)
            self._raise_if_ended()

    def _end(self) -> None:
        with self._lock:
            if not self._is_closed and len(_forks) == self._process:
                self._is_closed = True
                self._work.put(None)
                self._hurry.set()
        if len(_forks) == self._process:
            self._thread.join()
            atexit.unregister(self._end)

    def _raise_if_ended(self) -> None:
        if self._problem is not None:
            raise RecordingFailed(f"the run could not be recorded further: {self._problem}") from self._problem
        if len(_forks) != self._process:
            raise RecordingFailed("this process was forked from the one that records the run: continue the run there")
        if self._is_closed:
            raise RecordingFailed("the run has ended: nothing more is recorded; begin another, or resume it")

    def _run(self) -> None:
        is_clean, due_s = True, 0.0
        while True:
            try:
                work = self._work.get() if is_clean else self._work.get_nowait()
            except queue.Empty:
                if self._is_lent:
                    self._is_lent = False
                    self._gather(due_s)
                    continue
                work, is_clean = self._durable, True
            else:
                if is_clean and work is not None:
                    due_s = time.monotonic() + self._gather_s
                    self._gather(due_s)
                is_clean = False
            self._try(work or self._durable)
            if work is None:
                return

    def _gather(self, due_s: float) -> None:
        """Wait for more pieces, until a caller waits."""
        self._hurry.wait(max(0.0, due_s - time.monotonic()))
        self._hurry.clear()

    def _try(self, work: Callable[[], None]) -> None:
        if self._problem is None:
            try:
                work()
            except BaseException as problem:  # raised in the run, when it waits for the writer
                self._problem = problem
