"""A recorded run as OpenTelemetry spans: one trace per run, with the recorded times.

    span "invoke_agent AGENT"       the run; a fork links to its parent's, and has only its own steps; a nested run
                                    links to the step that began it, and is an event of that step
      span "NAME"                   a step, over all its attempts; what it decided, read and observed are its events
        span "execute_tool TOOL"    a tool call, of any attempt
        span "chat MODEL"           a model call

1. `spans` maps a recording to spans. It is pure, and needs no package of OpenTelemetry.
2. `export` passes them to the processors of an SDK's TracerProvider, and so to the exporters that it has.

Ids are computed from the run's id and the position in the run. So exporting twice, or again after the run has
continued, gives the same spans. Each failure, also of a retried attempt, is an `exception` event at its time.
Our own attributes are named `refold.*`. Agents, tools and models use the names of the GenAI conventions, as of 2026 in
their own repository; the provider also has the name that it had until 1.36 (`gen_ai.system`).

Exported data is outside of the log: destroying the run's key does not make it unreadable. `content=False` leaves out
what may contain somebody's words: arguments, messages and tracebacks of errors, decisions.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from refold.agents.journal.difference import shown
from refold.agents.journal.record import Attempt, Call, Failure, Kind, Outcome, Plain, Recording, Step, child_of
from refold.agents.recorder.observations import model_call
from refold.avro.canonical import encode, json_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SCOPE = "refold"
UNKNOWN_SYSTEM = "_OTHER"  # the conventions' name for an unknown provider
SHORT_MAX = 256

_TRACE = b"refold-trace/1\0"
_SPAN = b"refold-span/1\0"
_MODEL_NAMES = {
    "model": "gen_ai.request.model", "temperature": "gen_ai.request.temperature", "top_p": "gen_ai.request.top_p",
    "max_tokens": "gen_ai.request.max_tokens", "seed": "gen_ai.request.seed",
    "response_model": "gen_ai.response.model", "response_id": "gen_ai.response.id",
    "input_tokens": "gen_ai.usage.input_tokens", "output_tokens": "gen_ai.usage.output_tokens",
    "finish_reasons": "gen_ai.response.finish_reasons",
}  # fmt: skip
_REQUEST_NAMES = {
    "top_k": "gen_ai.request.top_k", "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
}  # fmt: skip
# By the paths under `usage` in the answers of providers.
_USAGE_NAMES = {
    ("cache_read_input_tokens",): "gen_ai.usage.cache_read.input_tokens",
    ("cache_creation_input_tokens",): "gen_ai.usage.cache_creation.input_tokens",
    ("prompt_tokens_details", "cached_tokens"): "gen_ai.usage.cache_read.input_tokens",
    ("input_tokens_details", "cached_tokens"): "gen_ai.usage.cache_read.input_tokens",
    ("completion_tokens_details", "reasoning_tokens"): "gen_ai.usage.reasoning.output_tokens",
    ("output_tokens_details", "reasoning_tokens"): "gen_ai.usage.reasoning.output_tokens",
}
_SPANNED: frozenset[Kind] = frozenset({"tool", "model"})
_FAILED: frozenset[Outcome] = frozenset({"failed", "timed_out"})
_TOLD: frozenset[Kind] = frozenset({"decide", "read", "observe", "run"})

Attributes: TypeAlias = Mapping[str, "str | bool | int | float | Sequence[str]"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened at one moment of a span.

    Attributes:
        at: When it happened, in microseconds since 1970.
    """

    name: str
    at: int
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are microseconds since 1970.

    Attributes:
        trace_id: The id of the trace, of 128 bits.
        span_id, parent_id: The ids of the span and of its parent, of 64 bits; 0 for no parent.
        is_remote: Whether it was a call to another service.
        error: Why it failed; None if it did not.
        link: The trace and span of the run or step that it came from.
    """

    trace_id: int
    span_id: int
    parent_id: int
    name: str
    started_at: int
    ended_at: int
    attributes: Attributes
    events: tuple[Event, ...] = ()
    is_remote: bool = False
    error: str | None = None
    link: tuple[int, int] | None = None


def trace_id_of(run: str) -> int:
    """Return the id of a run's trace."""
    return int.from_bytes(hashlib.sha256(_TRACE + run.encode()).digest()[:16], "big") or 1  # 0 is not a valid id


