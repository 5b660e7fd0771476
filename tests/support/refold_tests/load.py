"""A log under load: a client that appends continuously, and a worker that is restarted whenever it ends."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from refold.avro.observation import Observation
from refold_tests.child import Child
from refold_tests.folding import PATIENCE_S, REFUSED, append, opened

_AT_ONCE = 8


class Feeding:
    """Appends observations of THING in a thread, a few at a time. Once all are in the log, it repeats some of them."""

    def __init__(self, url: str, observations: Sequence[Observation], rng: random.Random) -> None:
        self.acknowledged: set[bytes] = set()
        self.flushes = 0
        self._url = url
        self._observations = observations
        self._rng = rng
        self._stopping, self._going = threading.Event(), threading.Event()
        self._going.set()
        self._lock = threading.Lock()
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_more(self, flushes: int = 3) -> None:
        """Return once this many more appends were acknowledged, each begun after this call."""
        wanted = self.flushes + flushes + 1
        deadline = time.monotonic() + PATIENCE_S
        while self.flushes < wanted:
            assert self._thread.is_alive(), self._problem
            assert time.monotonic() < deadline, "nothing is acknowledged any more"
            time.sleep(0.02)

    def pause(self) -> None:
        """Append nothing until `go_on`. Earlier appends are acknowledged on return."""
        self._going.clear()
        with self._lock:
            pass

    def go_on(self) -> None:
        """Resume appending."""
        self._going.set()

    def finish(self) -> set[bytes]:
        """Append the rest, and stop; return the ids of all acknowledged observations."""
        self.stop()
        assert not self._thread.is_alive()
        if self._problem is not None:
            raise self._problem
        return self.acknowledged

    def stop(self) -> None:
        """Stop like `finish`, but ignore errors."""
        self._stopping.set()
        self._going.set()
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        rest = iter(self._observations)
        try:
            with opened(self._url) as log:
                while not self._stopping.is_set():
                    self._going.wait()
                    with self._lock:
                        if self._going.is_set():
                            some = [*islice(rest, _AT_ONCE)] or self._rng.choices(self._observations, k=3)
                            self.acknowledged |= append(log, some)
                            self.flushes += 1
                    time.sleep(self._rng.random() * 0.1)
                self.acknowledged |= append(log, rest)
        except Exception as problem:
            self._problem = problem


@contextmanager
def feeding(url: str, observations: Sequence[Observation], rng: random.Random) -> Iterator[Feeding]:
    """Run a client that appends until it is told to finish, or the test fails."""
    found = Feeding(url, observations, rng)
    try:
        yield found
    finally:
        found.stop()


class Kept:
    """A worker that is restarted when it ends, as by a process supervisor.

    It must end with one line and the exit status of the command line. `said`: these lines.
    """

    def __init__(self, start: Callable[[], Child]) -> None:
        self._start = start
        self.said: list[str] = []
        self.now = start()

    def look(self) -> None:
        """Restart the worker if it has ended."""
        if self.now.process.poll() is not None:
            said = self.now.line()
            assert self.now.end() == REFUSED, said
            self.said.append(said)
            self.now = self._start()

    def drain(self) -> None:
        """Let the worker finish, and check that it did."""
        self.now.signal(signal.SIGTERM)
        assert self.now.end() == 0
