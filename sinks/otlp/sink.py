"""Sends traces of recorded runs to an OTLP receiver: one trace for each run, after the run ended.

1. The position is a cut of the log, in a file (sink.py); without one it begins at the log's beginning.
2. A batch names runs: by the entities of runs, of their steps, or of an imported conversation. Each of these runs that
   has ended is read whole, as it is at the log's end, and mapped (agents/otel.py). Span ids are computed from the run's
   id and the position in the run. So a span that is sent twice has the same id, and a run that was resumed or got a
   late step is sent again under the same ids.
3. Its spans are sent, children first, in bounded requests; each is acknowledged before the next (sending.py).
4. The position moves to the batch's cut only when the whole batch is acknowledged. A process that is killed before that
   sends the batch again. There is no queue.

So the receiver has the whole trace of every run that has ended, with its steps, in the position's cut. The trace equals
the result of `otel.spans`. A run with missing steps is named again by the batch with the next step. A run whose content
has expired is skipped, with a warning.

OTLP has no transactions, and no request that reads stored spans. A receiver that keys spans by id stores each once; one
that appends stores spans of an interrupted batch twice.

The position is stored in a file of the sink, because a receiver cannot store it.

The file is replaced atomically and synced after the batch that it covers was sent. A process that is killed in between
sends the last batch again, under the same ids. Only the process that holds the file's lock sends; another process waits
for the lock. The position is not in the log, so that a sink needs only a reader's rights there.

Spans of recorded runs as OTLP requests, by OpenTelemetry's own encoding; bounded in spans and in bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from refold.agents import otel
from refold.agents.keys.choose import vault_of
from refold.agents.recorder.observations import run_entity
from refold.agents.recordings.fields import Fields, PartMissing
from refold.agents.recordings.load import has_ended, load
from refold.agents.vault import ValueCipher
from refold.avro.errors import Expired, InputError, NotAnswerable
from refold.avro.files import read_bounded
from refold.avro.observation import type_of
from refold.sinks.otlp.sending import Rejected, Sender, TooLarge, sender_of, too_large
from refold.sinks.otlp.settings import Target, Wire, target_of, wire_of
from refold.sinks.port import Batch, Load, Sink, SinkBusy, SinkRefused
from refold.streams.client import Log
from refold.streams.cut import Cut, parse_cut
from refold.streams.durable import replace_file
from refold.streams.log.port import LogPort
from refold.streams.open import log_from_port, process_context

SPANS_MAX = 512
BYTES_MAX = 1 << 20
_UNKNOWN = "unknown_service"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def resource_of(agent: str) -> Resource:
    """Return the resource that OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES define. The default service name is the
    agent's.
    """
    given = Resource.create()
    if str(given.attributes.get(SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        return given.merge(Resource({SERVICE_NAME: agent or otel.SCOPE}))
    return given


def readable(span: otel.Span, resource: Resource) -> ReadableSpan:
    """Return an ended span in the form of OpenTelemetry's SDK."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(each.name, each.attributes, each.at * 1000) for each in span.events],
        links=[Link(_context(*span.link, is_remote=True))] if span.link else [],
        kind=SpanKind.CLIENT if span.is_remote else SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.started_at * 1000,
        end_time=span.ended_at * 1000,
        instrumentation_scope=InstrumentationScope(otel.SCOPE),
    )


def requests_of(spans: Iterable[ReadableSpan]) -> Iterator[ExportTraceServiceRequest]:
    """Yield the spans in order, in requests of at most SPANS_MAX spans and about BYTES_MAX bytes. A single span may be
    larger.
    """
    some: list[ReadableSpan] = []
    size = 0
    for span in spans:
        own = encode_spans([span]).ByteSize()
        if some and (len(some) == SPANS_MAX or size + own > BYTES_MAX):
            yield encode_spans(some)
            some, size = [], 0
        some.append(span)
        size += own
    if some:
        yield encode_spans(some)


def halves(request: ExportTraceServiceRequest) -> Sequence[ExportTraceServiceRequest]:
    """Return the same spans in two requests; [] for a single span."""
    flat = [
        (resource, scope, span)
        for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
    ]  # fmt: skip
    if len(flat) < 2:
        return []
    middle = len(flat) // 2
    found = []
    for part in (flat[:middle], flat[middle:]):
        half = ExportTraceServiceRequest()
        for resource, scope, span in part:
            of_resource = half.resource_spans.add(resource=resource.resource, schema_url=resource.schema_url)
            of_resource.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=[span])
        found.append(half)
    return found


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)


FORMAT = 1