def spans(recording: Recording, *, system: str = UNKNOWN_SYSTEM, content: bool = True) -> list[Span]:
    """Return the spans of a run, parents first. A run that has not ended ends with what is known of it.

    Args:
        recording: The run.
        system: The provider of models whose calls do not name one (`provider` in the request or the answer), by its
            name in the GenAI conventions: "openai", "anthropic".
        content: Whether the spans include arguments, messages and tracebacks of errors, and decisions.
    """
    return _Mapping(recording, system, content=content).spans()


def export(
    recording: Recording, provider: TracerProvider, *, system: str = UNKNOWN_SYSTEM, content: bool = True
) -> str:
    """Pass a run's spans to the SDK's provider.

    Whether they have been sent when this returns depends on the provider's processors; `provider.force_flush()` sends
    them.

    Args:
        recording: The run.
        provider: The SDK's TracerProvider.
        system: As for `spans`.
        content: As for `spans`.

    Returns:
        The trace's id, 32 hex digits.
    """
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Tracer
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class GivenIds(IdGenerator):
        span_id = 0

        def generate_span_id(self) -> int:
            return self.span_id

        def generate_trace_id(self) -> int:
            return trace_id_of(recording.run)

    ids = GivenIds()
    tracer = copy.copy(provider.get_tracer(SCOPE))  # a copy, because all callers of the provider share one tracer
    if isinstance(tracer, Tracer):  # any other tracer means that the environment switched the SDK off
        tracer.id_generator = ids
    started: dict[int, trace.Span] = {}
    mapped = spans(recording, system=system, content=content)
    for each in mapped:
        ids.span_id = each.span_id
        parent = started.get(each.parent_id)
        links = [] if each.link is None else [trace.Link(trace.SpanContext(*each.link, is_remote=True))]
        span = started[each.span_id] = tracer.start_span(
            each.name, Context() if parent is None else trace.set_span_in_context(parent, Context()),
            trace.SpanKind.CLIENT if each.is_remote else trace.SpanKind.INTERNAL,
            each.attributes, links, each.started_at * 1000,
        )  # fmt: skip
        for event in each.events:
            span.add_event(event.name, event.attributes, event.at * 1000)
        if each.error is not None:
            span.set_status(trace.Status(trace.StatusCode.ERROR, each.error))
    for each in reversed(mapped):  # the root last: some processors take its end as the end of the trace
        started[each.span_id].end(each.ended_at * 1000)
    return trace.format_trace_id(trace_id_of(recording.run))


