"""What model providers' requests and answers say: the conversation so far, and the model's reply to it.

    anthropic   POST .../messages            messages; the reply is content blocks, in a stream by deltas
    chat        POST .../chat/completions    messages; the reply is choices[0].message, in a stream by deltas
    responses   POST .../responses           input, text or items; the reply is output items

Of anything else nothing is known: it is an exchange, and no turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from refold.agents.capture.exchange import bytes_of
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import ToolCall, parse_messages
from refold.agents.importers.responses_items import messages_of_items
from refold.agents.journal.record import Plain
from refold.avro.errors import InputError

Family: TypeAlias = Literal["anthropic", "chat", "responses"]
_ENDINGS: Mapping[str, Family] = {"/messages": "anthropic", "/chat/completions": "chat", "/responses": "responses"}
# Marks of what a provider may cache: clients move them from message to message.
VOLATILE_KEYS = frozenset({"cache_control"})
_TEXT_KINDS = ("text", "input_text", "output_text")


class ModelTurn(NamedTuple):
    """A request to a model. chain: a hash for each length of the conversation, from one message on.

    follows: the id of the response that it goes on from, where the provider keeps the conversation.
    """

    family: Family
    messages: list[Any]
    chain: list[str]
    follows: str = ""


class ModelReply(NamedTuple):
    """What a model answered. messages: as the next request has them; id: of the response."""

    messages: list[Any]
    calls: Sequence[ToolCall] = ()
    text: str = ""
    id: str = ""


class ToolResult(NamedTuple):
    """What the agent answered to a tool call. failed: whether it says that it is an error."""

    call_id: str
    output: str | None
    failed: bool


def turn_of(request: Plain) -> ModelTurn | None:
    """The turn that an exchange's request is; None where it is none."""
    path = urlsplit(request["url"]).path
    family = next((family for ending, family in _ENDINGS.items() if path.endswith(ending)), None)
    body = _json(request.get("body"))
    if family is None or request.get("method") != "POST" or not isinstance(body, dict):
        return None
    messages = body.get("input" if family == "responses" else "messages")
    if isinstance(messages, str) and family == "responses":
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not messages:
        return None
    follows = body.get("previous_response_id") if family == "responses" else None
    return ModelTurn(family, messages, _chain(family, messages), follows if isinstance(follows, str) else "")


def reply_of(family: Family, answer: Plain) -> ModelReply | None:
    """The reply in an exchange's answer; None where it has none, or only a part of one."""
    if not isinstance(answer, dict) or not 200 <= answer.get("status", 0) < 300 or answer.get("end") != "whole":
        return None
    try:
        body = b"".join(bytes_of(chunk) for _, chunk in answer["chunks"])
        whole = _json(body.decode())
        found = whole if isinstance(whole, dict) else _assembled(family, list(events_of(body)))
        return _reply(family, found)
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None  # of another shape: it is kept, and not understood


def results_of(family: Family, messages: Sequence[Any]) -> list[ToolResult]:
    """The results of tool calls among some messages."""
    found = []
    for each in messages:
        try:
            read = messages_of_items([each], "input") if family == "responses" else parse_messages([each], "messages")
        except InputError:
            continue
        found += [
            ToolResult(message.tool_call_id, message.result, message.failed is True)
            for message in read if message.is_result and message.tool_call_id
        ]  # fmt: skip
    return found


def is_of_the_model(message: Any) -> bool:
    """Whether a message, or an item, is one that a model made."""
    if not isinstance(message, Mapping):
        return False
    return message.get("role") == "assistant" or message.get("type") in _OF_THE_MODEL


_OF_THE_MODEL = ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call",
                 "file_search_call", "code_interpreter_call", "image_generation_call")  # fmt: skip


def said_by(family: Family, messages: Sequence[Any]) -> tuple[frozenset[str], str]:
    """What tells a model's reply from others: the ids of its calls, and its text without white space."""
    calls, texts = _calls_and_texts(family, messages)
    return frozenset(each.call_id for each in calls if each.call_id), "".join("".join(texts).split())


def title_of(messages: Sequence[Any]) -> str:
    """The first words of whoever asked."""
    for each in messages:
        if isinstance(each, Mapping) and each.get("role") == "user":
            texts = _content_texts(each.get("content"))
            if texts:
                return " ".join(texts[-1].split())[:80]
    return ""


