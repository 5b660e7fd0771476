"""SHA-256 over spans of records, in a second thread, so that reading waits little for it.

The thread needs the GIL before and after each piece of work, and may wait for it for as long as it takes to hash eight
megabytes. So it gets large pieces: a part of a long span, or many short spans. The native kernel hashes many spans in
one call, without the GIL. Without the kernel short spans are hashed by the caller, when they end.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from refold.avro.kernel import find_kernel

PIECE_BYTES = 16 << 20
# The number of pieces that may wait for the thread: reading a piece takes about as long as hashing it, or less.
AHEAD = 4
T = TypeVar("T")


class RunningHashes:
    """A digest of each span, updated with its records in order. A context manager; holds some 7 pieces at most."""

    def __init__(self, piece_bytes: int = PIECE_BYTES) -> None:
        self._piece_bytes = piece_bytes
        self._thread = ThreadPoolExecutor(1, "refold-hash")
        self._under_way: deque[Future[Any]] = deque()
        kernel = find_kernel().kernel
        self._span_digests = None if kernel is None else kernel.span_digests
        self._short = _ShortSpans()
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
            self._submit(_hash, self._digest, self._some)
            self._is_threaded, self._some, self._some_bytes = True, [], 0

    def end(self) -> Callable[[], bytes]:
        """End the span; returns a function that gives its digest, now or later, but before this object is left."""
        digest, some = self._digest, self._some
        ended: Callable[[], bytes] = digest.digest
        if self._is_threaded:
            self._submit(_hash, digest, some)
            ended = self._thread.submit(digest.digest).result
        elif self._span_digests is not None:
            ended = self._short.add(some, self._some_bytes, self._hash_short)
            if self._short.size >= self._piece_bytes:
                self._hash_short(self._short)
        else:
            for data in some:
                digest.update(data)
        self.begin()
        return ended

    def later(self, work: Callable[[], T]) -> Callable[[], T]:
        """Let the thread do other work; returns a function that gives its result, before this object is left."""
        return self._thread.submit(work).result

    def _hash_short(self, spans: _ShortSpans) -> None:
        """Let the thread hash these spans, unless it was asked to before."""
        if spans.digests is None:
            assert self._span_digests is not None
            spans.digests = self._submit(self._span_digests, spans.records)
            spans.records = []
            self._short = _ShortSpans()

    def _submit(self, work: Callable[..., T], *given: Any) -> Future[T]:
        """Let the thread do some work; returns when at most AHEAD pieces are left to it."""
        submitted = self._thread.submit(work, *given)
        self._under_way.append(submitted)
        while len(self._under_way) > AHEAD:
            self._under_way.popleft().result()
        return submitted

    def __enter__(self) -> RunningHashes:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


class _ShortSpans:
    """Spans that are hashed in one call.

    Attributes:
        records: The records of each span.
        size: Their size in bytes.
        digests: Gives the digests of the spans, once the thread was asked for them.
    """

    def __init__(self) -> None:
        self.records: list[Sequence[bytes]] = []
        self.size = 0
        self.digests: Future[list[bytes]] | None = None

    def add(self, records: Sequence[bytes], size: int, hash_them: Callable[[_ShortSpans], None]) -> Callable[[], bytes]:
        """Add a span of this size; returns a function that gives its digest, and asks for it with `hash_them`."""
        place = len(self.records)
        self.records.append(records)
        self.size += size

        def digest() -> bytes:
            hash_them(self)
            assert self.digests is not None
            return self.digests.result()[place]

        return digest


def _hash(digest: hashlib._Hash, some: Sequence[bytes]) -> None:
    digest.update(b"".join(some))
