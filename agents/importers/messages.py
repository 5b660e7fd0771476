"""Parse one message of a conversation in the style of OpenAI or Anthropic, without losing any part of it.

Anthropic's content blocks: `text` becomes the text, `thinking` the rationale, `tool_use` a call. A block with a tool's
result answers the call that its `tool_use_id` names, and becomes a separate message with the role `tool`; so one
message may become several. The other members of the message stay with the first of them. All other blocks stay
unchanged in the message's content.

ShareGPT's `from` and `value` are read as `role` and `content`, and its names for roles as OpenAI's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.times import own_time
from refold.avro.canonical import json_text
from refold.avro.errors import InputError
from refold.avro.observation import Value

TAKEN = frozenset({"role", "content", "name", "tool_call_id", "tool_calls"})
TIME_KEYS = ("timestamp", "created_at", "created")
REASONING_KEYS = ("reasoning_content", "reasoning")
TEXT_BLOCKS = frozenset({"text", "input_text", "output_text"})
CALL_BLOCKS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
RESULT_BLOCK = "tool_result"
"""The type of a result block. Longer types may end with it: web_search_tool_result."""
SHARED_ROLES = {
    "human": "user", "gpt": "assistant", "chatgpt": "assistant", "bing": "assistant", "model": "assistant",
    "observation": "tool", "function_response": "tool", "tool_response": "tool",
}  # fmt: skip
MESSAGE_KEYS = frozenset({*TAKEN, "timestamp"})


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call. `inputs`: the parsed arguments, or their text if it is not JSON."""

    tool: str
    inputs: Value
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `content` is its text. Parts or other JSON are stored as canonical JSON; `content_type` says which.

    Attributes:
        said: The text alone, if the content has parts.
        written_calls: The calls as the source has them.
        result: A tool's answer, verbatim.
        failed: Whether the tool reported a failure; None if it did not say.
        at: The message's own time, in microseconds since 1970; None if it has none.
        extra: All other members of the message.
    """

    role: str
    content: str | None
    content_type: str = "text"
    name: str = ""
    tool_call_id: str = ""
    calls: tuple[ToolCall, ...] = ()
    written_calls: Value = None
    said: str | None = None
    result: str | None = None
    failed: bool | None = None
    rationale: str = ""
    at: int | None = None
    extra: Mapping[str, Value] = field(default_factory=dict)

    @property
    def is_result(self) -> bool:
        """Whether this is a tool's message: the role `tool`, the older `function`, or any role with a result."""
        return self.role in ("tool", "function") or self.result is not None

    @property
    def text(self) -> str | None:
        """The text, without empty parts; for parts without any text, all parts as JSON."""
        return self.content if self.said is None else self.said or None

    def element(self, index: int) -> dict[str, object]:
        """Return the message as an element of agent_session.messages.

        Args:
            index: Its position in the conversation, from 0.
        """
        parts: dict[str, object] = {"index": index, "role": self.role, "content": self.content}
        optional = {
            "content_type": "" if self.content_type == "text" else self.content_type,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": self.written_calls,
            "extra": self.extra,
        }
        return parts | {key: value for key, value in optional.items() if value}


def record(kind: str, value: Value, at: int | None = None) -> Message:
    """Wrap a line, a span or the like that is not a message, so that it is stored unchanged among the messages.

    Args:
        kind: The name of its kind.
        value: The value to store.
        at: Its time, microseconds, if it has one.
    """
    return Message(role="record", name=kind, content=json_text(value), content_type="json", at=at)


def parse_messages(given: Value, place: str, keys: Mapping[str, str] | None = None) -> tuple[Message, ...]:
    """Parse the messages of one conversation.

    Args:
        given: A list of messages.
        place: FILE:LINE, for error messages.
        keys: The key that the file uses, by the key that is read here, where they differ.

    Returns:
        The messages in their order; a message with results of tools may have become several.

    Raises:
        InputError: A message has another shape; its number is named.
    """
    if not isinstance(given, list) or not given:
        raise InputError(f"{place}: a conversation is a list of messages, at least one")
    named = {key: theirs for key, theirs in (keys or {}).items() if key in MESSAGE_KEYS}
    return tuple(
        message
        for index, each in enumerate(given)
        for message in _messages(renamed(each, named, f"{place}: message {index}"), f"{place}: message {index}")
    )