class PositionFile:
    """The position file at a path. Creates missing folders."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def read(self) -> Cut | None:
        """Take the lock and return the stored cut.

        Returns:
            The cut; None before the first.

        Raises:
            SinkBusy: Another process holds the lock.
            SinkRefused: The file cannot be read.
        """
        self._lock_position()
        try:
            document = json.loads(read_bounded(self.path))
            if document["format"] != FORMAT:
                raise InputError(f"its format is {document['format']!r}, and {FORMAT} is known here")
            return parse_cut(document["cut"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, InputError) as error:
            raise SinkRefused(f"{self.path} holds no position ({error}); remove it, and every run is sent again, under "
                              "the ids it had") from None  # fmt: skip

    def write(self, cut: Cut) -> None:
        """Store a cut, durable on return.

        Raises:
            SinkBusy: The file cannot be written now.
        """
        try:
            replace_file(self.path, json.dumps({"format": FORMAT, "cut": str(cut)}))
        except OSError as error:
            raise SinkBusy(f"the position cannot be written to {self.path}: {error}", 5.0) from None

    def close(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _lock_position(self) -> None:
        if self._lock is not None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.path.with_name(f"{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise SinkRefused(f"{self.path}: the position cannot be kept there: {error}; name another place by "
                              "position=PATH in the receiver's URL") from None  # fmt: skip
        with contextlib.ExitStack() as undo:
            undo.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise SinkBusy(f"another process sends what {self.path} is the position of") from None
            undo.pop_all()
        self._lock = lock


FOLDER = ".refold-otlp"
SENT_HELD_MAX = 4_096
RUNS_AT_ONCE = 256

_log = logging.getLogger(__name__)


class OtlpSink(Sink):
    """Sends to one receiver. It must first be attached to a log, as `keep_up` does."""

    wants_history = False

    def __init__(self, target: Target, wire: Wire) -> None:
        self.name = target.url
        self._target = target
        self._sender: Sender = sender_of(target, wire)
        self._log: Log | None = None
        self._vault: ValueCipher | None = None
        self._file: PositionFile | None = None
        self._sent: OrderedDict[str, bytes] = OrderedDict()

    def attach(self, log: LogPort) -> None:
        if self._log is not None and self._log.port is log:
            return
        self._log = log_from_port(log, {}, process_context())
        self._vault = vault_of(self._log, os.environ)
        usual = Path(FOLDER, f"{log.log_id.hex()[:16]}-{sha256(self._target.url.encode()).hexdigest()[:8]}.json")
        self._file = PositionFile(Path(self._target.position).expanduser() if self._target.position else usual)

    def position(self) -> Cut:
        """The stored cut, or the log's beginning."""
        log = self._attached().port
        return self._position_file().read() or Cut(
            log.log_id, dict.fromkeys(range(log.partitions), 0), 0, log.registry.digest(0)
        )

    def load(self, load: Load) -> None:
        """Send the runs again whose types have a new definition: spans are made by the present definitions."""
        self._send(run for each in load.states() for run in _run_of(each.entity))
        self._position_file().write(load.cut)

    def write(self, batch: Batch) -> None:
        self._send(dict.fromkeys(run for each in batch.states for run in _run_of(each.entity)))
        self._position_file().write(batch.cut)

    def close(self) -> None:
        self._sender.close()
        if self._vault is not None:
            self._vault.close()
            self._vault = None
        if self._file is not None:
            self._file.close()

    def _attached(self) -> Log:
        assert self._log is not None, "attach it to a log first"
        return self._log

    def _keeper(self) -> ValueCipher:
        assert self._vault is not None, "attach it to a log first"
        return self._vault

    def _position_file(self) -> PositionFile:
        assert self._file is not None, "attach it to a log first"
        return self._file

    def _send(self, named: Iterable[str]) -> None:
        for run in self._ended_runs(named):
            spans = self._spans(run)
            digest = sha256(repr(spans).encode()).digest()
            if not spans or self._sent.get(run) == digest:
                continue
            resource = resource_of(str(spans[0].attributes.get("gen_ai.agent.name", "")))
            for request in requests_of(readable(each, resource) for each in reversed(spans)):
                self._send_one(run, request)
            self._sent[run] = digest
            while len(self._sent) > SENT_HELD_MAX:
                self._sent.popitem(last=False)

    def _send_one(self, run: str, request: ExportTraceServiceRequest) -> None:
        """Send one request, in halves if the receiver finds it too large."""
        waiting = [request]
        while waiting:
            one = waiting.pop()
            try:
                self._note(run, self._sender.send(one))
            except TooLarge as error:
                parts = halves(one)
                if not parts:
                    raise too_large(self._target, f"{error} (a span of run {run})") from None
                waiting += reversed(parts)

    def _note(self, run: str, rejected: Rejected) -> None:
        if not rejected.spans:
            if rejected.why:
                _log.warning("%s: of run %s: %s", self.name, run, rejected.why)
            return
        document = f"{self.name} took run {run}, and rejected {rejected.spans} of its spans: {rejected.why}"
        if not self._target.skips_rejected:
            raise SinkRefused(f"{document}; mend that at the receiver and start again, or go on without these spans by "
                              "rejected=skip in its URL")  # fmt: skip
        _log.warning("%s", document)

    def _ended_runs(self, named: Iterable[str]) -> Iterator[str]:
        """The runs that have ended by now."""
        log, vault = self._attached(), self._keeper()
        waiting = iter(named)
        while some := {run_entity(run): run for run in islice(waiting, RUNS_AT_ONCE)}:
            views = log.states(some, log.point().cut)
            for name, run in some.items():
                if name in views and has_ended(Fields(views[name], vault)):
                    yield run

    def _spans(self, run: str) -> list[otel.Span]:
        """The spans of a run as it is now; [] if it cannot be read."""
        system = self._target.system or otel.UNKNOWN_SYSTEM
        try:
            recording = load(self._attached(), run, self._keeper())
        except PartMissing:
            return []  # what is on its way names the run again
        except Expired as error:
            _log.warning("%s: run %s is passed over: %s", self.name, run, error)
            return []
        except NotAnswerable as error:
            raise SinkRefused(f"run {run} cannot be read: {error}") from error
        return otel.spans(recording, system=system, content=self._target.content)


def _run_of(entity: str) -> Iterator[str]:
    """The run that an entity belongs to, if any."""
    kind, rest = type_of(entity), entity.partition("/")[2]
    if kind in ("run", "agent_session"):  # an imported run and its conversation have one id
        yield rest
    elif kind in ("step", "action") and "#" in rest:
        yield rest.rpartition("#")[0]


def open_sink(url: str) -> Sink:
    """Open the receiver at a URL.

    Raises:
        InputError: The URL or a variable of OpenTelemetry is invalid.
    """
    return OtlpSink(target_of(url), wire_of(os.environ))