class _Mapping:
    """Builds the spans of one recording."""

    def __init__(self, recording: Recording, system: str, *, content: bool) -> None:
        self._recording = recording
        self._system = system
        self._content = content
        self._trace_id = trace_id_of(recording.run)

    def spans(self) -> list[Span]:
        run, root = self._recording, _span_id(self._recording.run)
        own = [each for each in run.steps if each.number > run.forked_at]
        started_at = run.started_at or min((time for each in own if (time := _began(each))), default=0)
        below: list[Span] = []
        ended_at = started_at
        for step in own:
            below += (made := self._step(step, root, ended_at))
            ended_at = max(ended_at, made[0].ended_at)
        attributes = {
            "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": run.agent,
            "gen_ai.agent.version": run.version, "refold.run": run.run,
            "refold.version": run.version, "refold.kind": run.kind, "refold.outcome": run.outcome,
            "refold.hash": run.hash, "refold.parent": run.parent, "refold.tags": run.tags,
            "refold.caller": run.caller, "refold.caller_step": run.caller_step or None,
        }  # fmt: skip
        ended_at = max(ended_at, run.ended_at)
        return [
            self._span(
                root, 0, f"invoke_agent {run.agent}".rstrip(), started_at, ended_at, attributes, run.failure,
                outcome=run.outcome, link=_link_of(run),
            ),
            *below,
        ]  # fmt: skip

    def _step(self, step: Step, root: int, before: int) -> list[Span]:
        """Return the spans of a step and its calls. before: when the step before it ended, microseconds."""
        own = _span_id(self._recording.run, step.number)
        started_at = _began(step) or before
        calls: list[Span] = []
        events: list[Event] = []
        for attempt in step.attempts:
            at = attempt.started_at or started_at
            calls += [self._call(call, step, attempt, place, own, at)
                      for place, call in enumerate(attempt.calls) if call.asked.kind in _SPANNED]  # fmt: skip
            events += [self._call_event(call, at) for call in attempt.calls if call.asked.kind in _TOLD]
            if attempt.failure is not None:
                more = {"refold.attempt": attempt.number, "refold.backoff_ms": attempt.backoff_ms}
                events.append(self._exception(attempt.failure, attempt.ended_at or at, more))
        ended_at = max([started_at, *(each.ended_at for each in step.attempts), *(each.ended_at for each in calls)])
        attributes = {
            "refold.step": step.number, "refold.retry": max(len(step.attempts) - 1, 0), "refold.outcome": step.outcome,
            "refold.hash": step.hash,
        }  # fmt: skip
        if step.is_committed:
            attributes["refold.success"] = step.outcome == "succeeded"
        name = step.name or f"step {step.number}"
        span = self._span(own, root, name, started_at, ended_at, attributes, step.failure, tuple(events),
                          outcome=step.outcome)  # fmt: skip
        return [span, *calls]

    def _call(self, call: Call, step: Step, attempt: Attempt, place: int, parent: int, at: int) -> Span:
        """Return the span of a tool or model call. at: its start, if that is not recorded."""
        request, started_at = call.asked, call.started_at or at
        ended_at = started_at + round(call.duration_ms * 1000)
        is_model = request.kind == "model"
        name, attributes = self._model(call) if is_model else self._tool(call)
        attributes |= {
            "refold.step": step.number, "refold.attempt": attempt.number, "refold.retry": len(call.retries),
            "refold.success": call.failure is None, "refold.source": call.source,
        }  # fmt: skip
        if call.answer is not None or call.failure is None:
            attributes["refold.result_size"] = len(json_text(call.answer).encode())
        events = [self._exception(each.failure, started_at, {"refold.attempt": each.attempt,
                  "refold.backoff_ms": each.backoff_ms}) for each in call.retries]  # fmt: skip
        if call.failure is not None:
            events.append(self._exception(call.failure, ended_at, {"refold.attempt": len(call.retries) + 1}))
        own = _span_id(self._recording.run, step.number, attempt.number, place)
        return self._span(own, parent, name, started_at, ended_at, attributes, call.failure, tuple(events),
                          is_remote=is_model)  # fmt: skip

    def _tool(self, call: Call) -> tuple[str, dict[str, Plain]]:
        request = call.asked
        attributes = {
            "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": request.name, "gen_ai.tool.type": "function",
            "refold.effect": request.effect,
            "refold.idempotency_key": call.key,
        }  # fmt: skip
        if self._content:
            given = _members(request.request)
            named = given.get("kwargs", {})
            attributes["gen_ai.tool.call.arguments"] = _short(given if given.get("args") else named)
        return f"execute_tool {request.name}", attributes

    def _model(self, call: Call) -> tuple[str, dict[str, Plain]]:
        exchange = model_call(call)
        attributes = {ours: exchange.get(name) for name, ours in _MODEL_NAMES.items()} | _model_details(
            call, content=self._content
        )
        system = exchange.get("provider") or self._system
        attributes |= {
            "gen_ai.operation.name": "chat", "gen_ai.system": system, "gen_ai.provider.name": system,
        }  # fmt: skip
        return f"chat {exchange.get('model') or exchange.get('response_model') or call.asked.name}", attributes

    def _call_event(self, call: Call, at: int) -> Event:
        """Return an event for a call that is not a span here: a decision, a read, an observation, a nested run."""
        request = call.asked
        attributes: dict[str, Plain] = {"refold.entity": request.name}
        if request.kind == "run":
            attributes = {"gen_ai.agent.name": request.name, "refold.run": child_of(call)}
        if request.kind == "decide" and self._content:
            members = _members(request.request)
            attributes |= {"refold.choice": _short(members.get("choice")), "refold.why": _short(members.get("why"))}
        return Event(f"refold.{request.kind}", call.started_at or at, _present(attributes))

    def _exception(self, failure: Failure, at: int, more: Mapping[str, Plain]) -> Event:
        attributes = {"exception.type": failure.exception, **more}
        if self._content:
            attributes |= {"exception.message": failure.message, "exception.stacktrace": failure.traceback}
        return Event("exception", failure.at or at, _present(attributes))

    def _span(
        self, own: int, parent: int, name: str, started_at: int, ended_at: int, attributes: Mapping[str, Plain],
        failure: Failure | None, events: tuple[Event, ...] = (), *, outcome: Outcome = "", is_remote: bool = False,
        link: tuple[int, int] | None = None,
    ) -> Span:  # fmt: skip
        more = {
            "error.type": failure.exception if failure else None,
            "refold.duration_ms": (ended_at - started_at) / 1000,
        }
        is_failed = failure is not None or outcome in _FAILED  # an imported run may have only an outcome
        error = (failure.message if failure and self._content else "") if is_failed else None
        return Span(self._trace_id, own, parent, name, started_at, ended_at, _present({**attributes, **more}), events,
                    is_remote, error, link)  # fmt: skip


