"""Compares what a receiver holds about a log's runs with what agents/otel.py makes of their recordings."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from refold.agents import otel
from refold.agents.log import AgentLog
from refold.sinks.otlp.sink import OtlpSink, open_sink
from refold.sinks.port import Sink
from refold.sinks.run import SinkReport, keep_up
from refold_tests.otlp_receiver import Receiver

Told = dict[str, Any]


@contextmanager
def sending(url: str, position: Path, *more: str) -> Iterator[Sink]:
    """Open the sink, with its position in a file."""
    query = "&".join([f"position={position}", *more])
    with closing(open_sink(f"{url}?{query}")) as sink:
        yield sink


def send(log: AgentLog, url: str, position: Path, *more: str, changes_max: int = 5_000) -> SinkReport:
    """Send everything to the end of the log, as a process that then ends."""
    log.flush()
    with sending(url, position, *more) as sink:
        assert isinstance(sink, OtlpSink)
        return keep_up(log.port, sink, follow=False, stop=threading.Event(), changes_max=changes_max)


def expected(log: AgentLog, runs: Iterable[str], *, content: bool = True) -> dict[str, Told]:
    """Return the spans of some runs by id, computed from their recordings."""
    mapped = [span for run in runs for span in otel.spans(log.recording(run), content=content)]
    return {f"{each.span_id:016x}": _of_mapping(each) for each in mapped}


def held(receiver: Receiver) -> dict[str, Told]:
    """Return the last received version of each span, by id."""
    found: dict[str, Told] = {}
    for span in receiver.spans:
        found[span.span_id.hex()] = _of_wire(span)
    return found


def told_twice(receiver: Receiver) -> dict[str, int]:
    """Return the spans of which the receiver got different versions, with the number of versions."""
    said: dict[str, list[Told]] = {}
    for span in receiver.spans:
        told, before = _of_wire(span), said.setdefault(span.span_id.hex(), [])
        if told not in before:
            before.append(told)
    return {span: len(each) for span, each in said.items() if len(each) > 1}


def _of_mapping(span: otel.Span) -> Told:
    return {
        "trace": f"{span.trace_id:032x}",
        "parent": f"{span.parent_id:016x}" if span.parent_id else "",
        "name": span.name,
        "kind": Span.SPAN_KIND_CLIENT if span.is_remote else Span.SPAN_KIND_INTERNAL,
        "times": (span.started_at * 1000, span.ended_at * 1000),
        "attributes": {name: _listed(value) for name, value in span.attributes.items()},
        "events": [(e.name, e.at * 1000, {name: _listed(value) for name, value in e.attributes.items()})
                   for e in span.events],
        "error": span.error,
        "links": [] if span.link is None else [(f"{span.link[0]:032x}", f"{span.link[1]:016x}")],
    }  # fmt: skip


def _of_wire(span: Span) -> Told:
    return {
        "trace": span.trace_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "times": (span.start_time_unix_nano, span.end_time_unix_nano),
        "attributes": {each.key: _value(each.value) for each in span.attributes},
        "events": [(e.name, e.time_unix_nano, {each.key: _value(each.value) for each in e.attributes})
                   for e in span.events],
        "error": span.status.message if span.status.code == 2 else None,
        "links": [(each.trace_id.hex(), each.span_id.hex()) for each in span.links],
    }  # fmt: skip


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, list | tuple) else value


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
