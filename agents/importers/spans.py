"""Read a span of an agent by the conventions that libraries write: OpenTelemetry's for GenAI, OpenInference's, and
OpenLLMetry's (traceloop).

    what        GenAI                         OpenInference                 OpenLLMetry
    kind        gen_ai.operation.name         openinference.span.kind       traceloop.span.kind, llm.request.type
    messages    gen_ai.input.messages,        llm.input_messages.N.message  gen_ai.prompt.N, gen_ai.completion.N
                gen_ai.output.messages,
                events, and logs
    tool        gen_ai.tool.name, .call.id,   tool.name, tool.parameters    traceloop.entity.name
                .call.arguments, .call.result
    in and out  -                             input.value, output.value     traceloop.entity.input, .output
    tokens      gen_ai.usage.*                llm.token_count.*             gen_ai.usage.*, llm.usage.*
    provider    gen_ai.provider.name,         llm.provider, llm.system      gen_ai.system, llm.vendor
                gen_ai.system

Nothing here raises: an attribute of an unexpected form is treated as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from refold.agents.importers.messages import parsed, text_of
from refold.avro.canonical import json_text
from refold.avro.observation import Value
from refold.avro.times import TIME_MAX

Kind: TypeAlias = Literal["model", "tool", "part", ""]
"""model: a call of a model. tool: a call of a tool, a retriever and the like. part: a span that groups others.
"": unknown."""

_OPERATIONS: Mapping[str, Kind] = {
    "chat": "model", "text_completion": "model", "generate_content": "model", "execute_tool": "tool",
    "embeddings": "tool", "retrieval": "tool", "invoke_agent": "part", "create_agent": "part",
    "invoke_workflow": "part",
}  # fmt: skip
_OPENINFERENCE: Mapping[str, Kind] = {
    "LLM": "model", "TOOL": "tool", "RETRIEVER": "tool", "EMBEDDING": "tool", "RERANKER": "tool", "AGENT": "part",
    "CHAIN": "part", "PROMPT": "part",
}  # fmt: skip
_TRACELOOP: Mapping[str, Kind] = {"workflow": "part", "task": "part", "agent": "part", "tool": "tool"}
_REQUESTS: Mapping[str, Kind] = {"chat": "model", "completion": "model", "embedding": "tool", "rerank": "tool"}
_KINDS: tuple[tuple[str, Mapping[str, Kind]], ...] = (
    ("openinference.span.kind", _OPENINFERENCE), ("gen_ai.operation.name", _OPERATIONS),
    ("traceloop.span.kind", _TRACELOOP), ("llm.request.type", _REQUESTS),
)  # fmt: skip
_RESPONSE_MODELS = ("gen_ai.response.model", "llm.response.model")
_REQUEST_MODELS = ("gen_ai.request.model", "llm.model_name", "llm.request.model", "embedding.model_name")
_MODELS = ("gen_ai.response.model", "gen_ai.request.model", "llm.model_name", "llm.response.model",
           "llm.request.model")  # fmt: skip
_PROVIDERS = ("gen_ai.provider.name", "gen_ai.system", "llm.provider", "llm.system", "llm.vendor")
_RESPONSE_IDS = ("gen_ai.response.id",)
_FINISH_REASONS = ("gen_ai.response.finish_reasons", "gen_ai.completion.0.finish_reason")
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt",
                 "llm.usage.prompt_tokens")  # fmt: skip
_OUTPUT_TOKENS = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion",
                  "llm.usage.completion_tokens")  # fmt: skip
_CACHED_TOKENS = ("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cache_read_input_tokens",
                  "llm.token_count.prompt_details.cache_read")  # fmt: skip
_TOOL_NAMES = ("gen_ai.tool.name", "tool.name", "tool_call.function.name", "traceloop.entity.name")
_CALL_IDS = ("gen_ai.tool.call.id", "tool_call.id")
_NO_CALL_ID = "<not specified>"
"""What Google ADK writes as the id of a call that failed."""
_ARGUMENTS = (
    "gen_ai.tool.call.arguments", "tool_call.function.arguments", "input.value", "traceloop.entity.input",
    "gcp.vertex.agent.tool_call_args",
    "tool.parameters",  # last: some write the tool's schema there
)  # fmt: skip
_RESULTS = ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output", "gcp.vertex.agent.tool_response")
_INPUTS = ("input.value", "traceloop.entity.input")
_OUTPUTS = ("output.value", "traceloop.entity.output")
_LISTED = ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions")
_ASKED, _ANSWERED, _INSTRUCTIONS = _LISTED
_FLAT = ("llm.input_messages.", "llm.output_messages.", "gen_ai.prompt.", "gen_ai.completion.")
_SPOKEN = {"gen_ai.system.message": "system", "gen_ai.user.message": "user", "gen_ai.assistant.message": "assistant",
           "gen_ai.tool.message": "tool"}  # fmt: skip
_CHOICE, _DETAILS = "gen_ai.choice", "gen_ai.client.inference.operation.details"
MESSAGE_LOGS = frozenset({*_SPOKEN, _CHOICE, _DETAILS})
"""The names of events that hold messages of a call of a model, and that may be sent as logs."""
LOGS = "logs"
"""The member of a span that holds the log records that name it. OTLP has none of this name."""
_ERROR: Final = (2, "STATUS_CODE_ERROR")
_OK: Final = (1, "STATUS_CODE_OK")
_FLAT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class ImportedSpan:
    """One span.

    Attributes:
        given: The span as it is written.
        attributes: The values of its attributes, by name.
        place: The place of the span, as FILE:LINE.
        started_at, ended_at: When it began and when it ended, in microseconds since 1970; None if the span has no such
            time.
        parent: The id of the parent span; "" for a root span.
    """

    trace_id: str
    id: str
    parent: str
    name: str
    started_at: int | None
    ended_at: int | None
    attributes: Mapping[str, Value]
    given: Mapping[str, Value]
    place: str

    @property
    def kind(self) -> Kind:
        """The kind of span, by its attributes."""
        for name, kinds in _KINDS:
            found = kinds.get(text_of(self.attributes.get(name)))
            if found is not None:
                return found
        if any(name in self.attributes for name in _MODELS):
            return "model"
        return "part" if "refold.step" in self.attributes else ""

    @property
    def kind_said(self) -> str:
        """The kind as the span itself names it; empty if it does not."""
        said = (text_of(self.attributes.get(name)) for name, _ in _KINDS)
        return next(filter(None, said), "")

    @property
    def has_failed(self) -> bool | None:
        """Whether the span states that it failed; None if it states neither."""
        status = self.given.get("status")
        code = status.get("code") if isinstance(status, Mapping) else None
        return True if code in _ERROR else False if code in _OK else None

    @property
    def error(self) -> str:
        """The error message of the span; empty if it has none."""
        for event in _events(self.given):
            said = attributes_of(event).get("exception.message")
            if event.get("name") == "exception" and isinstance(said, str) and said:
                return said
        status = self.given.get("status")
        return text_of(status.get("message")) if isinstance(status, Mapping) else ""

    @property
    def model(self) -> str:
        """The name of the model that was called."""
        return self._first(_MODELS)

    @property
    def tool(self) -> str:
        """The name of the tool that was called; else the span's name, without the prefix of the conventions."""
        return self._first(_TOOL_NAMES) or self.name.removeprefix("execute_tool ") or self.kind_said.lower() or "tool"

    @property
    def call_id(self) -> str:
        """The id that the model gave to the call; empty if there is none."""
        found = self._first(_CALL_IDS)
        return ("" if found == _NO_CALL_ID else found) or text_of(self._tool_message().get("tool_call_id"))

    @property
    def arguments(self) -> Value:
        """The arguments that a tool was called with."""
        return self._value(_ARGUMENTS)

    @property
    def result(self) -> str | None:
        """The result of a tool, as text."""
        found = next((self.attributes[name] for name in _RESULTS if name in self.attributes), None)
        found = self._tool_message().get("content", found)
        return found if found is None or isinstance(found, str) else json_text(found)

    @property
    def input(self) -> Value:
        """The input of the span."""
        return self._value(_INPUTS)

    @property
    def output(self) -> Value:
        """The output of the span."""
        return self._value(_OUTPUTS)

    @property
    def tokens(self) -> tuple[int, int]:
        """The tokens of the request and of the answer; 0 if they are not counted."""
        return self._count(_INPUT_TOKENS), self._count(_OUTPUT_TOKENS)

    @property
    def provider(self) -> str:
        """The name of the model's provider, as the span has it."""
        return self._first(_PROVIDERS)

    def model_call(self) -> dict[str, Value]:
        """Return what the span says about its call of a model, as an element of a step's model_calls."""
        reasons = next((self.attributes[name] for name in _FINISH_REASONS if name in self.attributes), None)
        listed = [each for each in (reasons if isinstance(reasons, list) else [reasons]) if isinstance(each, str)]
        counts = {"input_tokens": _INPUT_TOKENS, "output_tokens": _OUTPUT_TOKENS, "cached_tokens": _CACHED_TOKENS}
        found: dict[str, Value] = {
            "provider": self.provider, "model": self._first(_REQUEST_MODELS),
            "response_model": self._first(_RESPONSE_MODELS), "response_id": self._first(_RESPONSE_IDS),
            "finish_reasons": listed, **{name: self._count(names) for name, names in counts.items()},
        }  # fmt: skip
        if self.started_at is not None:
            found["started_at"] = self.started_at
        return {name: value for name, value in found.items() if value}

    def said(self) -> tuple[list[dict[str, Value]], list[dict[str, Value]]]:
        """Return the messages that a model received, and its answers, both in OpenAI's form.

        Log records count only where the span itself has no messages: some libraries write them to both.
        """
        asked, answered = _messages_in(
            self.attributes, [(text_of(e.get("name")), attributes_of(e)) for e in _events(self.given)]
        )
        if not (asked and answered) and (logs := _listed_objects(self.given.get(LOGS))):
            logged = _messages_in({}, [(name_of_log(each), values_of_log(each)) for each in logs])
            asked, answered = asked or logged[0], answered or logged[1]
        return asked, answered

    def without_messages(self) -> Mapping[str, Value]:
        """Return the span as it is written, without the attributes whose messages `said` returns."""
        written = self.given.get("attributes")
        if not isinstance(written, list):
            return self.given
        left = [each for each in written if not text_of(_member(each, "key")).startswith((*_FLAT, *_LISTED))]
        return {**self.given, "attributes": left}

    def _tool_message(self) -> Mapping[str, Value]:
        """Return the message that LangChain's tools answer with, where OpenInference writes it as the output."""
        output = self.attributes.get("output.value")
        tree = _tree(output) if self.kind == "tool" and isinstance(output, str) and '"tool_call_id"' in output else None
        data = _member(tree, "data")
        return data if _member(tree, "type") == "tool" and isinstance(data, Mapping) else {}

    def _first(self, names: Iterable[str]) -> str:
        for name in names:
            if found := text_of(self.attributes.get(name)):
                return found
        return ""

    def _value(self, names: Iterable[str]) -> Value:
        found = next((self.attributes[name] for name in names if name in self.attributes), None)
        return _tree(found)

    def _count(self, names: Iterable[str]) -> int:
        for name in names:
            count = self.attributes.get(name)
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**53:
                return count
        return 0


