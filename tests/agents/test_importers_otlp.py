"""Traces as OTLP JSON: each is one run, whatever the order of its spans, and the size of buffered spans is bounded."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.agents.importers.file import ImportFile
from refold.agents.importers.model import Conversation
from refold.agents.importers.otlp import IMPORTER
from refold.agents.importers.spans import attributes_of, time_of
from refold.agents.otel import spans as spans_of
from refold.avro.errors import InputError
from refold.streams.exchange.limits import FileLimits
from refold.testing.importers import check_importer, imports_of
from refold_tests.handmade_runs import model, run_of, step, tool
from refold_tests.tree import ROOT

SAMPLES = ROOT / "tests" / "agents" / "samples"
FILES = ["otlp_gen_ai.jsonl", "otlp_openinference.jsonl", "otlp_traceloop.json"]
START = 1_790_000_000_000_000


def read(path: Path, limits: FileLimits | None = None) -> list[Conversation]:
    file = ImportFile(path) if limits is None else ImportFile(path, limits=limits)
    return list(IMPORTER.read(file))


def value(given: Any) -> dict[str, Any]:
    """Return a value in OTLP's form."""
    if isinstance(given, bool):
        return {"boolValue": given}
    if isinstance(given, int):
        return {"intValue": str(given)}
    if isinstance(given, list | tuple):
        return {"arrayValue": {"values": [value(each) for each in given]}}
    return {"stringValue": given} if isinstance(given, str) else {"doubleValue": given}


def span(name: str, number: int, parent: int = 0, trace: int = 1, **more: Any) -> dict[str, Any]:
    """Return a span that began `number` ms after the start and took 1 ms."""
    attributes = {key.replace("__", "."): each for key, each in more.pop("attributes", {}).items()}
    return {
        "traceId": f"{trace:032x}", "spanId": f"{number:016x}", "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name, "startTimeUnixNano": str((START + number * 1000) * 1000),
        "endTimeUnixNano": str((START + number * 1000 + 1000) * 1000),
        "attributes": [{"key": key, "value": value(each)} for key, each in attributes.items()], **more,
    }  # fmt: skip


def write(path: Path, *lines: list[dict[str, Any]]) -> Path:
    """Write a file with these spans, one batch per line."""
    batches = ({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "x"}, "spans": spans}]}]} for spans in lines)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in batches))
    return path


def flat(path: Path) -> Iterator[tuple[Any, Any, Any]]:
    """Yield every span of a sample with its resource and scope."""
    text = path.read_text()
    for batch in [json.loads(text)] if path.suffix == ".json" else map(json.loads, text.splitlines()):
        for resource in batch.get("resourceSpans", ()):
            for scope in resource["scopeSpans"]:
                yield from ((resource["resource"], scope["scope"], each) for each in scope["spans"])


@settings(max_examples=15)
@given(chance=st.randoms(use_true_random=False))
def test_order_and_batching_of_spans_change_nothing(
    chance: random.Random, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = [each for name in FILES for each in flat(SAMPLES / name)]
    wanted = {each for name in FILES for each in imports_of(IMPORTER, SAMPLES / name).ids}
    chance.shuffle(found)
    lines: list[list[Any]] = []
    for each in [*found, *chance.choices(found, k=3)]:  # some are sent twice
        if not lines or chance.random() < 0.4:
            lines.append([])
        lines[-1].append(each)
    path = tmp_path_factory.mktemp("otlp") / "x.jsonl"
    written = (
        {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": [each]}]}
                           for resource, scope, each in line]}
        for line in lines
    )  # fmt: skip
    path.write_text("".join(f"{json.dumps(each)}\n" for each in written))
    again = imports_of(IMPORTER, path)
    assert set(again.ids) == wanted
    assert again.conversations == 4


def test_document_is_read_like_its_lines(tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (SAMPLES / FILES[0]).read_text().splitlines()]
    spans = [each for line in lines for each in line.get("resourceSpans", ())]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"resourceSpans": spans}, indent=2))
    assert set(check_importer(IMPORTER, path).ids) == set(imports_of(IMPORTER, SAMPLES / FILES[0]).ids)


def test_parallel_calls_of_one_tool_are_distinguished_by_arguments(tmp_path: Path) -> None:
    calls = [{"type": "tool_call", "id": f"c{n}", "name": "look", "arguments": {"n": n}} for n in (1, 2, 3)]
    said = json.dumps([{"role": "assistant", "parts": calls}])
    chat = span("chat", 1, attributes={"gen_ai__operation__name": "chat", "gen_ai__output__messages": said})
    tools = [
        span("execute_tool look", 2 + at, attributes={
            "gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "look",
            "gen_ai__tool__call__arguments": json.dumps({"n": n}), "gen_ai__tool__call__result": f"found {n}",
        })
        for at, n in enumerate((3, 1, 2))
    ]  # fmt: skip
    [found] = read(write(tmp_path / "x.jsonl", [chat, *tools]))
    answered = {each.tool_call_id: each.content for each in found.messages if each.role == "tool"}
    assert answered == {"c1": "found 1", "c2": "found 2", "c3": "found 3"}


