"""The thread that writes traces, and its queue. processor.py has the steps, and what happens when the log is away."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections import OrderedDict
from typing import NamedTuple

from refold.agents.adapters.openai_agents.spans import EndedSpan, SpanKey, log_safe
from refold.agents.adapters.openai_agents.trace_runs import TraceHead, TraceRuns
from refold.agents.adapters.openai_agents.trace_steps import TracedStep, TraceEnd, TraceSteps
from refold.agents.adapters.quoting import quoted
from refold.agents.log import AgentLog, open_log
from refold.agents.recorder.context import NOWHERE, OWN_THREADS, SCOPE
from refold.agents.recorder.plain import decoded
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import RefoldError, StorageError
from refold.streams.deadline import Deadline
from refold.streams.open import require_openable

RETRY_S = 0.2
RETRY_MAX_S = 10.0
REFUSED_MAX = 3
FINISHED_MAX = 1024
UNNAMED = "Agent workflow"

logger = logging.getLogger("refold.openai_agents")


class TraceBegun(NamedTuple):
    """A trace began.

    Attributes:
        name: The name of its workflow; empty if only its spans are known.
        source: As in TraceHead.
        at: When it began, in microseconds since 1970.
    """

    trace: str
    name: str
    group: str | None
    metadata: bytes
    source: str
    at: int


class TraceDone(NamedTuple):
    """A trace ended.

    Attributes:
        at: When it ended, in microseconds since 1970.
    """

    trace: str
    at: int


class _LostSpan(NamedTuple):
    trace: str


class _FlushRequest(NamedTuple):
    done: threading.Event
    is_last: bool


_Event = TraceBegun | TraceDone | SpanKey | EndedSpan | _LostSpan | _FlushRequest


class _OpenTrace:
    """A trace that is not finished.

    Attributes:
        done_at: When the SDK ended it, in microseconds since 1970; 0 before that.
        lost: The number of spans whose content was dropped.
    """

    def __init__(self, begun: TraceBegun, *, is_late: bool = False) -> None:
        name = begun.name or UNNAMED
        run = quoted(begun.trace)
        self.begun = begun
        self.head = TraceHead(
            run, begun.trace, name, name, None, begun.at, begun.source, begun.group, decoded(begun.metadata)
        )
        self.steps = TraceSteps(name, begun.source)
        self.done_at = begun.at if is_late or not begun.name else 0
        self.lost = 0
        self.has_steps = False


class _Piece(NamedTuple):
    head: TraceHead
    what: TracedStep | TraceEnd


class TraceWriter:
    """Queues what happens in traces, and writes it in a thread of its own, which begins with the first trace."""

    def __init__(
        self, log: str | os.PathLike[str] | AgentLog | None, redact: Redact | None, queue_bytes_max: int,
        retry_s: float = RETRY_S,
    ) -> None:  # fmt: skip
        """Set up the writer.

        Args:
            log, redact, queue_bytes_max: As for RefoldTracingProcessor.
            retry_s: How long after a failed write it is first repeated, seconds.

        Raises:
            InputError: As for RefoldTracingProcessor.
        """
        self._retry_s = retry_s
        self._given = log if isinstance(log, AgentLog) else None
        self._url = None if log is None or isinstance(log, AgentLog) else os.fspath(log)
        if self._given is None:
            require_openable(self._url)
        self._redact = redact
        self._bytes_max = queue_bytes_max
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._held_bytes = 0
        self._has_overflowed = False
        self._is_closed = False
        self._deadline: Deadline | None = None
        # The thread's own.
        self._traces: dict[str, _OpenTrace] = {}
        self._finished: OrderedDict[str, TraceBegun] = OrderedDict()  # the latest
        self._pieces: list[_Piece] = []
        self._flushes: list[_FlushRequest] = []
        self._taken_bytes = 0
        self._log: AgentLog | None = None
        self._runs: TraceRuns | None = None
        self._at = -1  # the piece that is being written
        self._refused = 0
        self._is_down = False

    # In the agent's threads

    def put(self, event: _Event) -> None:
        """Queue what happened."""
        with self._lock:
            if self._is_closed:
                return
            if self._thread is None:
                self._start()
        self._events.put(event)

    def put_span(self, span: EndedSpan) -> None:
        """Queue a span; without its content, if too much is queued."""
        with self._lock:
            is_over = self._held_bytes + len(span.data) > self._bytes_max
            is_first, self._has_overflowed = is_over and not self._has_overflowed, self._has_overflowed or is_over
            if not is_over:
                self._held_bytes += len(span.data)
        if is_first:
            logger.error("more than %d bytes of spans wait for the log: the content of others is lost", self._bytes_max)
        if is_over:
            self.put(_LostSpan(span.key.trace))
            span = span._replace(data=b"{}")
        self.put(span)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is durable. Returns whether it is."""
        return self._ask(timeout_s, is_last=False)

    def close(self, timeout_s: float) -> None:
        """Write what is queued, end the open traces, and end the thread; what is left after the time is lost."""
        self._deadline = Deadline(timeout_s)
        if not self._ask(timeout_s, is_last=True):
            logger.error("the newest traces may be lost: the log was not written within %g s", timeout_s)
        elif self._thread is not None:
            self._thread.join()

    def _ask(self, timeout_s: float, *, is_last: bool) -> bool:
        request = _FlushRequest(threading.Event(), is_last)
        with self._lock:
            if self._is_closed or self._thread is None:
                self._is_closed = self._is_closed or is_last
                return True
            self._is_closed = is_last
            self._events.put(request)
        self._hurry.set()
        return request.done.wait(timeout_s)

    def _start(self) -> None:
        # The thread belongs to no run, although a run's code may be what starts it.
        token = SCOPE.set(NOWHERE)
        try:
            self._thread = threading.Thread(target=self._run, name=f"{OWN_THREADS}openai-agents", daemon=True)
            self._thread.start()
        finally:
            SCOPE.reset(token)

    # In the thread

    def _run(self) -> None:
        wait_s = self._retry_s
        while True:
            try:
                self._take_queued()
                self._write()
            except Exception as error:
                if self._prepare_retry(error):
                    wait_s = self._retry_s
                if self._deadline is not None and self._deadline.is_past:
                    return self._abandon_pieces()
                left_s = wait_s if self._deadline is None else min(wait_s, self._deadline.left_s)
                self._hurry.wait(left_s)
                self._hurry.clear()
                wait_s = min(wait_s * 2, RETRY_MAX_S) if self._deadline is None else self._retry_s
                continue
            wait_s = self._retry_s
            is_last = any(each.is_last for each in self._flushes)
            if is_last:
                self._close_own_log()
            for each in self._flushes:
                each.done.set()
            self._flushes.clear()
            if is_last:
                return

    def _take_queued(self) -> None:
        """Take what is queued; wait for it if there is nothing else to do."""
        try:
            event = self._events.get(block=not self._pieces and not self._flushes)
            while True:
                self._take(event)
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _take(self, event: _Event) -> None:
        if isinstance(event, _FlushRequest):
            self._flushes.append(event)
            if event.is_last:
                for trace in [*self._traces.values()]:
                    self._finish(trace, trace.done_at)
        elif isinstance(event, TraceBegun):
            if event.trace in self._traces:
                self._finish(self._traces[event.trace], event.at)
            self._traces[event.trace] = _OpenTrace(event)
        elif isinstance(event, SpanKey):
            self._trace(event.trace).steps.begin(event)
        elif isinstance(event, EndedSpan):
            self._taken_bytes += len(event.data)
            trace = self._trace(event.key.trace)
            for step in trace.steps.take(event._replace(data=log_safe(event.data))):
                self._add_step(trace, step)
            self._finish_if_done(trace)
        elif event.trace in self._traces:
            trace = self._traces[event.trace]
            if isinstance(event, TraceDone):
                trace.done_at = event.at
                self._finish_if_done(trace)
            else:
                trace.lost += 1

    def _trace(self, trace: str) -> _OpenTrace:
        """Return an open trace. If its run has ended, this is another one, which ends with its spans."""
        found = self._traces.get(trace)
        if found is None:
            begun = self._finished.get(trace) or TraceBegun(trace, "", None, b"null", "", 1)
            found = self._traces[trace] = _OpenTrace(begun, is_late=True)
        return found

    def _finish_if_done(self, trace: _OpenTrace) -> None:
        if trace.done_at and not trace.steps.open:
            self._finish(trace, trace.done_at)

    def _finish(self, trace: _OpenTrace, at: int) -> None:
        steps, end = trace.steps.end(at)
        for step in steps:
            self._add_step(trace, step)
        trace.head.missed_spans = trace.lost
        self._pieces.append(_Piece(trace.head, end))
        self._traces.pop(trace.begun.trace, None)
        self._finished[trace.begun.trace] = trace.begun
        if len(self._finished) > FINISHED_MAX:
            self._finished.popitem(last=False)

    def _add_step(self, trace: _OpenTrace, step: TracedStep) -> None:
        head, steps = trace.head, trace.steps
        if not trace.has_steps:
            trace.has_steps = True
            head.agent = steps.agent or head.name
            head.name = trace.begun.name or steps.workflow or head.name
            head.input = steps.input
            head.started_at = head.started_at or step.started_at
        self._pieces.append(_Piece(head, step))

    def _write(self) -> None:
        """Write all pieces, and make them durable."""
        if self._pieces:
            self._at = -1
            if self._runs is None:
                self._log = self._given or self._log or open_log(self._url)
                self._runs = TraceRuns(self._log, self._redact)
            for at, (head, what) in enumerate(self._pieces):
                self._at = at
                if isinstance(what, TraceEnd):
                    self._runs.put_end(head, what)
                else:
                    self._runs.put_step(head, what)
            self._runs.flush()
            self._pieces.clear()
            if self._is_down:
                self._is_down = False
                logger.warning("traces are recorded again")
        self._refused = 0
        with self._lock:
            self._held_bytes -= self._taken_bytes
            self._taken_bytes = 0

    def _prepare_retry(self, error: Exception) -> bool:
        """Prepare for another attempt. A piece that is refused again and again is dropped; return whether one was."""
        runs, self._runs = self._runs, None
        is_away = isinstance(error, (StorageError, OSError))
        if not is_away and runs is not None and 0 <= self._at < len(self._pieces):
            self._refused += 1
            if self._refused >= REFUSED_MAX:
                return self._drop(runs, error)
        elif not self._is_down:
            self._is_down = True
            logger.warning(
                "traces are held in memory until the log can be written: %s",
                error,
                exc_info=not _is_refold_error(error),
            )
        if is_away:
            self._close_own_log()
        return False

    def _drop(self, runs: TraceRuns, error: Exception) -> bool:
        try:
            runs.flush()
        except Exception:  # then nothing is dropped yet
            return False
        head, what = self._pieces[self._at]
        head.missed_steps += not isinstance(what, TraceEnd)
        del self._pieces[: self._at + 1]
        self._refused = 0
        logger.error("a step of trace %s is not recorded, the log refuses it: %s", head.trace, error)
        return True

    def _close_own_log(self) -> None:
        """Close the log, if it was opened here."""
        log, self._log = self._log, None
        if log is not None and self._given is None:
            try:
                log.close()
            except Exception as error:
                logger.warning("the log could not be closed: %s", error)

    def _abandon_pieces(self) -> None:
        logger.error("%d steps and ends of traces are lost: the log cannot be written", len(self._pieces))
        self._close_own_log()
        for each in self._flushes:
            each.done.set()


def _is_refold_error(error: Exception) -> bool:
    return isinstance(error, RefoldError)