def events_of(body: bytes) -> Iterator[dict[str, Any]]:
    """The JSON objects of a stream of events, or of lines."""
    for line in body.split(b"\n"):
        text = line.strip()
        event = (
            _json(text.removeprefix(b"data:").strip().decode("utf-8", "replace")) if text[:1] in (b"d", b"{") else None
        )
        if isinstance(event, dict):
            yield event


def without_keys(value: Any, keys: Collection[str]) -> Any:
    """A tree without the members of these names, at any depth."""
    if isinstance(value, dict):
        return {key: without_keys(each, keys) for key, each in value.items() if key not in keys}
    return [without_keys(each, keys) for each in value] if isinstance(value, list) else value


def _chain(family: Family, messages: Sequence[Any]) -> list[str]:
    so_far: str = family
    found: list[str] = []
    for each in messages:
        normal = without_keys(each, VOLATILE_KEYS)
        if isinstance(normal, dict) and isinstance(normal.get("content"), str):
            normal["content"] = [{"type": "text", "text": normal["content"]}]
        data = msgspec.json.encode([so_far, normal], order="deterministic")
        so_far = hashlib.sha256(data).hexdigest()
        found.append(so_far)
    return found


def _reply(family: Family, found: dict[str, Any]) -> ModelReply | None:
    identity = found.get("id") if isinstance(found.get("id"), str) else ""
    if family == "responses":
        messages = found["output"]
    elif family == "chat":
        messages = [found["choices"][0]["message"]]
    else:
        messages = [{"role": "assistant", "content": found["content"]}]
    calls, texts = _calls_and_texts(family, messages)
    return ModelReply(list(messages), calls, "".join(texts), identity or "")


def _calls_and_texts(family: Family, messages: Sequence[Any]) -> tuple[list[ToolCall], list[str]]:
    try:
        read = messages_of_items(messages, "output") if family == "responses" else parse_messages(messages, "the reply")
    except InputError:
        return [], []
    made = [each for each in read if each.role == "assistant"]
    return [call for each in made for call in each.calls], [each.text for each in made if each.text]


def _assembled(family: Family, events: list[dict[str, Any]]) -> dict[str, Any]:
    if family == "responses":
        return next(
            event["response"] for event in reversed(events)
            if event.get("type") in ("response.completed", "response.incomplete") and "response" in event
        )  # fmt: skip
    return _chat(events) if family == "chat" else _blocks(events)


def _chat(events: list[dict[str, Any]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    identity = ""
    for event in events:
        identity = event.get("id") or identity
        for choice in event.get("choices") or ():
            if choice.get("index", 0):
                continue
            delta = choice.get("delta") or {}
            for key, value in delta.items():
                if isinstance(value, str) and key != "role":
                    message[key] = (message.get(key) or "") + value
            for part in delta.get("tool_calls") or ():
                call = calls.setdefault(part.get("index", 0), {"type": "function", "function": {}})
                call["id"] = part.get("id") or call.get("id", "")
                for key, value in (part.get("function") or {}).items():
                    call["function"][key] = call["function"].get(key, "") + value if key == "arguments" else value
    if calls:
        message["tool_calls"] = [calls[index] for index in sorted(calls)]
    if not events:
        raise ValueError("no events")
    return {"id": identity, "choices": [{"message": message}]}


def _blocks(events: list[dict[str, Any]]) -> dict[str, Any]:
    start = next(event["message"] for event in events if event.get("type") == "message_start")
    blocks: dict[int, dict[str, Any]] = {}
    written: dict[int, str] = {}
    for event in events:
        if event.get("type") == "content_block_start":
            blocks[event["index"]] = dict(event["content_block"])
        elif event.get("type") == "content_block_delta":
            delta, block = event["delta"], blocks[event["index"]]
            if delta["type"] == "input_json_delta":
                written[event["index"]] = written.get(event["index"], "") + delta["partial_json"]
                continue
            for key in ("text", "thinking", "signature"):
                if isinstance(delta.get(key), str):
                    block[key] = block.get(key, "") + delta[key]
    for index, text in written.items():
        if text:
            blocks[index]["input"] = parse_json(text, "a tool's input")
    return {**start, "content": [blocks[index] for index in sorted(blocks)]}


def _content_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    found = (each.get("text") for each in content if isinstance(each, Mapping) and each.get("type") in _TEXT_KINDS) \
        if isinstance(content, list) else ()  # fmt: skip
    return [each for each in found if isinstance(each, str) and each]


def _json(text: Any) -> Any:
    """A JSON value that an observation can hold; None where it is none."""
    if not isinstance(text, str):
        return None
    try:
        return parse_json(text, "")
    except InputError:
        return None
