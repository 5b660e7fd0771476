"""SHA-256 over spans of records, by a thread beside the caller: it computes without Python's lock.

1. The caller gives a piece, the whole of a short span or a part of a long one, and waits.
2. The thread has the lock now. It takes note of the piece before, lets the caller know, and hashes; that gives the lock
   back, and the caller goes on.
3. Done with it, the thread waits for the lock until the caller gives the next piece.
So the lock goes from one to the other where both wait for it anyway. Who asks for it in the midst of the other's work
gets it after five milliseconds, which is longer than most pieces take.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock

PIECE_BYTES = 16 << 20
# Less is hashed sooner than given away.
ALONE_BYTES = 128 << 10


class RunningHashes:
    """A digest of each span, updated with its records in order. A context manager; holds some 50 MB at most."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "refold-hash")
        self._begun = Lock()
        self._begun.acquire()
        self._begin()

    def _begin(self) -> None:
        self._digest = hashlib.sha256()
        self._latest: Future[None] | None = None
        self._some: list[bytes] = []
        self._some_bytes = 0

    def update(self, data: bytes) -> None:
        """Go on with the span's next record."""
        self._some.append(data)
        self._some_bytes += len(data)
        if self._some_bytes >= PIECE_BYTES:
            self._beside()

    def end(self) -> Callable[[], bytes]:
        """The span ends here; its digest, which may be asked for later."""
        digest = self._digest
        if self._latest is None and self._some_bytes < ALONE_BYTES:
            for data in self._some:
                digest.update(data)
            ended = digest.digest
        else:
            ended = partial(_hashed, digest, self._beside())
        self._begin()
        return ended

    def _beside(self) -> Future[None]:
        """Let the thread hash what came since the last piece; returns when it is done with the one before."""
        hashing = self._latest = self._thread.submit(_hash, self._digest, self._some, self._begun)
        self._begun.acquire()
        self._some, self._some_bytes = [], 0
        return hashing

    def __enter__(self) -> RunningHashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _hash(digest: hashlib._Hash, some: list[bytes], begun: Lock) -> None:
    try:
        data = b"".join(some)
    finally:
        begun.release()
    digest.update(data)


def _hashed(digest: hashlib._Hash, hashing: Future[None]) -> bytes:
    hashing.result()
    return digest.digest()
