"""SHA-256 over spans of records: long ones in a second thread, so that reading waits little for it.

The thread hashes large pieces: it needs the GIL before and after each piece, and may wait for it for as long as it
takes to hash eight megabytes. So spans of less than a piece are hashed by the caller, when they end.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

PIECE_BYTES = 16 << 20
# The number of pieces that may wait for the thread: reading a piece takes about as long as hashing it, or less.
AHEAD = 2


class RunningHashes:
    """A digest of each span, updated with its records in order. A context manager; holds some 5 pieces at most."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._thread = ThreadPoolExecutor(1, "refold-hash")
        self._under_way: deque[Future[None]] = deque()
        self.begin()

    def begin(self) -> None:
        """Begin a span; an unfinished one is dropped."""
        self._digest = hashlib.sha256()
        self._is_threaded = False
        self._some: list[bytes] = []
        self._some_bytes = 0

    def update(self, data: bytes) -> None:
        """Add the span's next record."""
        self._some.append(data)
        self._some_bytes += len(data)
        if self._some_bytes >= self._piece_bytes:
            self._submit()

    def end(self) -> Callable[[], bytes]:
        """End the span; returns a function that gives its digest, now or later."""
        digest = self._digest
        ended = digest.digest
        if self._is_threaded:
            self._submit()
            ended = self._thread.submit(digest.digest).result
        else:
            for data in self._some:
                digest.update(data)
        self.begin()
        return ended

    def _submit(self) -> None:
        """Let the thread hash the data since the last piece; returns when at most AHEAD pieces are left to it."""
        self._under_way.append(self._thread.submit(_hash, self._digest, self._some))
        self._is_threaded, self._some, self._some_bytes = True, [], 0
        while len(self._under_way) > AHEAD:
            self._under_way.popleft().result()

    def __enter__(self) -> RunningHashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _hash(digest: hashlib._Hash, some: list[bytes]) -> None:
    digest.update(b"".join(some))