def messages_of_log(log: Mapping[str, Value]) -> tuple[list[dict[str, Value]], list[dict[str, Value]]]:
    """Return the messages that a model received, and its answers, by one log record; as `ImportedSpan.said`."""
    return _messages_in({}, [(name_of_log(log), values_of_log(log))])


def name_of_log(log: Mapping[str, Value]) -> str:
    """Return the name of the event that a log record is; older libraries write it as an attribute."""
    return text_of(log.get("eventName")) or text_of(attributes_of(log).get("event.name"))


def values_of_log(log: Mapping[str, Value]) -> dict[str, Value]:
    """Return the attributes of a log record, with the members of its body, where older libraries write them."""
    body = _any_value(log.get("body"))
    return {**(body if isinstance(body, Mapping) else {}), **attributes_of(log)}


def attributes_of(given: Mapping[str, Value]) -> dict[str, Value]:
    """Return the attributes of a span, an event or a resource, by name."""
    written = given.get("attributes")
    found: dict[str, Value] = {}
    for each in written if isinstance(written, list) else ():
        if type(each) is dict:  # what a request is decoded to, and a line of JSON; the rest is never rejected here
            key, value = each.get("key"), each.get("value")
        else:
            key, value = _member(each, "key"), _member(each, "value")
        if isinstance(key, str):
            text = value.get("stringValue") if type(value) is dict and len(value) == 1 else None
            found[key] = text if type(text) is str else _any_value(value)
    return found


