"""OpenTelemetry: a recorded run as a trace, with the times it had, whenever it is exported.

    pip install "refold[otel]"
    python otel_spans.py

1. A run is recorded: a search that times out once, a model's answer, and a payment that fails.
2. It is exported to a provider of the SDK's, here one that keeps the spans in memory. A collector gets the same from
   BatchSpanProcessor(OTLPSpanExporter(...)).
3. Exported again, by any process at any time, it is the same trace under the same ids.
"""

from __future__ import annotations

import itertools
from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import refold
from refold.otel import export

ANSWERS = itertools.cycle([None, ["o-7", "o-8"]])


@refold.tool(effect="read", attempts_max=3, retry_on=(TimeoutError,))
def search(customer: str) -> list[str]:
    """A slow service."""
    found = next(ANSWERS)
    if found is None:
        raise TimeoutError("no answer in 2 s")
    return found


@refold.tool(effect="read")
def pay_back(order: str) -> str:
    """A bank that refuses."""
    raise PermissionError(f"{order} was paid back already")


def chat(model: str, temperature: float, max_tokens: int, messages: list[dict[str, str]]) -> dict[str, Any]:
    """Stands in for a model's client."""
    return {
        "model": f"{model}-2026-11",
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "o-7"}}],
        "usage": {"prompt_tokens": 31, "completion_tokens": 2},
    }


def agent(run: refold.Run) -> str:
    """Find the orders, choose one, pay it back."""
    orders = run.step("look", search, run.input["customer"])
    with run.step("decide"):
        asked = [{"role": "user", "content": f"which of {orders}?"}]
        answer = run.model(chat, model="small", temperature=0.2, max_tokens=50, messages=asked)
        order = run.decide(answer["choices"][0]["message"]["content"], why="the model says so")
    try:
        return run.step("pay", pay_back, order)
    except PermissionError:
        return "nothing to pay"


def show(spans: list[ReadableSpan], parent: int | None, indent: str) -> None:
    """The spans below one, by when they began, with what they say."""
    for span in sorted(spans, key=lambda each: each.start_time or 0):
        if (span.parent and span.parent.span_id) == parent and span.context:
            given = span.attributes or {}
            said = [f"{name.removeprefix('gen_ai.')}={given[name]}" for name in SAID if name in given]
            print(" ".join([f"{indent}{span.name}", *said, *(f"[{event.name}]" for event in span.events)]))
            show(spans, span.context.span_id, indent + "  ")


SAID = (
    "gen_ai.tool.call.arguments", "gen_ai.request.temperature", "gen_ai.response.finish_reasons",
    "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "refold.success", "refold.retry", "refold.result_size",
)  # fmt: skip


def main() -> None:
    """Record, export, and export again."""
    with refold.open("file:.refold") as log:
        log.run("refund-desk", version="1.4", input={"customer": "c-1"}, id="r-17").drive(agent)
        recording = log.recording("r-17")

    kept = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "refund-desk"}))
    provider.add_span_processor(SimpleSpanProcessor(kept))
    trace_id = export(recording, provider, system="openai")
    first = kept.get_finished_spans()
    print("trace", trace_id)
    show(list(first), None, "")

    kept.clear()
    assert export(recording, provider, system="openai") == trace_id
    print("exported again, the same spans:", [each.to_json() for each in first] == [
        each.to_json() for each in kept.get_finished_spans()
    ])  # fmt: skip


if __name__ == "__main__":
    main()