def test_tool_span_with_an_id_that_no_message_has_is_found_by_tool_and_arguments(tmp_path: Path) -> None:
    """Google ADK writes one id to a call's span and another to its messages; only an unknown id is looked up so."""
    calls = [{"type": "tool_call", "id": f"look_{n}", "name": "look", "arguments": {"n": 1}} for n in (1, 2)]
    said = json.dumps([{"role": "assistant", "parts": calls}])
    chat = span("chat", 1, attributes={"gen_ai__operation__name": "chat", "gen_ai__output__messages": said})
    tools = [
        span("execute_tool look", 2 + at, attributes={
            "gen_ai__operation__name": "execute_tool", "gen_ai__tool__name": "look", "gen_ai__tool__call__id": call_id,
            "gen_ai__tool__call__arguments": '{"n": 1}', "gen_ai__tool__call__result": call_id,
        })
        for at, call_id in enumerate(("adk-1", "look_1", "look_2"))
    ]  # fmt: skip
    [found] = read(write(tmp_path / "x.jsonl", [chat, *tools]))
    answered = [(each.tool_call_id, each.content) for each in found.messages if each.role == "tool"]
    again = [content for call_id, content in answered if call_id not in ("look_1", "look_2")]
    assert answered[0] == ("look_1", "adk-1")
    assert ("look_2", "look_2") in answered
    assert again == ["look_1"]  # the message's call is answered, so its second span is a call of its own


def test_repeated_history_is_imported_once_and_new_repeats_again(tmp_path: Path) -> None:
    def chat(number: int, asked: list[str], answer: str) -> dict[str, Any]:
        attributes: dict[str, Any] = {"openinference__span__kind": "LLM"}
        for index, text in enumerate(asked):
            attributes[f"llm.input_messages.{index}.message.role"] = "assistant" if index % 2 else "user"
            attributes[f"llm.input_messages.{index}.message.content"] = text
        attributes |= {"llm.output_messages.0.message.role": "assistant"}
        return span("llm", number, attributes=attributes | {"llm.output_messages.0.message.content": answer})

    first, second = chat(1, ["yes"], "sure?"), chat(3, ["yes", "sure?", "yes"], "done")
    [found] = read(write(tmp_path / "x.jsonl", [second], [first]))
    said = [(each.role, each.content) for each in found.messages]
    assert said == [("user", "yes"), ("assistant", "sure?"), ("user", "yes"), ("assistant", "done")]
    assert [each.at for each in found.messages] == [START + 1000, START + 2000, START + 3000, START + 4000]


def test_calls_without_a_model_request_are_a_step_of_their_parent_span(tmp_path: Path) -> None:
    part = {"openinference__span__kind": "CHAIN"}
    call = {"openinference__span__kind": "TOOL", "output__value": "x"}
    spans = [span("a", 1, attributes=part), span("b", 2, attributes=part),
             *(span(f"t{n}", n, parent=1 + n % 2, attributes=call) for n in (3, 4, 5, 6))]  # fmt: skip
    [found] = read(write(tmp_path / "x.jsonl", spans))
    steps = [(each.extra["parent_span"], [call.tool for call in each.calls]) for each in found.messages if each.calls]
    assert steps == [("b", ["t3", "t5"]), ("a", ["t4", "t6"])]


def test_event_messages_are_read(tmp_path: Path) -> None:
    def event(name: str, **attributes: str) -> dict[str, Any]:
        return {"name": name, "attributes": [{"key": key, "value": value(each)} for key, each in attributes.items()]}

    events = [event("gen_ai.system.message", content="Be brief."), event("gen_ai.user.message", content="Hi"),
              event("gen_ai.choice", message=json.dumps({"content": "Hello"}))]  # fmt: skip
    [found] = read(
        write(tmp_path / "x.jsonl", [span("chat", 1, attributes={"gen_ai__request__model": "m"}, events=events)])
    )
    said = [(each.role, each.content) for each in found.messages]
    assert said == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello")]


def test_exported_refold_run_is_imported_with_its_calls(tmp_path: Path) -> None:
    run = run_of(
        step("look", tool("find", {"id": 7}, id=7), model({"content": "yes"}, model="m")),
        step("act", tool("refund", "done", "write", amount=5)),
        started_at=START,
    )
    exported = [
        {"traceId": f"{each.trace_id:032x}", "spanId": f"{each.span_id:016x}",
         "parentSpanId": f"{each.parent_id:016x}" if each.parent_id else "", "name": each.name,
         "startTimeUnixNano": each.started_at * 1000, "endTimeUnixNano": each.ended_at * 1000,
         "attributes": [{"key": key, "value": value(given)} for key, given in each.attributes.items()]}
        for each in spans_of(run)
    ]  # fmt: skip
    path = write(tmp_path / "x.jsonl", exported)
    found = check_importer(IMPORTER, path)
    calls = [call for step in run.steps for attempt in step.attempts for call in attempt.calls]
    tools = [call.asked.name for call in calls if call.asked.kind == "tool"]
    [conversation] = read(path)
    assert sorted(call.tool for each in conversation.messages for call in each.calls) == sorted(tools)
    assert conversation.agent == run.agent
    assert found.unknown == {}


