"""SHA-256 over many records, made by a thread beside the caller: hashing holds nobody up, reading neither."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

HASHED_AT_ONCE_BYTES = 1 << 20
WAITING = 4


class RunningHash:
    """A digest over what it is updated with, in order. A context manager; holds a few megabytes at most."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._some: list[bytes] = []
        self._some_bytes = 0
        self._waiting: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, "refold-hash")

    def update(self, data: bytes) -> None:
        """Go on with the next bytes."""
        self._some.append(data)
        self._some_bytes += len(data)
        if self._some_bytes >= HASHED_AT_ONCE_BYTES:
            self._waiting.append(self._thread.submit(self._hash, self._some))
            self._some, self._some_bytes = [], 0
            if len(self._waiting) > WAITING:
                self._waiting.popleft().result()

    def digest(self) -> bytes:
        """The digest over all of it."""
        while self._waiting:
            self._waiting.popleft().result()
        self._hash(self._some)
        self._some = []
        return self._digest.digest()

    def _hash(self, some: Sequence[bytes]) -> None:
        for data in some:
            self._digest.update(data)

    def __enter__(self) -> RunningHash:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)
