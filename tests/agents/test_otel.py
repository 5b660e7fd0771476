"""Recorded runs as OpenTelemetry spans, as the SDK's exporters receive them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from refold.agents import otel
from refold.agents.journal.record import Attempt, Call, Failure, Recording, Retry, Step
from refold.agents.recorder.observations import model_call
from refold_tests.recordings import call, decided, run, step

BEGAN = 1_790_000_000_000_000
SECRET = "marta@example.org"


def failure(message: str, at: int) -> Failure:
    return Failure(exception="builtins.TimeoutError", message=message, traceback=f"Traceback of {message}", at=at)


def at(made: Call, started_at: int, duration_ms: float, **more: Any) -> Call:
    return replace(made, started_at=started_at, duration_ms=duration_ms, **more)


def recorded() -> Recording:
    """Return a run: a search that answers when it is retried; a step that is cut short in a model call, and then fails
    in a mail."""
    found = at(
        call("search", ["o-7"], customer=SECRET), BEGAN + 1_000, 40.5,
        retries=(Retry(attempt=1, failure=failure("slow", BEGAN + 21_000), backoff_ms=10),),
    )  # fmt: skip
    answer = {
        "model": "small-2", "id": "m-1", "choices": [{"finish_reason": "stop"}, {"finish_reason": "length"}],
        "usage": {"prompt_tokens": 30, "completion_tokens": 0},
    }  # fmt: skip
    asked = at(
        call("chat", answer, kind="model", model="small", temperature=0.0, max_tokens=50, messages=[SECRET]),
        BEGAN + 60_000, 900,
    )  # fmt: skip
    mailed = at(call("send_mail", to=SECRET), BEGAN + 980_000, 5, failure=failure(SECRET, BEGAN + 985_000))
    first = Attempt(calls=(found,), started_at=BEGAN + 500, ended_at=BEGAN + 42_000)
    lost = Attempt(number=1, calls=(asked,), failure=failure("torn", BEGAN + 961_000), backoff_ms=15,
                   started_at=BEGAN + 50_000, ended_at=BEGAN + 961_000)  # fmt: skip
    last = Attempt(
        number=2, calls=(at(decided(SECRET, "it asked"), BEGAN + 979_000, 0), mailed),
        failure=failure(SECRET, BEGAN + 985_000), started_at=BEGAN + 976_000, ended_at=BEGAN + 986_000,
    )  # fmt: skip
    steps = (
        replace(step(name="look"), attempts=(first,)),
        replace(step(name="answer"), attempts=(lost, last), outcome="failed"),
    )
    return run(*steps, run="r-1", agent="desk", outcome="failed", failure=failure(SECRET, BEGAN + 985_000),
               started_at=BEGAN, ended_at=BEGAN + 1_000_000)  # fmt: skip


@pytest.fixture
def kept() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(kept: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider(shutdown_on_exit=False)
    made.add_span_processor(SimpleSpanProcessor(kept))
    return made


def named(found: Sequence[ReadableSpan]) -> dict[str, ReadableSpan]:
    assert len({each.name for each in found}) == len(found)
    return {each.name: each for each in found}


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context_of(span: ReadableSpan) -> Any:
    assert span.context is not None
    return span.context


def micros(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time // 1000 - BEGAN, span.end_time // 1000 - BEGAN


def test_run_is_one_trace_of_its_steps_and_calls(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    trace_id = otel.export(recorded(), provider)
    found = named(kept.get_finished_spans())
    assert {f"{context_of(each).trace_id:032x}" for each in found.values()} == {trace_id}
    names = {context_of(each).span_id: name for name, each in found.items()}
    assert {name: each.parent and names[each.parent.span_id] for name, each in found.items()} == {
        "invoke_agent desk": None, "look": "invoke_agent desk", "answer": "invoke_agent desk",
        "execute_tool search": "look", "chat small": "answer", "execute_tool send_mail": "answer",
    }  # fmt: skip
    assert kept.get_finished_spans()[-1].name == "invoke_agent desk"


def test_times_are_those_of_the_run(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider)
    assert {name: micros(each) for name, each in named(kept.get_finished_spans()).items()} == {
        "invoke_agent desk": (0, 1_000_000), "look": (500, 42_000), "answer": (50_000, 986_000),
        "execute_tool search": (1_000, 41_500), "chat small": (60_000, 960_000),
        "execute_tool send_mail": (980_000, 985_000),
    }  # fmt: skip


def test_model_call_follows_the_semantic_conventions(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider, system="openai")
    span = named(kept.get_finished_spans())["chat small"]
    assert span.kind is SpanKind.CLIENT
    assert {name: value for name, value in attributes_of(span).items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "chat", "gen_ai.system": "openai", "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "small", "gen_ai.request.temperature": 0.0, "gen_ai.request.max_tokens": 50,
        "gen_ai.response.model": "small-2", "gen_ai.response.id": "m-1",
        "gen_ai.response.finish_reasons": ("stop", "length"), "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 0,
    }  # fmt: skip


def test_answers_of_other_providers_are_read() -> None:
    answer = {"stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 4}}
    other = call("ask", answer, kind="model", model="large", provider="anthropic")
    strange = call("strange", "a text", kind="model")
    _, _, span, without = otel.spans(run(step(other, strange)), system="openai")
    assert span.attributes["gen_ai.response.finish_reasons"] == ["end_turn"]
    assert span.attributes["gen_ai.system"] == "anthropic"
    assert (span.attributes["gen_ai.usage.input_tokens"], span.attributes["gen_ai.usage.output_tokens"]) == (3, 4)
    assert (without.name, without.attributes["gen_ai.system"]) == ("chat strange", "openai")
    assert otel.spans(run(step(strange)))[2].attributes["gen_ai.system"] == "_OTHER"


@pytest.mark.parametrize(
    ("answer", "provider", "reasons", "usage"),
    [
        ({"object": "chat.completion", "choices": [{"finish_reason": "tool_calls"}],
          "usage": {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4},
                    "completion_tokens_details": {"reasoning_tokens": 2}}},
         "openai", ["tool_calls"], {"cache_read.input_tokens": 4, "reasoning.output_tokens": 2}),
        ({"type": "message", "stop_reason": "max_tokens", "usage": {"cache_creation_input_tokens": 3}},
         "anthropic", ["max_tokens"], {"cache_creation.input_tokens": 3}),
        ({"candidates": [{"finishReason": "STOP"}, {"finishReason": 3}, "odd"]}, "gcp.gemini", ["STOP"], {}),
        ({"provider": "my_own", "done_reason": "stop", "usage": {"prompt_tokens_details": 1}}, "my_own", ["stop"], {}),
        ({"choices": "none", "usage": []}, "_OTHER", None, {}),
        ("a text", "_OTHER", None, {}),
        (None, "_OTHER", None, {}),
    ],
)  # fmt: skip
def test_answer_names_its_provider(
    answer: Any, provider: str, reasons: list[str] | None, usage: dict[str, int]
) -> None:
    asked: dict[str, Any] = {
        "top_k": 3,
        "n": 2,
        "stream": True,
        "stop": "END",
        "presence_penalty": 0.5,
        "frequency_penalty": True,
    }
    model = call("ask", answer, kind="model", model="m", **asked)
    told = otel.spans(run(step(model)))[2].attributes
    assert (told["gen_ai.provider.name"], told.get("gen_ai.response.finish_reasons")) == (provider, reasons)
    details = ("cache_read.input_tokens", "cache_creation.input_tokens", "reasoning.output_tokens")
    assert {name: told[f"gen_ai.usage.{name}"] for name in details if f"gen_ai.usage.{name}" in told} == usage
    assert {name.removeprefix("gen_ai.request."): value for name, value in told.items() if ".request." in name} == {
        "model": "m", "top_k": 3.0, "choice.count": 2, "stream": True, "stop_sequences": ["END"],
        "presence_penalty": 0.5,
    }  # fmt: skip
    assert "gen_ai.request.stop_sequences" not in otel.spans(run(step(model)), content=False)[2].attributes
    recorded = model_call(model)
    assert (recorded.get("provider", "_OTHER"), recorded.get("finish_reasons")) == (provider, reasons)


def test_integers_over_64_bits_become_text() -> None:
    model = call("ask", {}, kind="model", seed=2**64 - 1)
    assert otel.spans(run(step(model)))[2].attributes["gen_ai.request.seed"] == str(2**64 - 1)


def test_tool_call_has_arguments_and_result(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider)
    attributes = attributes_of(named(kept.get_finished_spans())["execute_tool search"])
    assert attributes == {
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.arguments": f'{{"customer":"{SECRET}"}}', "refold.step": 1, "refold.attempt": 1,
        "refold.retry": 1, "refold.success": True, "refold.source": "live", "refold.result_size": len('["o-7"]'),
        "refold.duration_ms": 40.5,
    }  # fmt: skip


def test_long_arguments_are_truncated() -> None:
    _, _, span = otel.spans(run(step(call("search", text="x" * 10_000))))
    assert len(str(span.attributes["gen_ai.tool.call.arguments"])) <= otel.SHORT_MAX


def test_failures_are_events_at_their_times(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider)
    found = named(kept.get_finished_spans())
    (slow,) = found["execute_tool search"].events
    assert (slow.name, slow.timestamp // 1000) == ("exception", BEGAN + 21_000)
    assert dict(slow.attributes or {}) == {
        "exception.type": "builtins.TimeoutError", "exception.message": "slow", "refold.attempt": 1,
        "exception.stacktrace": "Traceback of slow", "refold.backoff_ms": 10,
    }  # fmt: skip
    assert found["execute_tool search"].status.status_code is StatusCode.UNSET

    mail = found["execute_tool send_mail"]
    assert (mail.status.status_code, mail.status.description) == (StatusCode.ERROR, SECRET)
    assert attributes_of(mail)["error.type"] == "builtins.TimeoutError"
    assert attributes_of(mail)["refold.success"] is False
    assert "refold.result_size" not in attributes_of(mail)
    assert attributes_of(mail)["refold.attempt"] == 2

    answer = found["answer"]
    assert [(each.name, each.timestamp // 1000 - BEGAN) for each in answer.events] == [
        ("exception", 961_000), ("refold.decide", 979_000), ("exception", 985_000),
    ]  # fmt: skip
    assert (attributes_of(answer)["refold.retry"], attributes_of(answer)["refold.success"]) == (1, False)
    assert found["invoke_agent desk"].status.status_code is StatusCode.ERROR


def test_reads_and_observations_of_a_step_are_its_events() -> None:
    read, observed = call("document/1", kind="read"), call("document/2", kind="observe", patch={})
    _, only = otel.spans(run(step(read, call("", 0.5, kind="random"), observed)))
    assert [(each.name, each.attributes) for each in only.events] == [
        ("refold.read", {"refold.entity": "document/1"}), ("refold.observe", {"refold.entity": "document/2"}),
    ]  # fmt: skip


def test_exporting_twice_gives_the_same_spans(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider)
    first = [each.to_json() for each in kept.get_finished_spans()]
    kept.clear()
    provider.get_tracer(otel.SCOPE).start_span("somebody's own").end()
    otel.export(recorded(), provider)
    own, *again = kept.get_finished_spans()
    assert [each.to_json() for each in again] == first
    assert context_of(own).trace_id != otel.trace_id_of("r-1")


def test_resumed_run_keeps_its_ids() -> None:
    whole = recorded()
    cut = replace(whole, steps=whole.steps[:1], ended_at=0, outcome="")
    ids = {each.name: (each.trace_id, each.span_id) for each in otel.spans(whole)}
    before = {each.name: (each.trace_id, each.span_id) for each in otel.spans(cut)}
    assert before.items() < ids.items()
    assert len(set(ids.values())) == len(ids)
    others = {each.span_id for each in otel.spans(replace(whole, run="r-2"))}
    assert others.isdisjoint(each for _, each in ids.values())
    assert otel.trace_id_of("r-2") != otel.trace_id_of("r-1")


def test_same_call_in_two_attempts_is_two_spans() -> None:
    attempts = tuple(Attempt(number=number, calls=(call("search"), call("search"))) for number in (1, 2))
    found = otel.spans(run(replace(step(), attempts=attempts)))
    assert len({each.span_id for each in found}) == len(found) == 6


def test_unfinished_span_ends_at_the_last_known_time() -> None:
    known = recorded().steps[0]
    cut_short = Step(number=2, name="answer", attempts=(Attempt(number=1),))
    made = replace(recorded(), steps=(known, cut_short), ended_at=0, outcome="", failure=None)
    root, _, _, last = otel.spans(made)
    assert (root.started_at, root.ended_at) == (BEGAN, BEGAN + 42_000)
    assert (last.name, last.started_at, last.ended_at) == ("answer", BEGAN + 42_000, BEGAN + 42_000)
    assert "refold.success" not in last.attributes


def test_run_without_steps_or_times_is_a_span() -> None:
    (root,) = otel.spans(Recording(run="r-0"))
    assert (root.name, root.started_at, root.ended_at, root.parent_id) == ("invoke_agent", 0, 0, 0)


def test_failed_run_without_details_is_an_error() -> None:
    assert [each.error for each in otel.spans(Recording(run="r-0", outcome="failed"))] == [""]
    assert [each.error for each in otel.spans(Recording(run="r-0", outcome="succeeded"))] == [None]


def test_values_of_any_size_have_a_size() -> None:
    _, _, span = otel.spans(run(step(call("count", [2**70, 0.5, "ä"], to=2**70))))
    assert span.attributes["refold.result_size"] == len(f'[{2**70},0.5,"ä"]'.encode())


def test_fork_links_to_its_parent(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    parent = recorded()
    otel.export(parent, provider)
    root = named(kept.get_finished_spans())["invoke_agent desk"]
    kept.clear()
    otel.export(replace(parent, run="r-1-fork", parent="r-1", forked_at=1), provider)
    found = named(kept.get_finished_spans())
    assert set(found) == {"invoke_agent desk", "answer", "chat small", "execute_tool send_mail"}
    (link,) = found["invoke_agent desk"].links
    assert (link.context.trace_id, link.context.span_id) == (context_of(root).trace_id, context_of(root).span_id)
    assert context_of(found["invoke_agent desk"]).trace_id != context_of(root).trace_id


def test_no_text_is_exported_without_content(kept: InMemorySpanExporter, provider: TracerProvider) -> None:
    otel.export(recorded(), provider)
    assert sum(SECRET in each.to_json() for each in kept.get_finished_spans()) == 4
    kept.clear()
    otel.export(recorded(), provider, content=False)
    assert [each.name for each in kept.get_finished_spans() if SECRET in each.to_json()] == []
    assert "torn" not in named(kept.get_finished_spans())["answer"].to_json()


def test_disabled_sdk_exports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    kept = InMemorySpanExporter()
    off = TracerProvider(shutdown_on_exit=False)
    off.add_span_processor(SimpleSpanProcessor(kept))
    otel.export(recorded(), off)
    assert kept.get_finished_spans() == ()