# Bounds and damage


def test_open_traces_are_bounded_and_complete_ones_are_not(tmp_path: Path) -> None:
    limits = replace(FileLimits(), conversation_bytes=20_000)
    wide = [[span("x" * 1_000, 1, trace=trace)] for trace in range(1, 41)]
    assert len(read(write(tmp_path / "apart.jsonl", *wide), limits)) == 40
    again = [[span("end", 2, trace=trace)] for trace in range(1, 41)]
    with pytest.raises(
        InputError, match=r"x\.jsonl:\d+: the 1\d traces that are not complete .*--max-conversation-bytes"
    ):
        read(write(tmp_path / "x.jsonl", *wide, *again), limits)
    with pytest.raises(InputError, match=r"holds more than 38 traces; .*--max-items"):
        read(tmp_path / "apart.jsonl", replace(FileLimits(), items=38))


@pytest.mark.parametrize(
    "text", ['{"x": 1}', "[]", '{"resourceSpans": []}', '{"resourceSpans": 5}', '{"resourceLogs": []}']
)
def test_file_without_spans_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=r"x\.jsonl"):
        read(path)


def test_invalid_spans_are_counted(tmp_path: Path) -> None:
    good = span("a", 1)
    path = write(tmp_path / "x.jsonl", [good, 5, {"traceId": "1"}, {**good, "spanId": 7}])  # type: ignore[list-item]
    found = imports_of(IMPORTER, path)
    assert found.conversations == 1
    assert found.left_out == {"part that is no object": 1, "span without a trace id or a span id": 2}
    assert found.unknown == {"span without a known kind": 1}


def test_cyclic_spans_and_spans_without_times_are_read(tmp_path: Path) -> None:
    spans = [{**span("a", 1, parent=2), "startTimeUnixNano": "0", "endTimeUnixNano": None},
             {**span("b", 2, parent=1), "startTimeUnixNano": "soon", "endTimeUnixNano": True}]  # fmt: skip
    found = check_importer(IMPORTER, write(tmp_path / "x.jsonl", spans))
    assert found.without_time == 1


def test_two_spans_with_one_id_are_both_kept(tmp_path: Path) -> None:
    [found] = read(write(tmp_path / "x.jsonl", [span("a", 1), {**span("b", 1)}, span("a", 1)]))
    assert len(found.messages) == 2


@pytest.mark.parametrize(
    ("given", "micros"),
    [("1790000000000000123", START), (1790000000000000999, START), ("0", None), (0, None), (-5, None), ("x", None),
     (None, None), (True, None), (1.5e18, None), ("9" * 19, 9_999_999_999_999_999), ("9" * 30, None), ("٣", None)],
)  # fmt: skip
def test_times_are_nanoseconds_as_numbers_or_text(given: Any, micros: int | None) -> None:
    assert time_of(given) == micros


KEYS = [
    "key", "value", "values", "stringValue", "arrayValue", "kvlistValue", "0", "role", "content", "parts", "type",
    "tool_call", "id", "name", "function",
]  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner),
    max_leaves=10,
)
NAMES = st.sampled_from(
    ["gen_ai.operation.name", "openinference.span.kind", "gen_ai.input.messages", "gen_ai.output.messages",
     "gen_ai.system_instructions", "llm.input_messages.0.message.role", "llm.input_messages.0.message.content",
     "llm.input_messages.0", "llm.output_messages.0.message.tool_calls.0.tool_call.function.name", "gen_ai.tool.name",
     "llm.output_messages.0.message.tool_calls", "gen_ai.prompt.0.content", "gen_ai.completion.1.tool_calls.0.name",
     "gen_ai.tool.call.id", "input.value", "output.value", "gen_ai.usage.input_tokens", "refold.step"]
)  # fmt: skip
VALUES = (
    st.sampled_from(["chat", "execute_tool", "LLM", "TOOL", "CHAIN", "x"]).map(lambda text: {"stringValue": text})
    | JSON.map(lambda tree: {"stringValue": json.dumps(tree)}) | JSON
)  # fmt: skip


SPANS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 3), st.dictionaries(NAMES, VALUES, max_size=6)), min_size=1, max_size=5
)


@given(made=SPANS)
def test_attributes_of_any_form_are_read(made: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    spans = [
        {**span("x", number, parent), "attributes": [{"key": key, "value": each} for key, each in attributes.items()]}
        for number, parent, attributes in made
    ]
    for each in spans:
        assert attributes_of(each).keys() <= {name["key"] for name in each["attributes"]}
    found = check_importer(IMPORTER, write(tmp_path_factory.mktemp("any") / "x.jsonl", spans))
    assert found.conversations == 1
