"""A span becomes observations, each a function of that span alone.

    document/span-<trace>-<span>   every span, unchanged, with its resource and scope; linked `below` its parent's
    document/trace-<trace>         the ids of the trace's spans, each with its kind
    run/<trace>                    if a span of an agent is in the trace: when it began and ended, what it was asked
    step/<trace>#<span>            a call of a model: its answer, the calls that it asks for, tokens
    action/<trace>#<span>          a call of a tool, a retriever or an embedding: arguments and result

1. Identity. Names of entities are made of the trace's and the span's ids. An observation has the span's own times and
   a seq by its place among the span's observations. So a span that is sent again adds nothing, by any sender, and
   the entities, their states and the root depend only on the set of spans: not on their order, batches or repeats.
2. Late spans. Nothing waits for a trace to be complete. A run's begin is the earliest begin of its spans, its end the
   latest end so far; outcome, title and output are those of the span that ended last, which is the outermost.
3. Parents. The link `below` holds only ids, so it may be there before the parent, or without it for ever.
4. Answers of models may be in log records (observed_logs.py). So a span states no answer that it does not have.
5. Other spans, such as those of HTTP servers and databases, are kept as documents and in the trace's list. They make
   no run: a trace without a span of an agent is no run.

How the spans of a trace are one conversation, with numbered steps, is computed when the run is read
(recordings/received.py), by the rules of agents/importers/otlp.py: it depends on spans that may not have come yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from refold.agents.adapters.otlp.requests import SentSpan
from refold.agents.importers.conversation import label
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, parse_messages, text_of
from refold.agents.importers.model import NO_TIME_START, Observe
from refold.agents.importers.otlp import ABOUT, AGENT_NAMES, span_of
from refold.agents.importers.spans import ImportedSpan
from refold.agents.recordings.received import RECEIVED, span_entity, trace_entity
from refold.avro.canonical import JsonText, json_text
from refold.avro.errors import InputError
from refold.avro.observation import Kind, Link, Source

Patch: TypeAlias = dict[str, Any]
OTHER = "other"


class Stated(NamedTuple):
    """What is observed of an entity. at: microseconds since 1970."""

    entity: str
    at: int
    patch: Patch | None = None
    link: Link | None = None


def observe_span(sent: SentSpan, observe: Observe) -> None:
    """Observe one span.

    Args:
        sent: From `requests.decode`.
        observe: A log's `observe`.

    Raises:
        InputError: A value of the span cannot be observed.
    """
    written = {"resource": sent.resource.json, "scope": sent.scope.json, "span": JsonText(json_text(sent.span))}
    span = span_of(sent.trace_id, sent.span, f"span {sent.span_id} of trace {sent.trace_id}")
    agent = next((name for each in AGENT_NAMES if (name := text_of(span.attributes.get(each)))), sent.resource.service)
    tool = span.tool if span.kind == "tool" else ""
    observe_all(_Said(span, written, agent).every(), agent, sent.trace_id, tool, observe)


def observe_all(stated: Iterable[Stated], agent: str, trace_id: str, tool: str, observe: Observe) -> None:
    """Observe what one span or log record states. The first is the document itself, the source of all others."""
    agent, tool = label(agent), label(tool) if tool else ""
    causes: tuple[str, ...] = ()
    for seq, each in enumerate(stated):
        kind: Kind = "assert" if each.link is None else "link"
        made = observe(
            each.entity, each.patch, source=Source(agent, trace_id, "", tool, seq), observed_at=each.at, causes=causes,
            link=each.link, kind=kind,
        )  # fmt: skip
        causes = causes or (made,)


class _Said:
    """What one span states. begin, end: microseconds; for a span without times, the time of conversations without."""

    def __init__(self, span: ImportedSpan, written: Mapping[str, JsonText], agent: str) -> None:
        self._span = span
        self._kind = kind = span.kind
        self._written = written
        self._agent = agent
        self._begin = next((each for each in (span.started_at, span.ended_at) if each is not None), NO_TIME_START)
        self._end = max(self._begin, span.ended_at or 0)
        failed = span.has_failed
        self._outcome = "unknown" if failed is None else "failed" if failed else "succeeded"
        self._is_failed_call = kind == "model" and failed  # its output, if it has one, is no answer
        self._times = present(
            started_at=span.started_at, ended_at=None if span.ended_at is None else self._end,
        )  # fmt: skip
        self._asked, answered = span.said() if kind == "model" else ([], [])
        self._answered = parse_messages(answered, span.place) if answered else ()
        self._text = "\n".join(each.text for each in self._answered if each.text)
        self._run, self._id = f"run/{span.trace_id}", f"{span.trace_id}#{span.id}"

    def every(self) -> Iterator[Stated]:
        span, kind = self._span, self._kind
        own = span_entity(span.trace_id, span.id)
        yield Stated(own, self._begin, {"kind": "span", "fields": self._written})
        listed = {"kind": "trace", "fields": {span.id: kind or OTHER}}
        yield Stated(trace_entity(span.trace_id), self._begin, listed)
        if span.parent:
            yield Stated(own, self._begin, link=Link("below", span_entity(span.trace_id, span.parent)))
        if not kind:
            return
        yield from self._of_run()
        if kind == "model":
            yield Stated(f"step/{self._id}", self._end, self._step())
            yield Stated(f"step/{self._id}", self._end, link=Link("of", self._run))
        elif kind == "tool":
            yield Stated(f"action/{self._id}", self._end, self._action())
            yield Stated(f"action/{self._id}", self._end, link=Link("of", self._run))

    def _of_run(self) -> Iterator[Stated]:
        """Yield what a run states at the span's begin, of which the earliest counts, and at its end: the latest."""
        span = self._span
        about = {name: span.attributes[name] for name in ABOUT if name in span.attributes}
        begun: Patch = {"agent": self._agent, "imported_from": RECEIVED, "synthetic_time": span.started_at is None}
        given = next((each["content"] for each in self._asked if each["role"] == "user"), None)
        given = given if span.input is None else span.input
        begun |= present(
            started_at=span.started_at, input=None if self._kind == "tool" else given, metadata=about or None
        )
        yield Stated(self._run, self._begin, begun)
        ended: Patch = {"status": "ended", "outcome": self._outcome, "title": span.name}
        output = self._text or None if span.output is None or self._is_failed_call else span.output
        ended |= present(ended_at=self._times.get("ended_at"), output=None if self._kind == "tool" else output)
        if self._kind == "model":
            counted = zip(("input_tokens", "output_tokens"), span.tokens, strict=True)
            ended |= {name: count for name, count in counted if count}
            ended |= present(model=span.model or None, model_provider=span.provider or None)
        yield Stated(self._run, self._end, ended)

    def _step(self) -> Patch:
        span = self._span
        patch: Patch = {"run": span.trace_id, "agent": self._agent, "name": span.name, "status": "committed"}
        patch |= {"outcome": self._outcome} | self._times
        if self._answered:
            patch |= answer_of(self._answered)
        elif span.output is not None and not self._is_failed_call:
            text = span.output if isinstance(span.output, str) else json_text(span.output)
            patch |= {"decision": "reply"} | present(message=text or None)
        patch["model_calls"] = [span.model_call()]
        if span.has_failed:
            patch["failure"] = present(at=self._times.get("ended_at"), message=span.error or None)
        return patch

    def _action(self) -> Patch:
        span, output = self._span, self._span.result
        status = "unknown" if output is None and not span.has_failed else "failed" if span.has_failed else "succeeded"
        patch: Patch = {"tool": span.tool, "agent": self._agent, "run": span.trace_id, "status": status} | self._times
        patch |= present(call_id=span.call_id or None, inputs=span.arguments)
        if output is not None:
            patch |= {"output": output, "output_bytes": len(output.encode()), "output_type": _media_type(output)}
        if span.has_failed:
            patch["error"] = present(at=self._times.get("ended_at"), message=span.error or output)
        return patch


def answer_of(messages: Sequence[Message]) -> Patch:
    """Return what a step states about a model's answer.

    Args:
        messages: The answer; at least one.
    """
    calls = [call for each in messages for call in each.calls]
    tools = ", ".join(call.tool for call in calls)
    patch: Patch = {"decision": f"call {tools}" if calls else "reply"}
    patch |= present(
        message="\n".join(each.text for each in messages if each.text) or None,
        rationale="\n".join(each.rationale for each in messages if each.rationale) or None,
    )
    if calls:
        patch["calls"] = [
            {"position": k, "tool": call.tool} | present(inputs=call.inputs, call_id=call.call_id or None)
            for k, call in enumerate(calls, start=1)
        ]
    return patch


def _media_type(output: str) -> str:
    try:
        parse_json(output, "")
    except InputError:
        return "text/plain"
    return "application/json"


def present(**fields: Any) -> Patch:
    """Return the fields whose value is not None."""
    return {name: value for name, value in fields.items() if value is not None}
