"""Requests of OTLP for tests: spans and log records of one trace, and what is recorded of them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from refold import AgentLog
from refold.agents.adapters.otlp.requests import JSON, SentLog, decode_logs
from refold.agents.adapters.otlp.signals import Sent, observe_sent
from refold.agents.journal.record import Recording
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder

START = 1_790_000_000_000_000_000
TRACE = f"{1:032x}"


def record(log: AgentLog, spans: Iterable[Sent]) -> None:
    recorder = Recorder(TypeCatalog(log.port.registry, {}, shipped_types()), log.append)
    for each in spans:
        observe_sent(each, recorder.observe)
    log.flush()


def value(given: Any) -> dict[str, Any]:
    """Return a value in OTLP's form."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(each) for each in given]}}
    return {"stringValue": given}


def span(
    number: int, attributes: Mapping[str, Any], *, parent: int = 0, name: str = "span", **more: Any
) -> dict[str, Any]:
    """Return a span of TRACE that began `number` ms after the start and took 1 ms."""
    return {
        "traceId": TRACE, "spanId": f"{number:016x}", **({"parentSpanId": f"{parent:016x}"} if parent else {}),
        "name": name, "startTimeUnixNano": str(START + number * 1_000_000),
        "endTimeUnixNano": str(START + (number + 1) * 1_000_000),
        "attributes": [{"key": key, "value": value(each)} for key, each in attributes.items()], **more,
    }  # fmt: skip


def request(*spans: dict[str, Any], service: str = "desk") -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": value(service)}]}
    return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [*spans]}]}]}).encode()


def log_record(number: int, name: str, span_id: int = 1, **more: Any) -> dict[str, Any]:
    """Return a log record of TRACE, `number` microseconds after the start."""
    ids = {"traceId": TRACE, "spanId": f"{span_id:016x}"} if span_id else {}
    return {"timeUnixNano": str(START + number * 1_000), "eventName": name, **ids, **more}


def members(**given: Any) -> dict[str, Any]:
    """Return a body with these members, in OTLP's form."""
    return {"kvlistValue": {"values": [{"key": key, "value": each} for key, each in given.items()]}}


def log_request(*records: dict[str, Any]) -> bytes:
    resource = {"attributes": [{"key": "service.name", "value": value("desk")}]}
    return json.dumps({"resourceLogs": [{"resource": resource, "scopeLogs": [{"logRecords": [*records]}]}]}).encode()


def logs_of(*records: dict[str, Any]) -> list[SentLog]:
    return decode_logs(log_request(*records), JSON)


def as_protobuf(body: bytes) -> bytes:
    """Return a request in JSON as protobuf. protobuf's own JSON has ids in base64."""
    tree = json.loads(body)
    is_logs = "resourceLogs" in tree
    for of_resource in tree["resourceLogs" if is_logs else "resourceSpans"]:
        for of_scope in of_resource["scopeLogs" if is_logs else "scopeSpans"]:
            for each in of_scope["logRecords" if is_logs else "spans"]:
                for name in {"traceId", "spanId", "parentSpanId"} & each.keys():
                    each[name] = base64.b64encode(bytes.fromhex(each[name])).decode()
    message: Any = (ExportLogsServiceRequest if is_logs else ExportTraceServiceRequest)()
    ParseDict(tree, message, ignore_unknown_fields=True)
    return bytes(message.SerializeToString())


def known_by_both(run: Recording) -> tuple[Any, ...]:
    """Return what a received and an imported recording have in common: all but ids, times of the whole, and spans."""
    steps = tuple((each.number, each.attempts, _named(each.delta), each.result, each.outcome) for each in run.steps)
    return run.title, run.input, run.output, _named(run.state), steps, run.metadata


def _named(tree: Any) -> Any:
    """Return a tree of messages with the name alone of each span."""
    if isinstance(tree, list | tuple):
        return [_named(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.get("role") == "record":
        tree = {**tree, "content": json.loads(tree["content"])}
    made = {key: _named(each) for key, each in tree.items() if key != "parent_span_id"}
    return made | ({"span": made["span"]["name"]} if "span" in made else {})


CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
LOOK = members(
    id=value("c1"), type=value("function"),
    function=members(name=value("look"), arguments=value('{"n": 1}')),
)  # fmt: skip
OLDER = [
    log_record(1, "gen_ai.system.message", body=members(content=value("Be brief."))),
    log_record(2, "gen_ai.user.message", body=members(content=value("What is it?"))),
    log_record(3, "gen_ai.choice", body=members(
        index=value(0), finish_reason=value("tool_calls"),
        message=members(role=value("assistant"), tool_calls={"arrayValue": {"values": [LOOK]}}))),
    log_record(1_001, "gen_ai.tool.message", 2, body=members(id=value("c1"), content=value("two"))),
    # An older record has the name of its event as an attribute.
    {**log_record(1_002, "", 2, body=members(index=value(0), message=members(content=value("It is two.")))),
     "attributes": [{"key": "event.name", "value": value("gen_ai.choice")}]},
]  # fmt: skip
TODAY = [
    log_record(3, "gen_ai.client.inference.operation.details", attributes=[
        {"key": "gen_ai.system_instructions", "value": value('[{"type": "text", "content": "Be brief."}]')},
        {"key": "gen_ai.input.messages", "value": value(
            '[{"role": "user", "parts": [{"type": "text", "content": "What is it?"}]}]')},
        {"key": "gen_ai.output.messages", "value": value(json.dumps([{"role": "assistant", "parts": [
            {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"n": 1}}]}]))},
    ]),
    log_record(1_002, "gen_ai.client.inference.operation.details", 2, attributes=[
        {"key": "gen_ai.input.messages", "value": value(json.dumps([{"role": "tool", "parts": [
            {"type": "tool_call_response", "id": "c1", "response": "two"}]}]))},
        {"key": "gen_ai.output.messages", "value": value(
            '[{"role": "assistant", "parts": [{"type": "text", "content": "It is two."}]}]')},
    ]),
]  # fmt: skip
TWO_CALLS = [span(1, CALL, name="chat"), span(2, CALL, name="chat")]
