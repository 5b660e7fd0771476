"""Record received requests in a log, by one thread, many at once.

1. A request waits in a queue of at most QUEUED_BYTES. A full queue refuses it, and its sender tries again later.
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
from typing import NamedTuple

from refold.agents.adapters.otlp.counts import ReceiverCounts, Refused
from refold.agents.adapters.otlp.requests import SentLog, SentSpan
from refold.agents.adapters.otlp.signals import Recorded, Sent, observe_sent
from refold.agents.log import AgentLog
from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, RefoldError
from refold.avro.observation import Observation
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder

QUEUED_BYTES = 64 << 20
TOGETHER_BYTES = 4 << 20
REASON_CHARACTERS_MAX = 300


class Unavailable(Exception):
    """Nothing can be recorded at the moment; the sender may try again."""

    def __init__(self, said: str, reason: Refused) -> None:
        super().__init__(said)
        self.reason = reason


class _Waiting(NamedTuple):
    items: list[Sent]
    size_bytes: int
    without_id: int
    done: Future[Recorded]


class OtlpIntake:
    """The queue of requests, and the thread that records them. counts: for metrics."""

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
        opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(opened,), name="refold-receive", daemon=True)
        self._thread.start()
        opened.result()

    def put(self, items: Sequence[Sent], size_bytes: int, without_id: int = 0) -> Future[Recorded]:
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
        except BaseException as error:
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
            self._types = count, TypeCatalog(log.port.registry, self._own_types, shipped_types())
        return self._types[1]

    def _record(self, log: AgentLog, types: TypeCatalog, items: list[Sent]) -> Recorded:
        rejected, why = 0, ""
        made: list[tuple[Observation, bytes, TypeDefinition, Mapping[bytes, bytes], bytes | None]] = []
        recorder = Recorder(types, lambda *each: made.append(each))
        for sent in items:
            made.clear()
            try:
                origin = observe_sent(sent, recorder.observe, self._origins)
            except InputError as error:
                named = f"span {sent.span_id}" if isinstance(sent, SentSpan) else "log record"
                rejected, why = rejected + 1, why or f"{named}: {error}"[:REASON_CHARACTERS_MAX]
                continue
            for each in made:
                log.take(*each)
            self._origins.add(origin)
        return Recorded(len(items) - rejected, rejected, why)

    def _close_log(self) -> None:
        log, self._log = self._log, None
        self._origins.clear()
        self._types = None
        if log is not None:
            with suppress(RefoldError, OSError):
                log.close()
