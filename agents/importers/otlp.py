"""Import traces of agents from OTLP JSON: lines of the OpenTelemetry Collector's file exporter, or one document.

    {"resourceSpans": [{"resource": ..., "scopeSpans": [{"scope": ..., "spans": [{"traceId", "spanId", ...}]}]}]}

A trace is a run. Its spans come in any order, over many lines, mixed with spans of other traces. So the file is read
twice:

1. The first pass notes the last line of each trace.
2. The second pass buffers the spans of each trace as text, and emits the whole trace at its last line.
   --max-conversation-bytes bounds the size of all buffered spans.

How a trace becomes a conversation (spans.py interprets each span):

3. A call of a model is a step. Its input messages that are new in the trace get the time at which the span began; its
   answer gets the time at which the span ended.
4. A call of a tool answers the call that a model requested: the one with its id, else one with its name and arguments.
   Tool calls that no model requested become a step of their own, one step for each parent span.
5. All other spans are stored unchanged; those of an unknown kind are counted.
6. A log record that names a span is joined to it, wherever in the file it is. Some libraries write messages as logs.

Times are the spans' own. A run's id depends on the content of all its spans, in any order, so a second import adds
nothing. If another file holds more of a trace, the trace is a different run in that file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from refold.agents.importers.file import Budget, ImportFile
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, ToolCall, parse_messages, record, text_of
from refold.agents.importers.model import Conversation, Importer
from refold.agents.importers.spans import LOGS, ImportedSpan, attributes_of, time_of, time_of_log
from refold.avro.canonical import json_text
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "otlp"
SIGNALS = ("resourceMetrics", "resourceProfiles")
ANCESTORS_MAX = 32
AGENT_NAMES = ("gen_ai.agent.name", "traceloop.workflow.name", "agent.name")
NAMES = (*AGENT_NAMES, "traceloop.entity.name")
ABOUT = ("session.id", "user.id", "gen_ai.conversation.id", "gen_ai.agent.id", "tag.tags", "metadata")


def conversations(file: ImportFile) -> Iterator[Conversation]:
    """Yield the traces of a file, in the order in which they become complete.

    Raises:
        InputError: A line is damaged or not OTLP JSON, or a limit is exceeded; the message names file and line.
    """
    last = _last_values(file)
    held: dict[str, Trace] = {}
    size = 0
    for number, line in enumerate(file.values()):
        complete: dict[str, None] = {}
        for part in _parts(line.value, file):
            if part.trace_id not in held:
                held[part.trace_id] = Trace(part.trace_id)
            size += held[part.trace_id].add(part, line.place)
            if last[part.trace_id] == number:
                complete[part.trace_id] = None
        if size > file.limits.conversation_bytes:
            raise InputError(
                f"{line.place}: the {len(held):,} traces that are not complete here hold more than "
                f"{file.limits.conversation_bytes:,} bytes; if they are meant to, raise the bound with "
                "--max-conversation-bytes, or sort the file by trace"
            )
        for trace_id in complete:
            trace = held.pop(trace_id)
            size -= trace.size
            if trace.spans:
                yield trace.conversation(file)
            else:
                trace.leave_out_logs(file)


def recognised(value: Value) -> str:
    """Describe a value if it is a part of such a file; return an empty string if it is not."""
    spans = value.get("resourceSpans") if isinstance(value, Mapping) else None
    return "spans as OTLP JSON" if isinstance(spans, list) else ""


def _last_values(file: ImportFile) -> dict[str, int]:
    """Return, for each trace, the number of the value that holds its last span."""
    last: dict[str, int] = {}
    has_spans = False
    first = file.again()
    for number, line in enumerate(first.values()):
        if not isinstance(line.value, Mapping) or not ({"resourceSpans", "resourceLogs", *SIGNALS} & line.value.keys()):
            raise InputError(f"{line.place}: a line of OTLP JSON is an object with resourceSpans")
        for part in _parts(line.value, first):
            last[part.trace_id] = number
            has_spans = has_spans or isinstance(part, SpanPart)
        if len(last) > file.limits.items:
            raise InputError(
                f"{line.place}: the file holds more than {file.limits.items:,} traces; split it, or raise the bound "
                "with --max-items"
            )
    if not has_spans:
        raise InputError(f"{file.shown}: holds no span with a trace id and a span id")
    return last


class SpanPart(NamedTuple):
    """A span as it is written in the file, with the resource and the scope that it belongs to."""

    trace_id: str
    span: Mapping[str, Value]
    resource: Value
    scope: str


class LogPart(NamedTuple):
    """A log record as it is written in the file, which names a span."""

    trace_id: str
    span_id: str
    log: Mapping[str, Value]


def _parts(value: Value, file: ImportFile) -> Iterator[SpanPart | LogPart]:
    """Yield the spans of a line, and its log records that name one. Items in their place that are neither are
    counted.
    """
    given = value if isinstance(value, Mapping) else {}
    for signal in SIGNALS:
        if signal in given:
            file.leave_out(f"line of {signal}")
    for of_resource in _objects(given.get("resourceSpans"), file):
        resource = of_resource.get("resource")
        scopes = of_resource.get("scopeSpans", of_resource.get("instrumentationLibrarySpans"))
        for of_scope in _objects(scopes, file):
            scope = of_scope.get("scope", of_scope.get("instrumentationLibrary"))
            name = scope.get("name") if isinstance(scope, Mapping) else None
            for span in _objects(of_scope.get("spans"), file):
                trace_id, span_id = span.get("traceId"), span.get("spanId")
                if isinstance(trace_id, str) and trace_id and isinstance(span_id, str) and span_id:
                    yield SpanPart(_lower(trace_id), span, resource, text_of(name))
                else:
                    file.leave_out("span without a trace id or a span id")
    for of_resource in _objects(given.get("resourceLogs"), file):
        for of_scope in _objects(of_resource.get("scopeLogs"), file):
            for log in _objects(of_scope.get("logRecords"), file):
                trace_id, span_id = text_of(log.get("traceId")), text_of(log.get("spanId"))
                if trace_id and span_id:
                    yield LogPart(_lower(trace_id), _lower(span_id), log)
                else:
                    file.leave_out("log record that names no span")


def _objects(given: Value, file: ImportFile) -> Iterator[Mapping[str, Value]]:
    for each in given if isinstance(given, list) else () if given is None else [given]:
        if isinstance(each, Mapping):
            yield each
        else:
            file.leave_out("part that is no object")


def _lower(identity: str) -> str:
    """Return a hex id in lower case, and any other id unchanged."""
    return identity.lower() if len(identity) in (16, 32) else identity


@dataclass(slots=True)
class Trace:
    """A trace that may be incomplete: the texts of its spans, each with the number of its resource.

    Attributes:
        resources: The number of each resource, by its text.
        logs: The text of each log record and its place, by its span's id.
        size: The number of characters of all texts.
    """

    id: str
    spans: list[tuple[str, str, int, str]] = field(default_factory=list)
    resources: dict[str, int] = field(default_factory=dict)
    logs: dict[str, dict[str, str]] = field(default_factory=dict)
    size: int = 0

    def add(self, part: SpanPart | LogPart, place: str) -> int:
        """Buffer a span, or a log record.

        Returns:
            The number of characters that were added.
        """
        if isinstance(part, LogPart):
            text = json_text(part.log)
            self.logs.setdefault(part.span_id, {})[text] = place
            self.size += len(text)
            return len(text)
        text, resource = json_text(part.span), json_text(part.resource)
        grown = len(text)
        if resource not in self.resources:
            self.resources[resource] = len(self.resources)
            grown += len(resource)
        self.spans.append((place, text, self.resources[resource], part.scope))
        self.size += grown
        return grown

    def _said(self) -> list[Value]:
        """Return the content of all spans, without duplicates, in an order that does not depend on the file's."""
        resources = list(self.resources)
        return [list(each) for each in sorted({(text, resources[number]) for _, text, number, _ in self.spans})]

    def leave_out_logs(self, file: ImportFile, known: Collection[str] = ()) -> None:
        """Count the log records whose span is not known."""
        for span_id in self.logs.keys() - set(known):
            for _ in self.logs[span_id]:
                file.leave_out("log record whose span is not there")

    def _join_logs(self, spans: dict[str, ImportedSpan], file: ImportFile, budget: Budget) -> None:
        """Add to each span the log records that name it, in the order of their times."""
        self.leave_out_logs(file, spans)
        for span_id in self.logs.keys() & spans.keys():
            found: list[tuple[int, str, Value]] = []
            for text, place in self.logs[span_id].items():
                budget.take(text, place)
                log = parse_json(text, place, file.limits)
                assert isinstance(log, Mapping)
                found.append((time_of_log(log) or 0, text, log))
            logs = [log for _, _, log in sorted(found, key=lambda each: each[:2])]
            spans[span_id] = replace(spans[span_id], given={**spans[span_id].given, LOGS: logs})

    def conversation(self, file: ImportFile, *, keeps_spans: bool = True) -> Conversation:
        """Return the trace as a conversation.

        Args:
            file: The file that the spans are from.
            keeps_spans: Whether messages hold their whole spans. Without them, only names of spans are held, so that
                traces of the same conversation are equal.

        Raises:
            InputError: The trace exceeds a limit.
        """
        budget = file.budget()
        spans: dict[str, ImportedSpan] = {}
        for place, text, _, _ in self.spans:
            budget.take(text, place)
            span = span_of(self.id, parse_json(text, place, file.limits), place)
            before = spans.get(span.id)
            if before is not None and before.given == span.given:  # the exporter got no response and sent it again
                file.leave_out("span that was there before")
            else:
                spans[span.id if before is None else f"{span.id} {len(spans)}"] = span
        self._join_logs(spans, file, budget)
        ordered = sorted(spans.values(), key=lambda span: (span.started_at or 0, span.parent != "", span.id))
        root = next((each for each in ordered if each.parent not in spans), ordered[0])
        messages = _Messages(spans, file, keeps_spans=keeps_spans).of(ordered)
        resources = [parse_json(text, self.spans[0][0], file.limits) for text in sorted(self.resources)]
        named = [attributes_of(each) for each in resources if isinstance(each, Mapping)]
        agent = _first([root, *ordered], NAMES) or text_of(named[0].get("service.name") if named else None) or FORMAT
        about = {name: root.attributes[name] for name in ABOUT if name in root.attributes}
        scopes = sorted({scope for _, _, _, scope in self.spans if scope})
        questions = (each.text for each in messages if each.role == "user" and not each.is_result)
        starts = [each.started_at for each in ordered if each.started_at is not None]
        logs: list[Value] = [
            list(each) for each in sorted((text, own) for own, texts in self.logs.items() for text in texts)
        ]
        outcome = {True: "failed", False: "succeeded", None: ""}[root.has_failed]
        usage = [each.tokens for each in ordered if each.kind == "model"]
        counted = {"input_tokens": sum(each for each, _ in usage), "output_tokens": sum(each for _, each in usage)}
        return Conversation(
            run=file.run_of({FORMAT: self.id, "spans": self._said(), **({"logs": logs} if logs else {})}),
            messages=messages,
            agent=agent,
            imported_from=FORMAT,
            place=ordered[0].place,
            start=min(starts, default=None),
            model=next((each.model for each in ordered if each.model), ""),
            title=root.name,
            input=root.input if root.input is not None else next(questions, None),
            output=root.output,
            outcome=outcome,
            metadata={"trace_id": self.id, "resources": named, "scopes": scopes, **about},
            usage={name: count for name, count in counted.items() if count},
        )  # fmt: skip