def time_of(given: Value) -> int | None:
    """Convert OTLP nanoseconds, a number or its text, to microseconds.

    Returns:
        Microseconds since 1970; None for 0, for a value that is not such a number, and for a time out of range.
    """
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 20:
        given = int(given)
    if not isinstance(given, int) or isinstance(given, bool) or given <= 0:
        return None
    micros = given // 1000
    return micros if micros <= TIME_MAX else None


def time_of_log(log: Mapping[str, Value]) -> int | None:
    """Return the time of a log record, microseconds; when it was observed if it has none. None if it has neither."""
    at = time_of(log.get("timeUnixNano"))
    return time_of(log.get("observedTimeUnixNano")) if at is None else at


def _any_value(given: Value) -> Value:
    if type(given) is not dict and not isinstance(given, Mapping):
        return None
    for name, value in given.items():
        if name == "intValue" and isinstance(value, str):
            is_short = value.isascii() and value.isdigit() and len(value) < 19 and (value[0] != "0" or value == "0")
            return int(value) if is_short else parsed(value)
        if name == "arrayValue":
            inner = _member(value, "values")
            return [_any_value(each) for each in inner] if isinstance(inner, list) else []
        if name == "kvlistValue":
            inner = _member(value, "values")
            return attributes_of({"attributes": inner if isinstance(inner, list) else []})
        if name in ("stringValue", "boolValue", "intValue", "doubleValue", "bytesValue"):
            return value
    return None


