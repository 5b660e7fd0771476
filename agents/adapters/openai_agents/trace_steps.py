"""Turn the spans of one trace into steps, in the order in which they end.

1. A span belongs to the turn that it is in, else to the agent that it is in, else to the trace. Turns and agents own
   what is directly in them; a nested agent's turns are its own.
2. When a turn ends, what it owns is one step. Its calls are in the order in which they began: model spans, functions,
   lists of MCP tools; a handoff and a guardrail are decisions. Every other span is kept in the step's result. When it
   began and ended are two readings of the clock among the calls: in the result, no two traces would compare as equal.
3. What an agent owns outside of turns becomes a step when the agent ends. If the SDK makes no turns
   (`include_task_and_turn_spans`), each model span begins another step.
4. What belongs to the trace becomes a step when the trace has ended and all of its spans have.
5. Spans that never end are ended by `end`: the trace is then cut off.

A step failed if its turn or its last model span failed. A run failed if its last outermost turn did, or an error is on
its outermost agent or on its task.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from refold.agents.adapters.openai_agents.spans import (
    MODEL_KINDS,
    EndedSpan,
    SpanKey,
    answer_of,
    request_of_span,
    text_of_answer,
)
from refold.agents.journal.record import Failure, Outcome, Plain

_PLACES = ("agent", "turn", "task", "function")
_TIMED_BY_CALLS = (*MODEL_KINDS, "function", "mcp_tools", "handoff", "guardrail")


class TracedCall(NamedTuple):
    """One call of a step.

    Attributes:
        kind: The kind of the call, as in Call.
        request, answer: The request and the answer, as JSON trees.
    """

    kind: str
    name: str
    request: Plain
    answer: Plain
    failure: Failure | None
    started_at: int
    ended_at: int


class TracedStep(NamedTuple):
    """One step, `number` counted from 1.

    Attributes:
        result: Which agent and turn it was, and the spans that are no calls.
    """

    number: int
    name: str
    calls: tuple[TracedCall, ...]
    result: Plain
    failure: Failure | None
    started_at: int
    ended_at: int


class TraceEnd(NamedTuple):
    """How a trace ended.

    Attributes:
        at: When it ended, in microseconds since 1970.
    """

    outcome: Outcome
    output: Plain
    failure: Failure | None
    at: int


@dataclass(slots=True)
class _Owner:
    spans: list[EndedSpan] = field(default_factory=list)

    @property
    def has_model(self) -> bool:
        return any(each.key.kind in MODEL_KINDS for each in self.spans)


class TraceSteps:
    """The steps of one trace.

    Args:
        source: The run of refold that records its calls; empty if no run does.

    Attributes:
        agent: The name of its first agent.
        workflow: The name of its first run by the SDK.
        input: What the first model span of the outermost agent was asked.
        open: The spans that have not ended.
    """

    def __init__(self, name: str, source: str = "") -> None:
        self.agent = ""
        self.workflow = ""
        self.input: Plain = None
        self.open: dict[str, SpanKey] = {}
        self._name = name
        self._source = source
        self._places: dict[str, SpanKey] = {}  # turns, agents, tasks and functions, by their ids
        self._owners: dict[str, _Owner] = {}
        self._count = 0
        self._output: Plain = None
        self._failure: Failure | None = None
        self._ended_at = 0

    def begin(self, key: SpanKey) -> None:
        """Note that a span began."""
        self.open[key.id] = key
        if key.kind in _PLACES:
            self._places[key.id] = key
        if key.kind == "agent" and not self.agent:
            self.agent = key.name
        if key.kind == "task" and not self.workflow:
            self.workflow = key.name

    def take(self, span: EndedSpan) -> list[TracedStep]:
        """Take a span that ended; return the steps that ended with it."""
        key = span.key
        self.open.pop(key.id, None)
        self._ended_at = max(self._ended_at, span.ended_at)
        if key.kind in MODEL_KINDS and self._is_outermost(key):
            self._note_model(span)
        if key.kind == "turn":
            steps = self._step(key.id, key, span)
            if self._is_outermost(key):
                self._failure = steps[0].failure
            return steps
        if key.kind == "agent":
            if span.failure is not None and self._is_outermost(key):
                self._failure = span.failure
            return self._step(key.id, key, span) if self._owners.get(key.id) else []
        if key.kind == "task":
            if span.failure is not None and self._is_outermost(key):
                self._failure = span.failure
            return []
        owner = self._owner_of(key)
        held = self._owners.setdefault(owner.id if owner else "", _Owner())
        done: list[TracedStep] = []
        if key.kind in MODEL_KINDS and owner is not None and owner.kind == "agent" and held.has_model:
            done = self._step(owner.id, owner, None)
            held = self._owners.setdefault(owner.id, _Owner())
        held.spans.append(span)
        return done

    def end(self, at: int) -> tuple[list[TracedStep], TraceEnd]:
        """End the trace.

        Args:
            at: When it ended, microseconds. If a span of it ended later, that time counts instead.

        Returns:
            Its last steps, and how it ended.
        """
        steps = [
            step for owner in [*self._owners]
            for step in self._step(owner, self._places.get(owner, SpanKey("", "", "", "trace", self._name)), None)
        ]  # fmt: skip
        outcome: Outcome = "failed" if self._failure is not None else "unknown" if self.open else "succeeded"
        self.open.clear()
        return steps, TraceEnd(outcome, self._output, self._failure, max(at, self._ended_at))

    def _note_model(self, span: EndedSpan) -> None:
        members = span.members
        if self.input is None:
            self.input = members.get("input")
        self._output = text_of_answer(members) or self._output

    def _enclosing_spans(self, key: SpanKey) -> Iterable[SpanKey]:
        """Yield the turns, agents, tasks and functions that a span is in, the nearest first."""
        seen = {key.id}
        parent = self._places.get(key.parent)
        while parent is not None and parent.id not in seen:
            seen.add(parent.id)
            yield parent
            parent = self._places.get(parent.parent)

    def _owner_of(self, key: SpanKey) -> SpanKey | None:
        return next((each for each in self._enclosing_spans(key) if each.kind in ("turn", "agent")), None)

    def _is_outermost(self, key: SpanKey) -> bool:
        return all(each.kind != "function" for each in self._enclosing_spans(key))

    def _step(self, owner: str, place: SpanKey, ended: EndedSpan | None) -> list[TracedStep]:
        spans = sorted(self._owners.pop(owner, _Owner()).spans, key=lambda each: (each.started_at, each.ended_at))
        if not spans and ended is None:
            return []
        self._count += 1
        models = [each for each in spans if each.key.kind in MODEL_KINDS]
        failure = ended.failure if ended is not None and place.kind == "turn" else None
        failure = failure or (models[-1].failure if models else None)
        calls = tuple(call for each in spans for call in self._calls(each))
        shown = spans if ended is None else [*spans, ended]
        result = {
            "agent": place.name, "within": [f"{each.kind} {each.name}" for each in self._enclosing_spans(place)],
            "spans": [_span_json(each) for each in shown if each.key.kind not in (*MODEL_KINDS, "function")],
        }  # fmt: skip
        started_at = min(each.started_at for each in shown)
        ended_at = max(each.ended_at for each in shown)
        return [TracedStep(self._count, place.name, calls, result, failure, started_at, ended_at)]

    def _calls(self, span: EndedSpan) -> list[TracedCall]:
        if span.key.kind in _TIMED_BY_CALLS:
            return [self._call(span)]
        return [TracedCall("now", "", None, at, None, at, at) for at in (span.started_at, span.ended_at)]

    def _call(self, span: EndedSpan) -> TracedCall:
        members, kind = span.members, span.key.kind
        request: Plain
        answer: Plain = None
        if kind in MODEL_KINDS:
            request, answer = request_of_span(members), answer_of(members)
            model = request["kwargs"].get("model")
            return self._traced_call("model", str(model or kind), request, answer, span)
        if kind == "function":
            # A text that is no JSON is the argument itself: of a tool that is no function.
            return self._traced_call(
                "tool", span.key.name, _arguments(members.get("input")), members.get("output"), span
            )
        if kind == "mcp_tools":
            request = {"args": [], "kwargs": {"server": members.get("server")}}
            return self._traced_call("tool", "mcp:tools/list", request, members.get("result"), span)
        if kind == "handoff":
            request = {"choice": f"handoff to {members.get('to_agent')}", "why": "", "options": None}
        else:
            verdict = "stopped it" if members.get("triggered") else "let it pass"
            request = {"choice": f"guardrail {span.key.name} {verdict}", "why": "", "options": None}
        return TracedCall("decide", "", request, None, span.failure, span.started_at, span.ended_at)

    def _traced_call(self, kind: str, name: str, request: Plain, answer: Plain, span: EndedSpan) -> TracedCall:
        """Return a call; only a reference to it, if a run of refold records it."""
        if self._source:
            request = {"args": [], "kwargs": {"recorded_in": f"run/{self._source}"}}
            answer = None
        return TracedCall(kind, name, request, answer, span.failure, span.started_at, span.ended_at)


def _arguments(given: Any) -> Plain:
    parsed = given
    if isinstance(given, str):
        with contextlib.suppress(msgspec.DecodeError):
            parsed = msgspec.json.decode(given)
    if isinstance(parsed, dict):
        return {"args": [], "kwargs": parsed}
    return {"args": [] if given is None else [given], "kwargs": {}}


def _span_json(span: EndedSpan) -> Plain:
    failure = {} if span.failure is None else {"error": span.failure.message}
    return {"type": span.key.kind, **span.members, **failure}