def span_of(trace_id: str, given: Value, place: str) -> ImportedSpan:
    """Return a span from the object that OTLP JSON has for it.

    Args:
        trace_id: The id of its trace, in lower case.
        given: The object.
        place: FILE:LINE, for messages.
    """
    assert isinstance(given, Mapping)
    return ImportedSpan(
        trace_id=trace_id, id=_lower(text_of(given.get("spanId"))), parent=_lower(text_of(given.get("parentSpanId"))),
        name=text_of(given.get("name")), started_at=time_of(given.get("startTimeUnixNano")),
        ended_at=time_of(given.get("endTimeUnixNano")), attributes=attributes_of(given), given=given, place=place,
    )  # fmt: skip


class _Messages:
    """Builds the messages of one trace, in the order of their times."""

    def __init__(self, spans: Mapping[str, ImportedSpan], file: ImportFile, *, keeps_spans: bool) -> None:
        self._spans = spans
        self._keeps_spans = keeps_spans
        self._file = file
        self._made: list[tuple[int, Message]] = []
        self._said: Counter[str] = Counter()
        self._open: list[ToolCall] = []  # calls that a model requested and that are not answered yet
        self._answered: set[str] = set()
        self._steps: dict[
            str, list[ImportedSpan]
        ] = {}  # calls that no model requested, by the id of the parent span of each

    def of(self, ordered: list[ImportedSpan]) -> list[Message]:
        """Return all messages of the spans; at least one."""
        for span in ordered:
            if span.kind == "model":
                self._model(span)
            elif span.kind == "tool":
                self._tool(span)
            else:
                if not span.kind:
                    self._file.keep(f"span of kind {span.kind_said}" if span.kind_said else "span without a known kind")
                self._put(span.started_at, record("span", self._shown(span), span.started_at))
        for parent, calls in self._steps.items():
            self._step(self._spans.get(parent), calls)
        made = sorted(self._made, key=lambda each: each[0])  # stable: equal times keep the order of the spans
        return [message for _, message in made]

    def _put(self, at: int | None, message: Message) -> None:
        """Add a message at its time. A message without a time gets the time of the one before it."""
        before = self._made[-1][0] if self._made else 0
        self._made.append((before if at is None else at, message))

    def _model(self, span: ImportedSpan) -> None:
        asked, answered = span.said()
        own: Counter[str] = Counter()
        for given in asked:
            key = _key(given)
            own[key] += 1
            call_id = text_of(given.get("tool_call_id")) if given["role"] == "tool" else ""
            if call_id and call_id in self._answered:
                continue
            if own[key] > self._said[key]:
                if call_id:
                    self._settle(call_id)
                self._said[key] += 1
                for message in parse_messages([given], span.place):
                    self._put(span.started_at, replace(message, at=span.started_at))
        if not answered:
            if span.has_failed:
                self._put(span.ended_at, record("failed model call", self._shown(span), span.ended_at))
                return
            answered = [{"role": "assistant", "content": _output(span)}]
        for number, given in enumerate(answered):
            self._said[_key(given)] += 1
            at = span.ended_at or span.started_at
            for message in parse_messages([given], span.place):
                self._open += message.calls
                extra = self._shown(span) if not number else {}
                self._put(at, replace(message, at=at, extra={**message.extra, **extra}))

    def _tool(self, span: ImportedSpan) -> None:
        named = [each for each in self._open if each.tool == span.tool]
        if span.call_id:
            same = [each for each in self._open if each.call_id == span.call_id]
            if not same and span.call_id not in self._answered:
                # No message has this id: Google ADK gives a call one id for its span, and another for its messages.
                same = [each for each in named if each.inputs == span.arguments]
            named = same
        call = next((each for each in named if each.inputs == span.arguments), next(iter(named), None))
        if call is None:
            self._steps.setdefault(span.parent, []).append(span)
            return
        self._open.remove(call)
        self._answered.add(call.call_id)
        self._put(span.ended_at, self._result(span, call.call_id))

    def _settle(self, call_id: str) -> None:
        """Mark a call as answered by a message, so that no tool span answers it any more."""
        self._answered.add(call_id)
        self._open = [each for each in self._open if each.call_id != call_id]

    def _step(self, parent: ImportedSpan | None, calls: list[ImportedSpan]) -> None:
        """Add a step of calls that no model requested."""
        at = min((each.started_at for each in calls if each.started_at is not None), default=None)
        calls_made = tuple(ToolCall(each.tool, each.arguments, each.id) for each in calls)
        extra: dict[str, Value] = {} if parent is None else {"parent_span": parent.name}
        if parent is not None and self._keeps_spans:
            extra["parent_span_id"] = parent.id
        self._put(at, Message(role="assistant", content=None, calls=calls_made, at=at, extra=extra))
        for each in calls:
            self._put(max(each.ended_at or 0, at or 0) or None, self._result(each, each.id))

    def _result(self, span: ImportedSpan, call_id: str) -> Message:
        result = span.result
        if result is None:
            result = span.error if span.has_failed else ""
        return Message(
            role="tool", content=result, name=span.tool, tool_call_id=call_id, result=result,
            failed=bool(span.has_failed), at=span.ended_at, extra=self._shown(span),
        )  # fmt: skip

    def _shown(self, span: ImportedSpan) -> dict[str, Value]:
        """Return a span as messages hold it, with the names of its ancestors."""
        above: list[Value] = []
        parent = self._spans.get(span.parent)
        while parent is not None and len(above) < ANCESTORS_MAX:
            above.append(parent.name)
            parent = self._spans.get(parent.parent)
        shown = dict(span.without_messages()) if self._keeps_spans else {"name": span.name}
        return {"span": shown, **({"below": above} if above else {})}


def _key(given: Mapping[str, Value]) -> str:
    """Return the parts of a message that decide whether two messages are equal."""
    return json_text([given.get(name) for name in ("role", "content", "tool_call_id", "tool_calls")])


def _output(span: ImportedSpan) -> Value:
    """Return the output of a model call whose messages the span does not contain."""
    output = span.output
    return output if output is None or isinstance(output, str) else json_text(output)


def _first(spans: list[ImportedSpan], names: tuple[str, ...]) -> str:
    found = (text_of(span.attributes.get(name)) for span in spans for name in names)
    return next(filter(None, found), "")


IMPORTER = Importer(
    name=FORMAT,
    summary="traces of agents as OTLP JSON, of the OpenTelemetry Collector's file exporter",
    recognise=recognised,
    read=conversations,
)