def _link_of(run: Recording) -> tuple[int, int] | None:
    """Return trace and span of the run or step that a run came from: its parent, or the step in which it began."""
    if run.parent:
        return trace_id_of(run.parent), _span_id(run.parent)
    return (trace_id_of(run.caller), _span_id(run.caller, run.caller_step)) if run.caller else None


def _span_id(run: str, *place: int) -> int:
    """Return a span's id, by its position: a run, a step in it, a call in an attempt of the step."""
    return int.from_bytes(hashlib.sha256(_SPAN + encode([run, *place])).digest()[:8], "big") or 1  # 0 is not a valid id


def _began(step: Step) -> int:
    """Return when a step began; 0 if that is not known."""
    return min((each.started_at for each in step.attempts if each.started_at), default=0)


def _model_details(call: Call, *, content: bool) -> dict[str, Plain]:
    """Return the attributes of a model's request and answer that a step's observation does not repeat."""
    arguments, usage = (
        _members(_members(call.asked.request).get("kwargs")),
        _members(_members(call.answer).get("usage")),
    )
    found: dict[str, Plain] = {}
    for name, ours in _REQUEST_NAMES.items():
        if isinstance(arguments.get(name), int | float) and not isinstance(arguments[name], bool):
            found[ours] = float(arguments[name])
    if isinstance(arguments.get("n"), int) and not isinstance(arguments["n"], bool) and arguments["n"] != 1:
        found["gen_ai.request.choice.count"] = arguments["n"]
    if isinstance(arguments.get("stream"), bool):
        found["gen_ai.request.stream"] = arguments["stream"]
    stops = arguments.get("stop_sequences", arguments.get("stop"))
    stops = [stops] if isinstance(stops, str) else stops
    if content and isinstance(stops, list) and all(isinstance(each, str) for each in stops):
        found["gen_ai.request.stop_sequences"] = stops
    for path, ours in _USAGE_NAMES.items():
        count: Plain = usage
        for part in path:
            count = _members(count).get(part)
        if isinstance(count, int) and not isinstance(count, bool):
            found[ours] = count
    return found


def _short(value: Plain) -> str:
    return value if isinstance(value, str) and len(value) <= SHORT_MAX else shown(value, SHORT_MAX)


def _members(tree: Plain) -> Mapping[str, Plain]:
    return tree if isinstance(tree, dict) else {}


def _present(attributes: Mapping[str, Plain]) -> Attributes:
    """Return the attributes that have a value; integers that do not fit into 64 bits become text."""
    return {
        name: str(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value
        for name, value in attributes.items() if value not in (None, "", (), [])
    }  # fmt: skip
