"""A processor of the OpenAI Agents SDK's traces that records each trace as a run of a log.

    from agents import add_trace_processor
    from refold.openai_agents import RefoldTracingProcessor

    add_trace_processor(RefoldTracingProcessor("file:.refold"))

1. The SDK calls the processor in the agent's thread. A span that ends is copied there, as JSON, and queued. Nothing
   else is done there: no lock is held while something is written, and every exception of ours is caught and logged.
2. One thread takes what is queued (trace_writer.py), turns it into steps (trace_steps.py) and writes these
   (trace_runs.py). A run begins in the log with its first step. What was taken at once is made durable at once.
3. A trace that ended, and whose spans all have, is a run that ended. Spans that end after their trace are waited for. A
   span of a trace whose run has ended begins another run, `TRACE.2`.
4. If the log cannot be written, that is logged once. The thread closes the log if it opened it, opens it again after
   RETRY_S, later at intervals up to RETRY_MAX_S, and continues from what the log has: no step is lost, none written
   twice. Meanwhile spans of at most `queue_bytes_max` are held. The content of further spans is dropped, and the run
   says so: if it has no failure of its own, it ends as failed, with refold.CaptureGap.
5. A step that the log refuses REFUSED_MAX times, although it can be read, is dropped and counted in the same way.
6. `force_flush` waits until everything queued is durable, at most FLUSH_S if the log is away. `shutdown`, which the SDK
   calls when the process exits, ends the open traces as `unknown` and waits at most its timeout [SHUTDOWN_S]. What is
   left then is logged, and lost. A killed process loses the turns that it was in, and what was queued in the last
   moments. Its runs stay open in the log.

Beside refold's own recording: in the code of a run that refold records (`log.run`), that run records the exchanges with
the models, by `run.client(...)`, because only exchanges can be replayed. The trace's run then holds which agent did
what, when, how it ended, and handoffs and guardrails. It holds no request and no answer, but names the run that does,
and is linked to it. In a replay nothing is recorded.

A child that was forked from this process records nothing.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import OrderedDict
from typing import Any

from agents.tracing import Span, Trace, TracingProcessor

from refold.agents.adapters.openai_agents.spans import ended, json_of, key_of
from refold.agents.adapters.openai_agents.trace_writer import TraceBegun, TraceDone, TraceWriter
from refold.agents.log import AgentLog
from refold.agents.recorder.context import SCOPE
from refold.agents.redaction.redactor import Redact

FLUSH_S = 30.0
SHUTDOWN_S = 5.0
QUEUE_BYTES_MAX = 256 << 20
_TRACES_KNOWN_MAX = 4096

logger = logging.getLogger("refold.openai_agents")


class RefoldTracingProcessor(TracingProcessor):
    """Records each trace of the SDK as a run of a log. It raises nothing in the agent's code, and waits for nothing
    there."""

    def __init__(
        self, log: str | os.PathLike[str] | AgentLog | None = None, *, redact: Redact | None = None,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
    ) -> None:  # fmt: skip
        """Set up the processor. The log is opened with the first trace.

        Args:
            log: Its URL, file:PATH or kafka://HOST:PORT/PREFIX, as for `refold.open`; or an open log. Call `shutdown`
                before you close that.
            redact: Decides which parts of a JSON tree may be written, as for `log.run` (docs/REDACTION.md).
            queue_bytes_max: How many bytes of spans are held while the log cannot be written.

        Raises:
            InputError: The URL is not a log's, or Kafka's client is not installed.
        """
        self._writer = TraceWriter(log, redact, queue_bytes_max)
        self._process = os.getpid()
        self._lock = threading.Lock()
        # For each trace, the run of refold in whose code it began: "" for none, None for a replay.
        self._sources: OrderedDict[str, str | None] = OrderedDict()

    def on_trace_start(self, trace: Trace) -> None:
        """As TracingProcessor."""
        try:
            group = getattr(trace, "group_id", None)
            metadata = json_of(getattr(trace, "metadata", None))
            self._begin(trace.trace_id, trace.name, None if group is None else str(group), metadata)
        except Exception:
            logger.exception("a trace is not recorded")

    def on_trace_end(self, trace: Trace) -> None:
        """As TracingProcessor."""
        try:
            if self._is_recorded(trace.trace_id):
                self._writer.put(TraceDone(trace.trace_id, _now()))
        except Exception:
            logger.exception("the end of a trace is not recorded")

    def on_span_start(self, span: Span[Any]) -> None:
        """As TracingProcessor."""
        try:
            if span.trace_id not in self._sources:  # the SDK continues a trace of another process
                self._begin(span.trace_id, "", None, b"null")
            if self._is_recorded(span.trace_id):
                self._writer.put(key_of(span))
        except Exception:
            logger.exception("a span is not recorded")

    def on_span_end(self, span: Span[Any]) -> None:
        """As TracingProcessor."""
        try:
            if self._is_recorded(span.trace_id):
                self._writer.put_span(ended(span, _now()))
        except Exception:
            logger.exception("a span is not recorded")

    def force_flush(self) -> None:
        """Return when everything that ended so far is durable; after FLUSH_S in any case."""
        try:
            if os.getpid() == self._process and not self._writer.flush(FLUSH_S):
                logger.warning("traces are not durable after %g s: the log cannot be written", FLUSH_S)
        except Exception:
            logger.exception("traces may not be durable")

    def shutdown(self, timeout: float | None = None) -> None:
        """Write what is left, end the open traces as `unknown`, and close the log if this object opened it.

        Args:
            timeout: How long this may take, seconds [SHUTDOWN_S].
        """
        try:
            if os.getpid() == self._process:
                self._writer.close(SHUTDOWN_S if timeout is None else timeout)
        except Exception:
            logger.exception("traces may not be durable")

    def _begin(self, trace: str, name: str, group: str | None, metadata: bytes) -> None:
        """Begin a trace. name: of its workflow; empty if the SDK did not say that it began."""
        run = SCOPE.get().run
        source: str | None = ""
        if run is not None:
            source = None if run.is_in_memory else run.id
        with self._lock:
            self._sources[trace] = source
            self._sources.move_to_end(trace)
            if len(self._sources) > _TRACES_KNOWN_MAX:
                self._sources.popitem(last=False)
        if self._is_recorded(trace):
            self._writer.put(TraceBegun(trace, name, group, metadata, source or "", _now()))

    def _is_recorded(self, trace: str) -> bool:
        return os.getpid() == self._process and self._sources.get(trace) is not None


def _now() -> int:
    return time.time_ns() // 1000
