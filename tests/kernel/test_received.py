"""The spans that the kernel observes, against observed.py: the same observations, or the span is left to Python."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.adapters.otlp.intake import OtlpIntake
from refold.agents.adapters.otlp.native import NativeObserver, ObservedSpans, native_observer
from refold.agents.adapters.otlp.requests import PROTOBUF, decode
from refold.agents.adapters.otlp.signals import TRACES, Sent, observe_sent
from refold.agents.importers import spans
from refold.agents.importers.otlp import ABOUT, AGENT_NAMES
from refold.agents.log import open_log
from refold.avro.codec import reframed
from refold.avro.definition import document_text, parse
from refold.avro.errors import InputError
from refold.avro.kernel import find_kernel
from refold.avro.observation import Encoded, type_of
from refold.avro.shipped import shipped_types
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.intake import Recorder
from refold.streams.writer_types import EncodedObservation
from refold_tests.both_folds import switched
from refold_tests.damaged_otlp import Body, damaged, whole
from refold_tests.otlp_requests import as_protobuf, request, span

REQUESTS = 8 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
REQUEST_SPANS = 25
DAMAGED = 60 * int(os.environ.get("REFOLD_FAULT_ROUNDS", "6"))
SEED = 182
LONG = "long " * 300

Observations = tuple[list[Encoded], dict[bytes, bytes]]


def by_python(items: Iterable[Sent]) -> Observations:
    """What Python makes of spans, without those that cannot be observed."""
    made: list[Encoded] = []
    contents: dict[bytes, bytes] = {}
    pending: list[tuple[Any, ...]] = []
    recorder = Recorder(TypeCatalog((), {}, shipped_types()), lambda *each: pending.append(each))
    for sent in items:
        pending.clear()
        try:
            observe_sent(sent, recorder.observe)
        except InputError:
            continue
        for observation, own, _, blobs, data in pending:
            made.append((observation.entity, own, data))
            contents |= blobs
    return made, contents


def observer() -> NativeObserver:
    found = native_observer(TypeCatalog((), {}, shipped_types()))
    assert found is not None
    return found


def compare(native: NativeObserver, body: bytes) -> tuple[int, int]:
    """Compare both. Returns how many spans the kernel observed, and how many it left to Python."""
    try:
        with switched(on=False):
            wanted, rejected = decode(body, PROTOBUF)
            made, contents = by_python(wanted)
    except InputError:
        assert native.decode(body) is None
        return 0, 0
    decoded = native.decode(body)
    if decoded is None:
        return 0, len(wanted)
    items, found_rejected = decoded
    left = [each for each in items if not isinstance(each, ObservedSpans)]
    found, found_contents = by_python(left)
    count = 0
    for each in items:
        if isinstance(each, ObservedSpans):
            count += each.number
            for some, blobs in (each.origin_stated, each.stated):
                found += some
                found_contents |= dict(blobs)
    assert sorted({*found}) == sorted({*made})
    assert found_contents == contents
    assert (count + len(left), found_rejected) == (len(wanted), rejected)
    return count, len(left)


def batched(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def parts(*given: Mapping[str, Any], role: str = "assistant") -> dict[str, Any]:
    return {"role": role, "parts": [*given]}


TEXT = {"type": "text", "content": 'It "is" \u00e9\U0001f600.\n'}
CALL = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"z": [1, -2.5, None, True], "a": {"b": ""}}}
MESSAGE = json.dumps([parts(TEXT)])
MESSAGES: list[Any] = [
    [parts(TEXT, role="user")], [parts(TEXT), parts(TEXT, {"type": "reasoning", "content": "Since."})], [parts(CALL)],
    [parts(TEXT, CALL, {**CALL, "id": None, "arguments": '{"n": 1.0}'}, {"type": "tool_call"})],
    [parts({"type": "tool_call_response", "id": "c1", "response": "two"}, role="tool")],
    [parts({**CALL, "arguments": "no JSON"}), parts({**CALL, "arguments": "null"}), parts({**CALL, "arguments": "[1"})],
    [parts({"type": "image", "uri": "x"}, role="user")], [parts({"content": "no type"})], [parts(role="user")],
    [{"role": "user", "content": "plain"}, {"role": "assistant", "content": "too"}], [{"content": None}],
    [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
    [{"role": 5, "parts": [TEXT]}, "no message", 7], {"role": "user"}, [], "text", 5,
    [parts({**TEXT, "content": LONG})],
    [parts({**CALL, "arguments": {"long": LONG}})], [parts({"type": "tool_call", "function": {"name": "f"}})],
    [{"role": "user", "parts": [TEXT], "parts2": 1e300}], [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]],
    [parts({**CALL, "arguments": {"n": 1e16, "m": 12345678901234567890, "o": -0.0, "p": 0.1}})],
]  # fmt: skip
WRITTEN = [
    *(json.dumps(each) for each in MESSAGES),
    *(json.dumps(each, ensure_ascii=False, indent=1) for each in MESSAGES[:4]),
    "[", '[{"role": "user", "role": "assistant", "parts": []}]', '"\\ud800"', "[1e5, 01]", "[-]", "[1.]", " [1]", "{}",
    '["\\u00zz"]', '["a\tb"]', "[tru]", '{"a" 1}', "[1,]", '["\\ud83d\\ude00", "\\/\\b\\f\\n\\r\\t\\\\", NaN]',
]  # fmt: skip
TEXTS: list[Any] = ["small", "", "\u00e9", "a\x07b", LONG, "x" * 250, 5, True, ["a", "b"], ["a", 5], [], 2**53, -1, 0]
VALUES: list[Any] = ["", "plain", LONG, 5, False, ["a"], '{"b": 1, "a": [1.5]}', '"text"', "{", "[1e400]", "[]"]
KINDS: dict[str, list[Any]] = {
    "gen_ai.operation.name": ["chat", "execute_tool", "invoke_agent", "embeddings", "none", 5],
    "openinference.span.kind": ["LLM", "TOOL", "AGENT", "UNKNOWN", ""],
    "traceloop.span.kind": ["workflow", "tool"], "llm.request.type": ["chat", "rerank"], "refold.step": [1],
    "http.request.method": ["GET"],
}  # fmt: skip
ATTRIBUTES: dict[str, list[Any]] = {
    **{f"gen_ai.{name}": TEXTS for name in (
        "provider.name", "system", "request.model", "response.model", "response.id", "response.finish_reasons",
        "usage.input_tokens", "usage.output_tokens", "usage.prompt_tokens", "usage.cache_read.input_tokens",
        "agent.name", "agent.id", "conversation.id", "tool.name", "tool.call.id", "tool.call.result",
    )},
    **dict.fromkeys((
        "llm.model_name", "llm.provider", "llm.token_count.prompt", "llm.usage.completion_tokens", "tool.name",
        "tool_call.id", "traceloop.entity.name", "traceloop.workflow.name", "agent.name", "session.id", "user.id",
        "tag.tags", "metadata",
    ), TEXTS),
    **dict.fromkeys((
        "gen_ai.tool.call.arguments", "tool_call.function.arguments", "input.value", "output.value",
        "traceloop.entity.input", "traceloop.entity.output", "tool.parameters", "gen_ai.tool.call.result",
        "gcp.vertex.agent.tool_call_args", "gcp.vertex.agent.tool_response",
    ), VALUES),
    "gen_ai.tool.call.id": [*TEXTS, "<not specified>"],
    **{f"gen_ai.{name}": WRITTEN for name in ("input.messages", "output.messages", "system_instructions")},
    "llm.input_messages.0.message.role": ["user"], "gen_ai.completion.0.content": ["Hi"],
}  # fmt: skip
FLAT = (
    "role", "content", "name", "tool_calls.0.id", "tool_calls.1.arguments", "message.role", "message.content",
    "message.tool_calls.0.tool_call.function.name", "message.contents.0.message_content.text",
)  # fmt: skip
MORE: dict[str, list[Any]] = {
    "status": [{"code": 1}, {"code": 2}, {"code": 2, "message": "no"}, {"code": 2, "message": LONG}, {}, {"code": 7}],
    "startTimeUnixNano": ["0", "1", "1999", str(2**63), str(2**64 - 1)], "endTimeUnixNano": ["0", "5000", "1"],
    "events": [[{"name": "exception", "attributes": [{"key": "exception.message", "value": {"stringValue": "bad"}}]}],
               [{"name": "gen_ai.user.message"}]],
    "name": ["", "execute_tool look", "execute_tool ", LONG, "\u0130"],
}  # fmt: skip


def random_span(number: int, chance: random.Random) -> dict[str, Any]:
    kinds = {name: chance.choice(KINDS[name]) for name in chance.sample([*KINDS], chance.choice((1, 1, 1, 2)))}
    names = chance.sample([*ATTRIBUTES], chance.randint(0, 8))
    attributes = kinds | {name: chance.choice(ATTRIBUTES[name]) for name in names}
    more = {name: chance.choice(MORE[name]) for name in chance.sample([*MORE], chance.choice((0, 0, 1, 2)))}
    made = span(number, attributes, parent=chance.choice((0, 1)), **more)
    if chance.random() < 0.1:
        odd: list[Any] = [{}, {"doubleValue": 1.5}, {"bytesValue": "AA=="}, {"kvlistValue": {}}, {"arrayValue": {}}]
        made["attributes"].append({"key": chance.choice([*ATTRIBUTES, ""]), "value": chance.choice(odd)})
    if chance.random() < 0.1:
        made["attributes"] += made["attributes"][:1] * 2 + [{"value": {"stringValue": "no key"}}]
    return made


def test_random_spans_are_observed_identically() -> None:
    chance, native = random.Random(SEED), observer()
    observed, left = 0, 0
    for _ in range(REQUESTS):
        some = [random_span(number, chance) for number in range(1, REQUEST_SPANS + 1)]
        service = chance.choice(("desk", "", "a\x07b", LONG))
        found = compare(native, as_protobuf(request(*some, service=service)))
        observed, left = observed + found[0], left + found[1]
    assert observed > left / 3
    assert left > observed / 20


@pytest.mark.parametrize("written", WRITTEN, ids=[f"text {k}" for k in range(len(WRITTEN))])
def test_each_form_of_messages_and_arguments_is_observed_identically(written: str) -> None:
    native = observer()
    calls = {"gen_ai.operation.name": "chat", "gen_ai.input.messages": written, "gen_ai.output.messages": written}
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.arguments": written, "output.value": written}
    compare(native, as_protobuf(request(span(1, calls), span(2, tool), span(3, {"input.value": written, **calls}))))


def test_every_name_of_the_conventions_is_known_to_the_kernel() -> None:
    """A name that only one of the two knows makes a difference in one of these spans."""
    names = {
        each for table in vars(spans).values() if isinstance(table, tuple) for each in table if isinstance(each, str)
    } | {*AGENT_NAMES, *ABOUT, "refold.step"}  # fmt: skip
    kinds = [(name, value) for name, values in spans._KINDS for value in values]
    assert len(names) > 50
    made = [
        span(number, {name: value, "gen_ai.output.messages": MESSAGE}) for number, (name, value) in enumerate(kinds, 1)
    ]
    for name in sorted(names):
        for value in ("said", 7, '{"a": 1}'):
            made += [span(len(made) + 1, {kind: known, name: value}) for kind, known in kinds[::5]]
            made.append(span(len(made) + 1, {name: value}))
    for prefix in spans._FLAT:
        flat = {f"{prefix}0.role": "user", f"{prefix}1.message.role": "user"}
        for name, number in itertools.product(FLAT, (0, 10, 9)):
            own = {"gen_ai.operation.name": "chat", f"{prefix}{number}.{name}": "x"}
            for more in ({}, flat, {f"{prefix}{number}.content": "y"}):
                made.append(span(len(made) + 1, own | more))
    native = observer()
    found = [compare(native, as_protobuf(request(*some))) for some in batched(made, 100)]
    assert sum(observed for observed, _ in found) > 0.8 * len(made)


def usual() -> bytes:
    """A request with a span of each usual form."""
    chat = {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 7, "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.input.messages": json.dumps([parts(TEXT, role="user")]),
        "gen_ai.output.messages": json.dumps([parts(CALL)]),
    }  # fmt: skip
    tool = {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look",
        "gen_ai.tool.call.arguments": '{"n": 1}', "gen_ai.tool.call.result": LONG,
    }  # fmt: skip
    part = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk", "session.id": "s"}
    web = {"http.request.method": "GET", "http.response.status_code": 200}
    flat = {
        "openinference.span.kind": "LLM", "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "What?", "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.name": "look",
        "llm.output_messages.0.message.tool_calls.0.tool_call.function.arguments": '{"n": 1}',
    }  # fmt: skip
    older = {
        "gen_ai.system": "openai", "gen_ai.request.model": "m", "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "Hi", "gen_ai.completion.0.content": "Hello",
        "gen_ai.completion.0.finish_reason": "stop",
    }  # fmt: skip
    forms: list[dict[str, Any]] = [chat, tool, part, web, flat, older]
    return as_protobuf(request(*(span(number, each) for number, each in enumerate(forms, 1))))


def test_usual_spans_are_all_observed_by_the_kernel() -> None:
    assert compare(observer(), usual()) == (6, 0)


def test_spans_of_real_emitters_are_observed_identically() -> None:
    native = observer()
    found = [
        compare(native, each.data) for each in whole() if each.content_type == PROTOBUF and each.signal.name == "spans"
    ]
    assert sum(observed for observed, _ in found) >= 5


def test_damaged_requests_are_observed_identically() -> None:
    chance, native, body = random.Random(SEED), observer(), usual()
    found = [compare(native, damaged(body, chance)) for _ in range(DAMAGED)]
    assert sum(observed for observed, _ in found) > DAMAGED / 10
    kernel = find_kernel().kernel
    assert kernel is not None
    assert kernel.panics() == 0


def test_receiver_records_the_same_with_and_without_the_kernel(tmp_path: Path) -> None:
    bodies = [each for each in whole() if each.signal is TRACES] + [Body(usual(), PROTOBUF, TRACES)] * 2
    roots, recorded = [], []
    for is_on in (True, False):
        url = f"file:{tmp_path / str(is_on)}"
        with switched(on=is_on):
            intake = OtlpIntake(lambda url=url: open_log(url), {}, print)  # type: ignore[misc]
            for body in bodies:
                items, without_id = intake.decode(body.signal, body.data, body.content_type)
                recorded.append(intake.put(items, len(body.data), without_id).result())
            intake.close()
            with refold.open(url) as log:
                roots.append(log.rebuild(full=True).root)
                assert log.verify().ok
    assert roots[0] == roots[1]
    assert recorded[: len(bodies)] == recorded[len(bodies) :]


def test_observations_are_taken_under_the_wire_ids_of_the_log(tmp_path: Path) -> None:
    decoded = observer().decode(usual())
    assert decoded is not None
    [spans_of_scope] = decoded[0]
    assert isinstance(spans_of_scope, ObservedSpans)
    (made, _), definitions = spans_of_scope.stated, spans_of_scope.definitions
    for name, wire_id in (("own", None), ("other", 7)):
        with refold.open(f"file:{tmp_path / name}") as log:
            given = [
                EncodedObservation(
                    entity, own, definitions[type_of(entity)], data if wire_id is None else reframed(data, wire_id), {}
                )
                for entity, own, data in made
            ]  # fmt: skip
            log.append_encoded(given)
            log.flush()
            records = [each for partition, end in log.port.ends().items() for each in log.port.read(partition, 0, end)]
            assert sorted((each.entity, each.id, each.data) for each in records) == sorted(made)


def test_types_that_differ_from_the_shipped_ones_are_left_to_python() -> None:
    shipped = shipped_types()
    tree = json.loads(document_text(shipped["run"]))
    tree["fields"].append({"name": "own", "type": "string", "refold.reducer": "latest", "doc": "x"})
    assert native_observer(TypeCatalog((), {"run": parse(tree)}, shipped)) is None