def _events(given: Mapping[str, Value]) -> list[Mapping[str, Value]]:
    return _listed_objects(given.get("events"))


def _listed_objects(given: Value) -> list[Mapping[str, Value]]:
    return [each for each in given if isinstance(each, Mapping)] if isinstance(given, list) else []


_Messages: TypeAlias = list[dict[str, Value]]


def _messages_in(given: Mapping[str, Value], events: list[tuple[str, dict[str, Value]]]) -> tuple[_Messages, _Messages]:
    """Return the messages in attributes, as newer conventions have them, and in named events, as older ones have."""
    attributes = dict(given)
    asked: _Messages = []
    answered: _Messages = []
    for name, more in events:
        attributes |= {key: value for key, value in more.items() if key in _LISTED}
        if name in _SPOKEN:
            asked.append(_spoken(more, _SPOKEN[name]))
        elif name == _CHOICE:
            message = _tree(more.get("message"))
            answered.append(_spoken(message if isinstance(message, Mapping) else more, "assistant"))
    named = {name: value for name, value in attributes.items() if name.startswith(_FLAT)}
    flat = _nested(named) if named else {}
    of_llm, of_gen_ai = flat.get("llm"), flat.get("gen_ai")
    if instructions := _tree(attributes.get(_INSTRUCTIONS)):
        asked += _plain({"role": "system", "content": instructions, "parts": instructions})
    asked += _listed(attributes.get(_ASKED))
    answered += _listed(attributes.get(_ANSWERED))
    if flat:
        asked += [*_flat(of_llm, "input_messages"), *_flat(of_gen_ai, "prompt")]
        answered += [*_flat(of_llm, "output_messages"), *_flat(of_gen_ai, "completion")]
    return asked, [{**each, "role": "assistant"} for each in answered if each.get("role") != "tool"]


def _spoken(given: Mapping[str, Value], role: str) -> dict[str, Value]:
    """Return the message that an event carries."""
    content = given.get("content", given.get("gen_ai.event.content"))
    calls = _tree(given.get("tool_calls"))
    return _openai({"role": given.get("role") or role, "content": content, "tool_calls": calls, "id": given.get("id")})


def _listed(given: Value) -> list[dict[str, Value]]:
    """Return the messages of a list, each either {role, parts} or in OpenAI's form."""
    found = _tree(given)
    messages = found if isinstance(found, list) else []
    return [made for each in messages if isinstance(each, Mapping) for made in _plain(each)]