def renamed(given: Value, keys: Mapping[str, str], place: str) -> Value:
    """Return an object with its members renamed to the keys that refold reads.

    Args:
        given: Any value; a value that is not an object is returned unchanged.
        keys: The key that the file uses, by the key that refold reads.
        place: FILE:LINE, for the error message.

    Returns:
        The object with renamed keys.

    Raises:
        InputError: The object already has a member under the new name.
    """
    if not keys or not isinstance(given, Mapping):
        return given
    ours = {theirs: key for key, theirs in keys.items()}
    renamed_members: dict[str, Any] = {}
    for key, value in given.items():
        name = ours.get(key, key)
        if name in renamed_members or (name != key and name in given and name not in ours):
            raise InputError(f"{place}: has {name} and {key}; --map {name}={keys[name]} would lose one of them")
        renamed_members[name] = value
    return renamed_members


def is_message(given: Value) -> bool:
    """Return whether a value looks like a message."""
    if not isinstance(given, Mapping):
        return False
    return isinstance(given.get("role"), str) or (isinstance(given.get("from"), str) and "value" in given)


def _messages(given: Value, place: str) -> Iterator[Message]:
    """Yield the message, or the several messages that it becomes."""
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: is not an object with role and content")
    content = given.get("content")
    if not isinstance(content, list) or not any(_is_result(each) for each in content):
        yield _message(given, place)
        return
    others = {key: value for key, value in given.items() if key != "content"}
    waiting: list[Value] = []
    for block in content:
        if not _is_result(block):
            waiting.append(block)
            continue
        if waiting:
            yield _message({**others, "content": waiting}, place)
            others, waiting = {key: others[key] for key in ("role", *TIME_KEYS) if key in others}, []
        result = _result_of(block, others, place)
        around = {key: value for key, value in others.items() if key not in ("role", *TIME_KEYS)}
        yield replace(result, extra={**result.extra, "message": around}) if around else result
        others = {key: others[key] for key in ("role", *TIME_KEYS) if key in others}
    if waiting:
        yield _message({**others, "content": waiting}, place)


def _is_result(block: Value) -> bool:
    kind = block.get("type") if isinstance(block, Mapping) else None
    return isinstance(kind, str) and kind.endswith(RESULT_BLOCK)


def _result_of(block: Any, message: Mapping[str, Value], place: str) -> Message:
    """Return the message of a block that is a tool's result."""
    content, kind = block.get("content"), block["type"]
    extra = {key: value for key, value in block.items() if key not in ("tool_use_id", "content", "type")}
    failed = block.get("is_error")
    return Message(
        role="tool",
        content=content if content is None or isinstance(content, str) else json_text(content),
        content_type=_content_type(content),
        tool_call_id=_name(block, "tool_use_id", place),
        result=_result(content),
        failed=failed if isinstance(failed, bool) else None,
        at=_time(message),
        extra=extra if kind == RESULT_BLOCK else {"type": kind, **extra},
    )


def _message(given: Mapping[str, Value], place: str) -> Message:
    if "role" not in given and isinstance(given.get("from"), str):
        given = _sharegpt_message(given)
    role = _name(given, "role", place)
    if not role:
        raise InputError(f"{place}: has no role")
    content = given.get("content")
    reasons = (given.get(key) for key in REASONING_KEYS)
    blocks = content if isinstance(content, list) else []
    thought = [*reasons, *(_block(each, "thinking", ("thinking",)) for each in blocks)]
    texts = [text for text in (_block(each, "text", TEXT_BLOCKS) for each in blocks) if text]
    is_reply = role == "assistant"
    return Message(
        role=role,
        content=content if content is None or isinstance(content, str) else json_text(content),
        content_type=_content_type(content),
        name=_name(given, "name", place),
        tool_call_id=_name(given, "tool_call_id", place),
        calls=_calls(given, blocks, place) if is_reply else (),
        written_calls=given.get("tool_calls"),
        said="".join(texts) if texts or any(_kind(each) in CALL_BLOCKS for each in blocks) else None,
        result=_result(content) if role in ("tool", "function") else None,
        rationale="\n".join(each for each in thought if isinstance(each, str) and each) if is_reply else "",
        at=_time(given),
        extra={key: value for key, value in given.items() if key not in TAKEN},
    )


