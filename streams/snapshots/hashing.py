"""SHA-256 over spans of records, made by a thread beside the caller: hashing holds nobody up, reading neither.

Much is hashed at once: the thread asks for Python's lock before and after, and may wait for it each time for as long
as it takes to hash a megabyte.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

HASHED_AT_ONCE_BYTES = 4 << 20
WAITING = 4


class RunningHashes:
    """A digest of each span, updated with its records in order. A context manager; holds some 20 MB at most."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._some: list[bytes] = []
        self._some_bytes = 0
        self._waiting: deque[Future[None]] = deque()
        self._thread = ThreadPoolExecutor(1, "refold-hash")

    def update(self, data: bytes) -> None:
        """Go on with the span's next record."""
        self._some.append(data)
        self._some_bytes += len(data)
        if self._some_bytes >= HASHED_AT_ONCE_BYTES:
            self._hash()

    def end(self) -> Callable[[], bytes]:
        """The span ends here; its digest, which may be asked for later."""
        self._hash()
        ended = self._thread.submit(self._digest.digest)
        self._digest = hashlib.sha256()
        return ended.result

    def _hash(self) -> None:
        self._waiting.append(self._thread.submit(_hash, self._digest, self._some))
        self._some, self._some_bytes = [], 0
        if len(self._waiting) > WAITING:
            self._waiting.popleft().result()

    def __enter__(self) -> RunningHashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _hash(digest: hashlib._Hash, some: list[bytes]) -> None:
    digest.update(b"".join(some))
