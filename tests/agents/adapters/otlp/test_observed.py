"""Received spans: the observations of each, which do not depend on the others, and the runs that they become."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import refold
from refold.agents.adapters.otlp.requests import JSON, PROTOBUF, JsonPart, SentSpan, decode
from refold.agents.adapters.otlp.signals import Sent, observe_sent
from refold.agents.adapters.otlp.trees import tree_of
from refold.agents.compare.compare import compare
from refold.agents.importers.conversation import import_conversation
from refold.agents.importers.file import ImportFile
from refold.agents.importers.otlp import IMPORTER
from refold.avro.canonical import json_tree
from refold.avro.errors import InputError, NotAnswerable
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold_tests.otlp_requests import (
    OLDER,
    START,
    TODAY,
    TRACE,
    as_protobuf,
    known_by_both,
    logs_of,
    record,
    request,
    span,
    value,
)
from refold_tests.tree import ROOT

SAMPLES = ROOT / "tests" / "agents" / "samples"
FILES = ["otlp_gen_ai.jsonl", "otlp_openinference.jsonl", "otlp_traceloop.json"]


def bodies(name: str) -> list[bytes]:
    """Return the requests of a sample, as JSON."""
    text = (SAMPLES / name).read_text()
    lines = [text] if name.endswith(".json") else text.splitlines()
    return [line.encode() for line in lines if "resourceSpans" in line]


def sent(*names: str) -> list[SentSpan]:
    return [span for name in names for body in bodies(name) for span in decode(body, JSON)[0]]


def fields_of(*spans: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Record spans in a log in memory of this test; return the fields of each entity that they became."""
    made: dict[str, dict[str, Any]] = {}
    count = iter(range(10_000))

    def observe(entity: str, patch: Mapping[str, object] | None = None, **_: Any) -> str:
        made.setdefault(entity, {}).update(patch or {})
        return f"{next(count):064x}"

    for each in decode(request(*spans), JSON)[0]:
        observe_sent(each, observe)
    return made


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a log that got each span of all samples once, in the order of the files."""
    with refold.open(f"file:{tmp_path_factory.mktemp('whole') / 'log'}") as log:
        record(log, sent(*FILES))
        return log.rebuild().root


@settings(max_examples=8, deadline=None)
@given(chance=st.randoms(use_true_random=False))
def test_late_shuffled_and_repeated_spans_give_the_same_root(
    chance: random.Random, wanted: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    spans = sent(*FILES)
    spans += chance.choices(spans, k=chance.randint(0, 8))
    chance.shuffle(spans)
    with refold.open(
        f"file:{tmp_path_factory.mktemp('shuffled') / 'log'}?partitions={chance.choice((1, 2, 4))}"
    ) as log:
        while spans:
            size = chance.randint(1, len(spans))
            batch, spans = spans[:size], spans[size:]
            record(log, batch)  # flushed: what comes next is late
        assert log.rebuild().root == wanted


@pytest.mark.parametrize("name", FILES)
def test_protobuf_and_json_give_the_same_spans(name: str) -> None:
    for body in bodies(name):
        spans, rejected = decode(body, JSON)
        assert (decode(as_protobuf(body), PROTOBUF), rejected) == ((spans, 0), 0)
        assert spans


def test_observations_of_a_span_never_change() -> None:
    """A span that is sent again to a newer release must add nothing. So a change of these ids needs a migration."""
    ids: list[bytes] = []
    recorder = Recorder(TypeCatalog((), {}, shipped_types()), lambda *made: ids.append(made[1]))
    items: list[Sent] = [*sent(*FILES), *logs_of(*OLDER), *logs_of(*TODAY)]
    for each in items:
        observe_sent(each, recorder.observe)
    assert hashlib.sha256(b"".join(sorted(ids))).hexdigest()[:16] == "dfa04fd2953be635"


VALUES = [
    {"stringValue": ""}, {"stringValue": "\u00e9"}, {"boolValue": False}, {"intValue": "0"}, {"intValue": "-7"},
    {"doubleValue": 0.0}, {"doubleValue": 1e300}, {"doubleValue": -1.5e-7}, {"doubleValue": "NaN"},
    {"doubleValue": "Infinity"}, {"doubleValue": "-Infinity"}, {"bytesValue": "AAE="}, {"arrayValue": {}}, {},
    {"kvlistValue": {"values": [{"key": "k", "value": {"arrayValue": {"values": [{"doubleValue": 3.0}, {}]}}}, {}]}},
]  # fmt: skip


def test_message_becomes_the_tree_of_protobufs_own_json() -> None:
    whole = span(1, {}, kind=3, flags=257, traceState="a=b", status={"code": 2, "message": "no"})
    whole["attributes"] = [{"key": f"k{k}", "value": each} for k, each in enumerate(VALUES)]
    whole["events"] = [{"name": "e", "timeUnixNano": "1", "attributes": whole["attributes"]}]
    whole["links"] = [{"traceId": TRACE, "spanId": f"{2:016x}", "attributes": whole["attributes"]}]
    bodies_of_all = [request(whole), *(body for name in FILES for body in bodies(name))]
    for body in map(as_protobuf, bodies_of_all):
        message = ExportTraceServiceRequest.FromString(body)
        assert tree_of(message) == json_tree(MessageToDict(message, use_integers_for_enums=True))


@pytest.mark.parametrize("name", FILES)
def test_received_run_equals_the_imported_run(name: str, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes(b"\n".join(bodies(name)))
    imported: list[tuple[Any, ...]] = []
    with refold.open(f"file:{tmp_path / 'imported'}") as log:
        recorder = Recorder(TypeCatalog(log.port.registry, {}, shipped_types()), log.append)
        # As the receiver has them: without what OTLP does not know.
        path.write_text("".join(json.dumps(_written(each)) + "\n" for each in sent(name)))
        for conversation in IMPORTER.read(ImportFile(path)):
            import_conversation(conversation, recorder.observe)
        log.flush()
        imported = [known_by_both(log.recording(each.run)) for each in log.runs()]
    with refold.open(f"file:{tmp_path / 'received'}") as log:
        record(log, sent(name))
        rows = log.runs()
        found = [log.recording(each.run) for each in rows]
        assert [known_by_both(each) for each in found] == imported
        assert [each.steps for each in rows] == [len(each.steps) for each in found]
        assert log.verify().ok


def _written(each: SentSpan) -> dict[str, Any]:
    scopes = [{"scope": each.scope.tree, "spans": [each.span.tree]}]
    return {"resourceSpans": [{"resource": each.resource.tree, "scopeSpans": scopes}]}


# What each name becomes

PINNED: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    (
        "GenAI of today",
        {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m",
            "gen_ai.response.model": "m-1", "gen_ai.response.id": "r1", "gen_ai.response.finish_reasons": ["stop"],
            "gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 3,
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Hi"}]}]),
            "gen_ai.output.messages": json.dumps(
                [{"role": "assistant", "parts": [{"type": "text", "content": "Hello"}]}]
            ),
        },
        "step", {"message": "Hello", "decision": "reply", "provider": "openai", "model": "m", "response_model": "m-1",
                 "response_id": "r1", "finish_reasons": ["stop"], "input_tokens": 7, "output_tokens": 3},
    ),
    (
        "GenAI's older names",
        {
            "gen_ai.system": "openai", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 7,
            "gen_ai.usage.completion_tokens": 3, "gen_ai.prompt.0.role": "user", "gen_ai.prompt.0.content": "Hi",
            "gen_ai.completion.0.role": "assistant", "gen_ai.completion.0.content": "Hello",
            "gen_ai.completion.0.finish_reason": "stop",
        },
        "step", {"message": "Hello", "provider": "openai", "model": "m", "input_tokens": 7, "output_tokens": 3,
                 "finish_reasons": ["stop"]},
    ),
    (
        "OpenLLMetry's llm names",
        {"llm.request.type": "chat", "llm.vendor": "openai", "llm.request.model": "m", "llm.response.model": "m-1",
         "llm.usage.prompt_tokens": 7, "llm.usage.completion_tokens": 3},
        "step", {"provider": "openai", "model": "m", "response_model": "m-1", "input_tokens": 7, "output_tokens": 3},
    ),
    (
        "OpenInference",
        {
            "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.provider": "openai",
            "llm.token_count.prompt": 7, "llm.token_count.completion": 3,
            "llm.token_count.prompt_details.cache_read": 2,
            "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Hi",
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.tool_calls.0.tool_call.id": "c1",
            "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
            "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"n": 1}',
        },
        "step", {"decision": "call look", "provider": "openai", "model": "m", "input_tokens": 7, "output_tokens": 3,
                 "cached_tokens": 2,
                 "calls": [{"position": 1, "tool": "look", "inputs": {"n": 1}, "call_id": "c1"}]},
    ),
    (
        "a tool of GenAI",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "c1",
         "gen_ai.tool.call.arguments": '{"n": 1}', "gen_ai.tool.call.result": '{"found": 2}'},
        "action", {"tool": "look", "call_id": "c1", "inputs": {"n": 1}, "output": '{"found": 2}',
                   "output_type": "application/json", "status": "succeeded"},
    ),
    (
        "a tool of OpenInference",
        {"openinference.span.kind": "TOOL", "tool.name": "look", "tool.parameters": '{"n": 1}', "output.value": "two"},
        "action", {"tool": "look", "inputs": {"n": 1}, "output": "two", "output_type": "text/plain"},
    ),
    (
        "a tool of OpenLLMetry",
        {"traceloop.span.kind": "tool", "traceloop.entity.name": "look", "traceloop.entity.input": '{"n": 1}',
         "traceloop.entity.output": "two"},
        "action", {"tool": "look", "inputs": {"n": 1}, "output": "two"},
    ),
    (
        "a tool of Google ADK, by its older names, without an id",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.id": "<not specified>",
         "gcp.vertex.agent.tool_call_args": '{"n": 1}', "gcp.vertex.agent.tool_response": '{"result": "two"}'},
        "action", {"tool": "look", "call_id": None, "inputs": {"n": 1}, "output": '{"result": "two"}'},
    ),
    (
        "an embedding",
        {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "e"},
        "action", {"tool": "span", "status": "unknown"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attributes", "kind", "fields"), [each[1:] for each in PINNED], ids=[each[0] for each in PINNED]
)
def test_names_are_pinned(attributes: dict[str, Any], kind: str, fields: dict[str, Any]) -> None:
    made = fields_of(span(1, attributes))
    found = made[f"{kind}/{TRACE}#{1:016x}"]
    [call] = found.get("model_calls", [{}])
    known = {name: found.get(name, call.get(name)) for name in fields}
    assert known == fields
    assert made[f"run/{TRACE}"]["status"] == "ended"


def test_agent_span_becomes_the_run_not_a_step() -> None:
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper",
                  "gen_ai.usage.input_tokens": 99, "gen_ai.conversation.id": "c"}  # fmt: skip
    made = fields_of(span(1, attributes, name="invoke_agent helper", status={"code": 2, "message": "no"}))
    run = made.pop(f"run/{TRACE}")
    assert {each.partition("/")[0] for each in made} == {"document"}
    assert (run["agent"], run["title"], run["outcome"]) == ("helper", "invoke_agent helper", "failed")
    assert run["metadata"] == {"gen_ai.conversation.id": "c"}
    assert "input_tokens" not in run  # its models' spans count them


def test_failed_tool_records_its_error() -> None:
    raised = [{"key": "exception.message", "value": value("no such thing")}]
    made = fields_of(span(1, {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"},
                          status={"code": 2}, events=[{"name": "exception", "attributes": raised}]))  # fmt: skip
    action = made[f"action/{TRACE}#{1:016x}"]
    assert (action["status"], action["error"]["message"]) == ("failed", "no such thing")


def test_other_spans_are_stored_but_make_no_run() -> None:
    made = fields_of(span(1, {"http.request.method": "GET"}), span(2, {"db.system": "sqlite"}, parent=1))
    names = {f"document/span-{TRACE}-{each:016x}" for each in (1, 2)}
    whole = made[f"document/span-{TRACE}-{1:016x}"]["fields"]
    assert made.keys() == {f"document/trace-{TRACE}", f"document/origin-{whole['origin']}", *names}
    assert json.loads(whole["span"].text)["name"] == "span"


def test_child_span_is_recorded_before_or_without_its_parent(tmp_path: Path) -> None:
    late = span(1, {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "helper"}, name="invoke_agent helper")
    child = span(2, {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, parent=1)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, decode(request(child), JSON)[0])
        [row] = log.runs()
        assert (row.agent, row.title, row.steps) == ("desk", "span", 1)
        assert log.state(f"step/{TRACE}#{2:016x}").fields["span"]["parentSpanId"] == f"{1:016x}"
        [early] = log.recording(TRACE).steps
        record(log, decode(request({**late, "endTimeUnixNano": str(START + 9_000_000)}), JSON)[0])
        [row] = log.runs()
        assert (row.agent, row.title, row.steps) == ("helper", "invoke_agent helper", 1)
        [step] = log.recording(TRACE).steps
        assert step.result == early.result


def test_documents_other_than_spans_are_not_part_of_a_run(tmp_path: Path) -> None:
    """Whoever may write to a log may write them; they stop no question about the run."""
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, decode(request(span(1, {"gen_ai.operation.name": "chat"})), JSON)[0])
        strange: list[dict[str, Any]] = [{}, {"span": 5}, {"span": {}, "resource": 5, "scope": "x"}]
        for number, fields in enumerate(strange, 2):
            log.observe(f"document/span-{TRACE}-{number:016x}", {"fields": fields})
            log.observe(f"document/trace-{TRACE}", {"fields": {f"{number:016x}": "other", "no span": 7}})
        log.observe(f"run/{TRACE}", {"spans": {"no span": "x", f"{5:016x}": "model", f"{6:016x}": "part"}})
        log.observe(f"step/{TRACE}#{5:016x}", {"span": 5, "span_origin": "no digest"})
        log.observe("run/other", {"imported_from": "otlp-received"})
        log.observe("document/trace-other", {"kind": "trace"})
        log.flush()
        assert len(log.recording(TRACE).steps) == 1
        assert {each.run: each.steps for each in log.runs()} == {TRACE: 1, "other": 0}
        with pytest.raises(NotAnswerable, match="none of its spans"):
            log.recording("other")


def test_runs_that_did_the_same_compare_equal(tmp_path: Path) -> None:
    spans = sent(FILES[0])
    later = [_moved(each) for each in spans]
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, [*spans, *later])
        runs = [log.recording(each.run) for each in log.runs()]
        first, again = [each for each in runs if each.input == runs[0].input]
        assert first.run != again.run
        assert compare(first, again) is None


def _moved(each: SentSpan) -> SentSpan:
    """Return the span of another trace, a day later."""
    trace_id, day = each.trace_id[::-1], 86_400 * 10**9
    times = {name: str(int(each.span.tree[name]) + day) for name in ("startTimeUnixNano", "endTimeUnixNano")}
    return each._replace(trace_id=trace_id, span=JsonPart({**each.span.tree, "traceId": trace_id, **times}))


def test_value_traces_back_to_its_span(tmp_path: Path) -> None:
    attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look", "gen_ai.tool.call.result": "2"}
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, decode(request(span(1, attributes)), JSON)[0])
        chain = log.state(f"action/{TRACE}#{1:016x}").why("output")
        [statement] = [each.observation for each in chain if each.observation is not None]
        assert statement.entity == f"action/{TRACE}#{1:016x}"
        assert log.state(statement.entity).fields["span"]["spanId"] == f"{1:016x}"
        run = log.state(f"run/{TRACE}").why("outcome")
        assert [each.observation.entity for each in run if each.observation is not None] == [
            f"run/{TRACE}", f"action/{TRACE}#{1:016x}",
        ]  # fmt: skip


def test_runs_are_found_by_tools_and_text_of_their_spans(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        record(log, sent(*FILES))
        every = {each.run for each in log.runs()}
        tools = {call.asked.name for run in every for step in log.recording(run).steps for call in step.calls
                 if call.asked.kind == "tool"}  # fmt: skip
        assert tools
        for tool in tools:
            wanted = {run for run in every if any(call.asked.name == tool for step in log.recording(run).steps
                                                  for call in step.calls)}  # fmt: skip
            assert {each.run for each in log.runs(tool=tool)} == wanted
        assert log.runs(text="nothing that any span says").rows == []


# Hostile bodies


def test_only_a_span_with_an_invalid_id_is_rejected() -> None:
    good = span(1, {"a": 1})
    bad = [{**good, "spanId": each} for each in ("", "00" * 8, "zz", "0" * 17, "ab" * 9)]
    bad += [{**good, "traceId": each} for each in ("", "00" * 16, "0123")]
    spans, rejected = decode(request(*bad, good), JSON)
    assert [each.span_id for each in spans] == [f"{1:016x}"]
    assert rejected == len(bad)


HOSTILE = [
    ("not JSON", b"{"), ("a list", b"[]"), ("nothing", b""), ("a number for spans", b'{"resourceSpans": 5}'),
    ("not UTF-8", b'{"resourceSpans": "\xff"}'), ("an id that is a number", b'{"resourceSpans": [{"scopeSpans": '
    b'[{"spans": [{"traceId": 5, "spanId": 6}]}]}]}'),
    ("deep", b'{"resourceSpans":' + b"[" * 10_000 + b"]" * 10_000 + b"}"),
    ("a time beyond 64 bits", request({**span(1, {}), "startTimeUnixNano": "9" * 40})),
    ("a lone surrogate", b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "\\ud800"}]}]}]}'),
]  # fmt: skip


@pytest.mark.parametrize("body", [each[1] for each in HOSTILE], ids=[each[0] for each in HOSTILE])
def test_invalid_request_body_is_refused_without_quoting_it(body: bytes) -> None:
    with pytest.raises(InputError, match=r"^the body is") as refused:
        decode(body, JSON)
    assert "999" not in str(refused.value)