def _sharegpt_message(given: Mapping[str, Value]) -> Mapping[str, Value]:
    """Convert a message of ShareGPT, {from, value}. `from` is also stored in `extra` if the role gets another name."""
    speaker = given["from"]
    assert isinstance(speaker, str)
    role = SHARED_ROLES.get(speaker, speaker)
    rest = {key: value for key, value in given.items() if key != "value" and (key != "from" or role != speaker)}
    if speaker == "function_call":
        call = given.get("value")
        found = parsed(call) if isinstance(call, str) else call
        if isinstance(found, Mapping) and isinstance(found.get("name"), str):
            return {**rest, "role": "assistant", "content": None, "tool_calls": [found]}
        role = "assistant"
    return {**rest, "role": role, "content": given.get("value")}


def _content_type(content: Value) -> str:
    if content is None or isinstance(content, str):
        return "text"
    return "parts" if isinstance(content, list) else "json"


def _kind(block: Value) -> str:
    return text_at(block, "type") if isinstance(block, Mapping) else ""


def _block(block: Value, key: str, kinds: Any) -> str:
    """Return the text of a block of one of these kinds, else ""."""
    if not isinstance(block, Mapping) or _kind(block) not in kinds:
        return ""
    return text_at(block, key)


def text_of(value: Value) -> str:
    """Return a value that is a string; return "" for any other value."""
    return value if isinstance(value, str) else ""


def text_at(given: Mapping[str, Any], key: str) -> str:
    """Return a member that is a string; return "" if it is absent or not a string."""
    return text_of(given.get(key))


def _time(given: Mapping[str, Value]) -> int | None:
    own_times = (own_time(given.get(key)) for key in TIME_KEYS)
    return next((each for each in own_times if each is not None), None)


def _result(content: Value) -> str | None:
    """Return a tool's answer as one text. Parts that are all text are joined, as the model read them."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, list):
        texts = [each.get("text") for each in content if isinstance(each, Mapping) and _kind(each) in TEXT_BLOCKS]
        joined = [each for each in texts if isinstance(each, str)]
        if joined and len(joined) == len(content):
            return "".join(joined)
    return json_text(content)


def _calls(given: Mapping[str, Value], blocks: list[Value], place: str) -> tuple[ToolCall, ...]:
    written = given.get("tool_calls")
    if written is not None and not isinstance(written, list):
        raise InputError(f"{place}: tool_calls is not a list")
    calls = [_call(each, f"{place}: tool call {index}") for index, each in enumerate(written or (), start=1)]
    legacy = given.get("function_call")
    if legacy is not None:
        calls.append(_call(legacy, f"{place}: function_call"))
    uses = [each for each in blocks if _kind(each) in CALL_BLOCKS]
    calls += [_call(each, f"{place}: tool_use {index}") for index, each in enumerate(uses, start=1)]
    return tuple(calls)


def _call(given: Value, place: str) -> ToolCall:
    """Parse a call as {function: {name, arguments}}, {custom: {name, input}}, or plain {name, arguments}."""
    if not isinstance(given, Mapping):
        raise InputError(f"{place}: is not an object with a name and arguments")
    body = given.get("function") or given.get("custom") or given
    tool = body.get("name") if isinstance(body, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(tool, str):
        raise InputError(f"{place}: names no tool")
    written = next((body[key] for key in ("arguments", "input", "args") if key in body), None)
    return ToolCall(tool, parsed(written) if isinstance(written, str) else written, _name(given, "id", place))


def parsed(text: str) -> Value:
    """Return the JSON value in `text`, or `text` itself if it is not JSON that an observation can hold."""
    try:
        return parse_json(text, "")
    except InputError:
        return text


def _name(given: Mapping[str, Value], key: str, place: str) -> str:
    value = given.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{place}: {key} is not a string")
    return value or ""