def _plain(message: Mapping[str, Value]) -> list[dict[str, Value]]:
    """Convert {role, parts} to OpenAI's messages; each response of a tool becomes a message of its own."""
    parts = message.get("parts")
    if not isinstance(parts, list):
        return [_openai(message)]
    texts: list[str] = []
    thoughts: list[str] = []
    others: list[Value] = []
    calls: list[Value] = []
    results: list[dict[str, Value]] = []
    for part in parts:
        kind, content = text_of(_member(part, "type")), _member(part, "content")
        if kind == "text" and isinstance(content, str):
            texts.append(content)
        elif kind == "reasoning" and isinstance(content, str):
            thoughts.append(content)
        elif kind == "tool_call":
            calls.append(part)
        elif kind == "tool_call_response":
            answer = next((part[key] for key in ("response", "result", "content") if key in part), None)
            results.append({"role": "tool", "tool_call_id": text_of(_member(part, "id")), "content": answer})
        else:
            others.append(part)
    role = text_of(message.get("role")) or "user"
    made: dict[str, Value] = {"role": role, "content": "\n".join(texts) if texts else None}
    if others:
        made["content"] = [*({"type": "text", "text": each} for each in texts), *others]
    if thoughts:
        made["reasoning"] = "\n".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return [*([_openai(made)] if len(made) > 2 or made["content"] is not None or not results else []), *results]


def _flat(given: Value, name: str) -> list[dict[str, Value]]:
    """Return messages that are members under numbers: {"0": {"message": {...}}, "1": ...}."""
    numbered = _in_order(_member(given, name))
    return [_openai(_member(each, "message") or each) for each in numbered if isinstance(each, Mapping)]


def _openai(given: Any) -> dict[str, Value]:
    """Convert a message of any of these conventions to OpenAI's member names and to types that can be parsed."""
    given = given if isinstance(given, Mapping) else {"content": given}
    made: dict[str, Value] = {"role": text_of(given.get("role")) or "user", "content": _content(given)}
    for key in ("name", "reasoning"):
        if isinstance(given.get(key), str):
            made[key] = given[key]
    call_id = given.get("tool_call_id") or (given.get("id") if made["role"] == "tool" else "")
    if isinstance(call_id, str) and call_id:
        made["tool_call_id"] = call_id
    calls = given.get("tool_calls")
    found = [_call(each) for each in (calls if isinstance(calls, list) else _in_order(calls))]
    if found:
        made["tool_calls"] = found
    return made


def _content(given: Mapping[str, Value]) -> Value:
    content = given.get("content")
    if content is None and "contents" in given:
        parts = [_member(each, "message_content") for each in _in_order(given["contents"])]
        texts = [text_of(_member(each, "text")) for each in parts if _member(each, "type") == "text"]
        return "\n".join(texts) if len(texts) == len(parts) else parts
    return content


def _call(given: Value) -> dict[str, Value]:
    body = _member(given, "tool_call") or given
    function = _member(body, "function") or body
    arguments = _member(function, "arguments")
    return {
        "id": text_of(_member(body, "id")),
        "function": {"name": text_of(_member(function, "name")) or "tool", "arguments": arguments},
    }


def _nested(flat: Mapping[str, Value]) -> dict[str, Any]:
    """Convert attributes with dotted names to nested objects."""
    found: dict[str, Any] = {}
    for name, value in list(flat.items())[:_FLAT_MAX]:
        *path, last = name.split(".")
        inside = found
        for part in path[:16]:
            inner = inside.setdefault(part, {})
            if not isinstance(inner, dict):
                break
            inside = inner
        else:
            inside.setdefault(last, value)
    return found


def _in_order(given: Value) -> list[Value]:
    """Return the members of an object whose keys are numbers, in numeric order."""
    if not isinstance(given, Mapping):
        return []
    return [given[key] for key in sorted((each for each in given if each.isdecimal()), key=lambda key: (len(key), key))]


def _tree(given: Value) -> Value:
    """Return the value of a text that is JSON, and anything else unchanged."""
    return parsed(given) if isinstance(given, str) and given[:1] in ("{", "[", '"') else given


def _member(given: Any, key: str) -> Any:
    # Nearly all objects are dicts, for which a check against an abstract class takes longer than the rest.
    return given.get(key) if type(given) is dict or isinstance(given, Mapping) else None
