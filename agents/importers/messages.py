"""One message of a conversation in the OpenAI style, checked and taken apart without losing any of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from refold.agents.importers.reading import parse_json
from refold.agents.importers.times import own_time
from refold.avro.canonical import json_text
from refold.avro.errors import InputError
from refold.avro.observation import Value

TAKEN = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})
TIME_KEYS = ("timestamp", "created_at", "created")
REASONING_KEYS = ("reasoning_content", "reasoning")


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. `inputs`: the parsed arguments, or their text where that is not JSON."""

    tool: str
    inputs: Value
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `content` is its text; parts or other JSON stand as canonical JSON, told by `content_type`.

    result: what a tool answered, verbatim. at: the message's own time, microseconds. extra: all other
    members.
    """

    role: str
    content: str | None
    content_type: str = "text"
    name: str = ""
    tool_call_id: str = ""
    calls: tuple[Call, ...] = ()
    written_calls: Value = None
    result: str | None = None
    rationale: str = ""
    at: int | None = None
    extra: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_result(self) -> bool:
        """Whether a tool speaks: the role `tool`, or `function` as it was before."""
        return self.role in ("tool", "function")

    def element(self, index: int) -> dict[str, object]:
        """The message as an element of agent_session.messages."""
        parts: dict[str, object] = {"index": index, "role": self.role, "content": self.content}
        optional = {
            "content_type": "" if self.content_type == "text" else self.content_type,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": self.written_calls,
            "extra": self.extra,
        }
        return parts | {key: value for key, value in optional.items() if value}


def parse_messages(given: Value, place: str) -> tuple[Message, ...]:
    """The messages of one conversation; InputError names `place` and the message."""
    if not isinstance(given, list) or not given:
        raise InputError(f"{place}: a conversation is a list of messages, at least one")
    return tuple(_message(each, f"{place}: message {index}") for index, each in enumerate(given))


def _message(given: Value, place: str) -> Message:
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: is not an object with role and content")
    role = _name(given, "role", place)
    if not role:
        raise InputError(f"{place}: has no role")
    content = given.get("content")
    content_type = "text" if content is None or isinstance(content, str) else "parts"
    if content_type == "parts" and not isinstance(content, list):
        content_type = "json"
    own_times = (own_time(given.get(key)) for key in TIME_KEYS)
    reasons = (given.get(key) for key in REASONING_KEYS)
    return Message(
        role=role,
        content=content if content is None or isinstance(content, str) else json_text(content),
        content_type=content_type,
        name=_name(given, "name", place),
        tool_call_id=_name(given, "tool_call_id", place),
        calls=_calls(given, place) if role == "assistant" else (),
        written_calls=given.get("tool_calls"),
        result=_result(content) if role in ("tool", "function") else None,
        rationale=next((each for each in reasons if isinstance(each, str) and each), ""),
        at=next((each for each in own_times if each is not None), None),
        extra={key: value for key, value in given.items() if key not in TAKEN},
    )


def _result(content: Value) -> str | None:
    """A tool's answer as one text: parts that are all text are joined, as the model read them."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [each.get("text") for each in content if isinstance(each, Mapping) and each.get("type") == "text"]
        joined = [each for each in texts if isinstance(each, str)]
        if joined and len(joined) == len(content):
            return "".join(joined)
    return json_text(content)


def _calls(given: Mapping[str, Value], place: str) -> tuple[Call, ...]:
    written = given.get("tool_calls")
    if written is not None and not isinstance(written, list):
        raise InputError(f"{place}: tool_calls is not a list")
    calls = [_call(each, f"{place}: tool call {index}") for index, each in enumerate(written or (), start=1)]
    legacy = given.get("function_call")
    if legacy is not None:
        calls.append(_call(legacy, f"{place}: function_call"))
    return tuple(calls)


def _call(given: Value, place: str) -> Call:
    """A call as {function: {name, arguments}}, {custom: {name, input}}, or {name, arguments} by itself."""
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: is not an object with a name and arguments")
    body = given.get("function") or given.get("custom") or given
    tool = body.get("name") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(tool, str):
        raise InputError(f"{place}: names no tool")
    written = next((body[key] for key in ("arguments", "input", "args") if key in body), None)
    return Call(tool, parsed(written) if isinstance(written, str) else written, _name(given, "id", place))


def parsed(text: str) -> Value:
    """The JSON value in `text`, or `text` itself where it holds none that an observation can hold."""
    try:
        return parse_json(text, "")
    except InputError:
        return text


def _name(given: Mapping[str, Value], key: str, place: str) -> str:
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{place}: {key} is not a string")
    return value or ""
