"""A span becomes observations, each a function of that span alone.

    step/<trace>#<span>            a call of a model: the span, unchanged, its answer, the calls that it asks for
    action/<trace>#<span>          a call of a tool, a retriever or an embedding: the span, arguments and result
    document/span-<trace>-<span>   every other span, unchanged
    run/<trace>                    of each span of an agent: its id and kind; when the run began and ended, tokens
    document/trace-<trace>         the id of each other span, and the names of log records
    document/origin-<digest>       a resource and a scope, which many spans share

1. Identity. Names of entities are made of the trace's and the span's ids. An observation has the span's own times and
   a seq by its place among the span's observations. So a span that is sent again adds nothing, by any sender, and
   the entities, their states and the root depend only on the set of spans: not on their order, batches or repeats.
2. Few observations. A call of a model or a tool is two: its own entity, which holds the span, and the run's. What is
   written costs more than what is computed (docs/decisions/181-two-observations-a-span.md).
3. Origins. The digest covers the resource and the scope, and the observation has a fixed time, so every sender and
   every process makes the same one. A process that recorded it leaves it out.
4. Late spans. Nothing waits for a trace to be complete. A run's begin is the earliest begin of its spans, its end the
   latest end so far; outcome, title and output are those of the span that ended last, which is the outermost.
5. Parents. A span names its parent by id, so it may come before it, or without it for ever.
6. Answers of models may be in log records (observed_logs.py). So a span states no answer that it does not have.
7. Other spans, such as those of HTTP servers and databases, make no run: a trace without a span of an agent is no run.

How the spans of a trace are one conversation, with numbered steps, is computed when the run is read
(recordings/received.py), by the rules of agents/importers/otlp.py: it depends on spans that may not have come yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from refold.agents.adapters.otlp.requests import SentSpan
from refold.agents.importers.conversation import label
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, parse_messages, text_of
from refold.agents.importers.model import NO_TIME_START, Observe
from refold.agents.importers.otlp import ABOUT, AGENT_NAMES, span_of
from refold.agents.importers.spans import ImportedSpan
from refold.agents.recordings.received import RECEIVED, origin_entity, span_entity, trace_entity
from refold.avro.canonical import JsonText, json_text
from refold.avro.errors import InputError
from refold.avro.observation import Kind, Link, Source

Patch: TypeAlias = dict[str, Any]
OTHER = "other"
DIGEST_CHARACTERS = 32


class Stated(NamedTuple):
    """What is observed of an entity.

    Attributes:
        at: When it was observed, in microseconds since 1970.
    """

    entity: str
    at: int
    patch: Patch | None = None
    link: Link | None = None


def observe_span(sent: SentSpan, observe: Observe, known: Collection[str] = ()) -> str:
    """Observe one span.

    Args:
        sent: From `requests.decode`.
        observe: A log's `observe`.
        known: The origins that this process recorded.

    Returns:
        The span's origin.

    Raises:
        InputError: A value of the span cannot be observed.
    """
    origin = _origin(sent.resource.json.text, sent.scope.json.text)
    if origin not in known:
        fields = {"resource": sent.resource.json, "scope": sent.scope.json}
        source = Source(label(sent.resource.service))
        observe(
            origin_entity(origin), {"kind": "origin", "fields": fields}, source=source, observed_at=NO_TIME_START,
        )  # fmt: skip
    span = span_of(sent.trace_id, sent.span.tree, f"span {sent.span_id} of trace {sent.trace_id}")
    agent = next((name for each in AGENT_NAMES if (name := text_of(span.attributes.get(each)))), sent.resource.service)
    stated = _SpanFacts(span, sent.span.json, origin, agent)
    observe_all(stated.every(), agent, sent.trace_id, span.tool if stated.kind == "tool" else "", observe)
    return origin


@lru_cache(maxsize=1024)
def _origin(resource: str, scope: str) -> str:
    """Return the id of a resource and a scope, by their canonical texts: 32 hex digits."""
    return hashlib.sha256(f'{{"resource":{resource},"scope":{scope}}}'.encode()).hexdigest()[:DIGEST_CHARACTERS]


def observe_all(stated: Iterable[Stated], agent: str, trace_id: str, tool: str, observe: Observe) -> None:
    """Observe what one span or log record states. The first holds the whole, and causes all others."""
    agent, tool = label(agent), label(tool) if tool else ""
    causes: tuple[str, ...] = ()
    for seq, each in enumerate(stated):
        kind: Kind = "assert" if each.link is None else "link"
        made = observe(
            each.entity, each.patch, source=Source(agent, trace_id, "", tool, seq), observed_at=each.at, causes=causes,
            link=each.link, kind=kind,
        )  # fmt: skip
        causes = causes or (made,)


class _SpanFacts:
    """What one span states. begin, end: microseconds; for a span without times, the time of conversations without."""

    def __init__(self, span: ImportedSpan, written: JsonText, origin: str, agent: str) -> None:
        self._span = span
        self.kind = kind = span.kind
        self._written = written
        self._origin = origin
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

    def every(self) -> Iterator[Stated]:
        span, kind = self._span, self.kind
        if kind in ("model", "tool"):
            named = f"{'step' if kind == 'model' else 'action'}/{span.trace_id}#{span.id}"
            patch = self._step() if kind == "model" else self._action()
            yield Stated(named, self._end, patch | {"span": self._written, "span_origin": self._origin})
            yield Stated(f"run/{span.trace_id}", self._end, self._begun() | self._ended())
            return
        whole = {"span": self._written, "origin": self._origin}
        yield Stated(span_entity(span.trace_id, span.id), self._begin, {"kind": "span", "fields": whole})
        if kind:
            yield Stated(f"run/{span.trace_id}", self._begin, self._begun())
            yield Stated(f"run/{span.trace_id}", self._end, self._ended())
        else:
            listed = {"kind": "trace", "fields": {span.id: OTHER}}
            yield Stated(trace_entity(span.trace_id), self._begin, listed)

    def _begun(self) -> Patch:
        """Return what a run states of which the earliest counts, and the span's place in the run's list."""
        span = self._span
        patch: Patch = {"agent": self._agent, "imported_from": RECEIVED, "spans": {span.id: self.kind}}
        if span.started_at is None:
            patch["synthetic_time"] = True
        else:
            patch["started_at"] = span.started_at
        if about := {name: span.attributes[name] for name in ABOUT if name in span.attributes}:
            patch["metadata"] = about
        if self.kind != "tool":
            asked = next((each["content"] for each in self._asked if each["role"] == "user"), None)
            asked = asked if span.input is None else span.input
            if asked is not None:
                patch["input"] = asked
        return patch

    def _ended(self) -> Patch:
        """Return what a run states of which the latest counts, and sums."""
        span = self._span
        patch: Patch = {"status": "ended", "outcome": self._outcome, "title": span.name}
        patch |= present(ended_at=self._times.get("ended_at"))
        if self.kind != "tool":
            text = "\n".join(each.text for each in self._answered if each.text) or None
            patch |= present(output=text if span.output is None or self._is_failed_call else span.output)
        if self.kind == "model":
            counted = zip(("input_tokens", "output_tokens"), span.tokens, strict=True)
            patch |= {name: count for name, count in counted if count}
            patch |= present(model=span.model or None, model_provider=span.provider or None)
        return patch

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
