"""Record received requests in a log, by one thread, many at once.

1. A request waits in a queue of at most QUEUED_BYTES. A full queue refuses it, and its sender tries again later.
   The kernel, if there is one, has observed most spans before (native.py), in the thread of their request.
2. The thread takes what waits, up to TOGETHER_BYTES. Each span or log record is checked as a whole before any of it is
   recorded; one that cannot be observed is rejected, and counted in its request's answer.
3. The log is flushed. Only then are the requests answered: what was acknowledged is durable, whatever ends the process.
4. If the log fails, the requests of this turn are refused, and their senders try again. Some of them may be recorded:
   then they are the same observations again. The log is opened anew for the next turn.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from refold.agents.adapters.otlp.counts import ReceiverCounts, Refused
from refold.agents.adapters.otlp.native import NativeObserver, ObservedSpans, native_observer
from refold.agents.adapters.otlp.requests import PROTOBUF, SentLog, SentSpan
from refold.agents.adapters.otlp.signals import TRACES, Recorded, Sent, Signal, observe_sent
from refold.agents.log import AgentLog
from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, RefoldError
from refold.avro.kernel import StatedParts
from refold.avro.observation import Observation, type_of
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold.streams.writer_types import EncodedObservation

QUEUED_BYTES = 64 << 20
TOGETHER_BYTES = 4 << 20
REASON_CHARACTERS_MAX = 300
_NO_CONTENTS: Mapping[bytes, bytes] = MappingProxyType({})


class Unavailable(Exception):
    """Nothing can be recorded at the moment; the sender may try again."""

    def __init__(self, said: str, reason: Refused) -> None:
        super().__init__(said)
        self.reason = reason


Item: TypeAlias = Sent | ObservedSpans
"""A part of a request."""


class _Waiting(NamedTuple):
    items: list[Item]
    size_bytes: int
    without_id: int
    done: Future[Recorded]


class OtlpIntake:
    """The queue of requests, and the thread that records them.

    Attributes:
        counts: The counts for metrics.
    """

    def __init__(
        self, open_log: Callable[[], AgentLog], own_types: Mapping[str, TypeDefinition], say: Callable[[str], None],
        queued_bytes: int = QUEUED_BYTES,
    ) -> None:  # fmt: skip
        """Start the thread, once the log is open.

        Args:
            open_log: Opens the log, again after each failure.
            own_types: The user's own types, by name.
            say: Called with a line for the operator.
            queued_bytes: How many bytes of requests may wait.

        Raises:
            RefoldError: The log cannot be opened.
        """
        self._open_log = open_log
        self._own_types = own_types
        self._say = say
        self._queued_max = queued_bytes
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._change = threading.Condition()
        self._is_closing = False
        self.counts = ReceiverCounts()
        self._log: AgentLog | None = None
        self._origins: set[str] = set()  # those that the open log has
        self._types: tuple[int, TypeCatalog] | None = None  # with the number of the log's definitions
        self._observer: NativeObserver | None = None  # for these types
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="refold-receive", daemon=True)
        self._thread.start()
        opened.result()

    def decode(self, signal: Signal, body: bytes, content_type: str) -> tuple[Sequence[Item], int]:
        """Decode a request, in any thread; the arguments and the result are those of `Signal.decode`.

        Raises:
            InputError: The body is not a request.
        """
        observer = self._observer
        if observer is not None and signal is TRACES and content_type == PROTOBUF:
            decoded = observer.decode(body)
            if decoded is not None:
                return decoded
        return signal.decode(body, content_type)

    def put(self, items: Sequence[Item], size_bytes: int, without_id: int = 0) -> Future[Recorded]:
        """Queue the spans or log records of a request.

        Args:
            items: The spans or log records.
            size_bytes: The size of the request, decompressed.
            without_id: How many other spans of the request were rejected because their ids are not valid; for metrics.

        Returns:
            What was recorded, when it is durable. It raises Unavailable if the log failed.

        Raises:
            Unavailable: The queue is full, or this is closing.
        """
        waiting = _Waiting([*items], size_bytes, without_id, Future())
        with self._change:
            if self._is_closing:
                raise Unavailable("the receiver is ending", "ending")
            if self._queue and self._queued_bytes + size_bytes > self._queued_max:
                raise Unavailable("too many requests wait for the log", "busy")
            self._queue.append(waiting)
            self._queued_bytes += size_bytes
            self.counts.queued(self._queued_bytes)
            self._change.notify()
        return waiting.done

    def close(self) -> None:
        """Record what waits, and close the log."""
        with self._change:
            self._is_closing = True
            self._change.notify()
        self._thread.join()

    def _run(self, opened: Future[None]) -> None:
        try:
            self._log = self._open_log()
            self._types_of(self._log)
        except BaseException as error:
            self._close_log()
            opened.set_exception(error)
            return
        opened.set_result(None)
        while together := self._next():
            self._record_together(together)
        self._close_log()

    def _next(self) -> list[_Waiting]:
        """Wait for requests, and return some; none if this is closing and none are left."""
        with self._change:
            self._change.wait_for(lambda: self._queue or self._is_closing)
            together: list[_Waiting] = []
            size = 0
            while self._queue and (not together or size + self._queue[0].size_bytes <= TOGETHER_BYTES):
                together.append(self._queue.popleft())
                size += together[-1].size_bytes
            self._queued_bytes -= size
            self.counts.queued(self._queued_bytes)
            return together

    def _record_together(self, together: list[_Waiting]) -> None:
        began_s = time.monotonic()
        try:
            if self._log is None:
                self._log = self._open_log()
            types = self._types_of(self._log)
            done = [self._record(self._log, types, each.items) for each in together]
            self._log.flush()
        except (RefoldError, OSError) as error:
            self.counts.failed()
            self._say(f"nothing can be recorded: {error}")
            self._close_log()
            for each in together:
                each.done.set_exception(Unavailable("the log is not available", "log"))
            return
        except BaseException as error:  # a defect: their senders must get the error, and later ones be served
            self._close_log()
            for each in together:
                each.done.set_exception(error)
            return
        self.counts.committed(time.monotonic() - began_s)
        for each, recorded in zip(together, done, strict=True):
            are_logs = bool(each.items) and isinstance(each.items[0], SentLog)
            rejected = each.without_id + recorded.rejected
            self.counts.taken("log_records" if are_logs else "spans", recorded.items, rejected)
            each.done.set_result(recorded)

    def _types_of(self, log: AgentLog) -> TypeCatalog:
        """Return the log's types. They are made again only if the log has others: their codecs cost 20 ms."""
        count = len(log.port.registry)
        if self._types is None or self._types[0] != count:
            types = TypeCatalog(log.port.registry, self._own_types, shipped_types())
            self._types, self._observer = (count, types), native_observer(types)
        return self._types[1]

    def _record(self, log: AgentLog, types: TypeCatalog, items: list[Item]) -> Recorded:
        recorded, rejected, why = 0, 0, ""
        made: list[tuple[Observation, bytes, TypeDefinition, Mapping[bytes, bytes], bytes | None]] = []
        recorder = Recorder(types, lambda *each: made.append(each))
        for sent in items:
            if isinstance(sent, ObservedSpans):
                self._take_observed(log, sent)
                recorded += sent.number
                continue
            made.clear()
            try:
                origin = observe_sent(sent, recorder.observe, self._origins)
            except InputError as error:
                named = f"span {sent.span_id}" if isinstance(sent, SentSpan) else "log record"
                rejected, why = rejected + 1, why or f"{named}: {error}"[:REASON_CHARACTERS_MAX]
                continue
            for each in made:
                log.append(*each)
            self._origins.add(origin)
            recorded += 1
        return Recorded(recorded, rejected, why)

    def _take_observed(self, log: AgentLog, spans: ObservedSpans) -> None:
        for stated in [spans.stated] if spans.origin in self._origins else [spans.origin_stated, spans.stated]:
            log.append_encoded(_encoded(stated, spans.definitions))
        self._origins.add(spans.origin)

    def _close_log(self) -> None:
        log, self._log = self._log, None
        self._origins.clear()
        self._types = None
        if log is not None:
            with suppress(RefoldError, OSError):
                log.close()


def _encoded(stated: StatedParts, definitions: Mapping[str, TypeDefinition]) -> list[EncodedObservation]:
    """Return what the kernel observed as a log takes it. The contents, which are few, are with the first."""
    made, contents = stated
    blobs = iter([dict(contents)])
    return [
        EncodedObservation(entity, own, definitions[type_of(entity)], data, next(blobs, _NO_CONTENTS))
        for entity, own, data in made
    ]
