"""A model's request and answer as messages. OpenAI, Anthropic and Gemini formats and plain text are understood.

An unknown format is shown as JSON. Nothing is lost: one key shows the raw request and answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

TEXTS = ("text", "input_text", "output_text")
HEARD = ("tool_result", "function_call_output")
CALLED = ("tool_use", "server_tool_use", "mcp_tool_use", "function_call")
ROLES = frozenset({"system", "developer", "user", "assistant", "model", "tool", "function"})


class MessagePart(NamedTuple):
    """A part of a message.

    Attributes:
        kind: `text`, `thinking`, `call`, `result` or `json`.
        name: The tool, for a call or a result.
    """

    kind: str
    value: Any
    name: str = ""


class ModelMessage(NamedTuple):
    """One message."""

    role: str
    parts: tuple[MessagePart, ...]


class ModelRequest(NamedTuple):
    """A model's request.

    Attributes:
        settings: Everything that is not a message, such as model and temperature.
        tools: The names of the tools that the model could call.
    """

    messages: tuple[ModelMessage, ...]
    settings: dict[str, Any]
    tools: tuple[str, ...] = ()


def asked(request: Any) -> ModelRequest | None:
    """Return a model's request as messages. None if its format is unknown."""
    given = _keywords(request)
    if given is None:
        return None
    left = dict(given)
    found: list[ModelMessage] = []
    for name in ("system", "instructions", "system_instruction"):
        if isinstance(left.get(name), str | list | dict):
            found.append(ModelMessage("system", tuple(_parts(left.pop(name)))))
    for name in ("messages", "input", "contents", "prompt"):
        member = left.get(name)
        if isinstance(member, str):
            found.append(ModelMessage("user", (MessagePart("text", member),)))
        elif isinstance(member, list) and member and all(map(_is_message, member)):
            found += [_message(each) for each in member]
        else:
            continue
        del left[name]
    if not any(each.role != "system" for each in found):
        return None
    return ModelRequest(tuple(found), left, tuple(_tools(left.pop("tools", None))))


def answered(answer: Any) -> tuple[ModelMessage, ...]:
    """Return a model's answer as messages. Empty if its format is unknown."""
    if isinstance(answer, str):
        return (ModelMessage("assistant", (MessagePart("text", answer),)),)
    if not isinstance(answer, Mapping):
        return ()
    if isinstance(answer.get("choices"), list):
        messages = [each.get("message") for each in answer["choices"] if isinstance(each, Mapping)]
        return tuple(_message(each) for each in messages if isinstance(each, Mapping))
    if isinstance(answer.get("output"), list) and all(map(_is_message, answer["output"])):
        return tuple(_message(each) for each in answer["output"])
    if isinstance(answer.get("candidates"), list):
        messages = [each.get("content") for each in answer["candidates"] if isinstance(each, Mapping)]
        return tuple(_message(each) for each in messages if isinstance(each, Mapping))
    if isinstance(answer.get("message"), Mapping):
        return (_message(answer["message"]),)
    if answer.get("role") in ROLES or isinstance(answer.get("tool_calls"), list):
        return (_message(answer),)
    return ()


def message_of(value: Any) -> ModelMessage | None:
    """Return a value as a message. None if it is not a message."""
    if not isinstance(value, Mapping) or value.get("role") not in ROLES:
        return None
    found = _message(value)
    return found if found.parts else None


def messages_of(value: Any) -> tuple[ModelMessage, ...]:
    """Return a list as messages. Empty unless every item is a message."""
    found = [message_of(each) for each in value] if isinstance(value, list) else []
    return tuple(each for each in found if each is not None) if all(found) else ()


def _keywords(request: Any) -> Mapping[str, Any] | None:
    """Return the named parts of a request: the keywords of a call, or the body of an HTTP request."""
    if not isinstance(request, Mapping):
        return None
    if request and request.keys() <= {"args", "kwargs"}:
        given = request.get("kwargs") or {}
        arguments = request.get("args") or []
        if arguments:
            first = "messages" if isinstance(arguments[0], list) else "prompt"
            rest = {"args": arguments[1:]} if len(arguments) > 1 else {}
            given = {first: arguments[0], **rest, **given}
        return given if isinstance(given, Mapping) else None
    for name in ("body", "json"):
        if isinstance(request.get(name), Mapping):
            return request[name]  # type: ignore[no-any-return]
    return request


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and ("role" in value or value.get("type") in (*HEARD, *CALLED, "reasoning"))


def _message(given: Mapping[str, Any]) -> ModelMessage:
    role = given.get("role")
    if role is None:
        role = "tool" if given.get("type") in HEARD else "assistant"
        return ModelMessage(role, tuple(_part(given)))
    parts = [MessagePart("thinking", given[name]) for name in ("reasoning_content", "reasoning") if given.get(name)]
    content = given.get("content", given.get("parts"))
    if role in ("tool", "function"):
        name = given.get("name") or given.get("tool_call_id") or ""
        parts += [_result(each, str(name)) for each in _parts(content)]
    else:
        parts += _parts(content)
    for each in given.get("tool_calls") or ():
        parts += _part(each) if isinstance(each, Mapping) else [MessagePart("json", each)]
    known = {"role", "content", "parts", "tool_calls", "name", "tool_call_id", "reasoning", "reasoning_content"}
    left = {name: value for name, value in given.items() if name not in known and value not in (None, [], {})}
    if not parts and left:
        parts.append(MessagePart("json", left))
    return ModelMessage(str(role), tuple(parts))


def _parts(content: Any) -> Iterator[MessagePart]:
    if isinstance(content, str):
        yield MessagePart("text", content)
    elif isinstance(content, list):
        for each in content:
            yield from _part(each) if isinstance(each, Mapping) else [_plain(each)]
    elif isinstance(content, Mapping) and isinstance(content.get("parts"), list):
        yield from _parts(content["parts"])
    elif content is not None:
        yield _plain(content)


def _result(part: MessagePart, name: str) -> MessagePart:
    """Return a tool's result. JSON text is parsed, so that it is shown as JSON."""
    text = part.value
    is_json = isinstance(text, str) and text[:1] in ("{", "[")
    return MessagePart("result", _parse_json(text) if is_json else text, name)


def _plain(value: Any) -> MessagePart:
    return MessagePart("text" if isinstance(value, str) else "json", value)


def _part(given: Mapping[str, Any]) -> Iterator[MessagePart]:
    kind = given.get("type")
    function = given.get("function")
    if (kind in TEXTS or kind is None) and isinstance(given.get("text"), str):
        yield MessagePart("text", given["text"])
    elif kind == "thinking":
        yield MessagePart("thinking", given.get("thinking", ""))
    elif isinstance(function, Mapping):
        yield MessagePart("call", _parse_json(function.get("arguments")), str(function.get("name", "")))
    elif kind in CALLED:
        yield MessagePart("call", _parse_json(given.get("input", given.get("arguments"))), str(given.get("name", "")))
    elif kind in HEARD:
        name = given.get("name") or given.get("tool_use_id") or given.get("call_id") or ""
        for each in _parts(given.get("content", given.get("output"))):
            yield _result(each, str(name))
    else:
        yield MessagePart("json", given)


def _parse_json(arguments: Any) -> Any:
    """Parse arguments that are JSON text. Anything else is returned unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _tools(given: Any) -> Iterator[str]:
    for each in given if isinstance(given, list) else ():
        named = each.get("function", each) if isinstance(each, Mapping) else {}
        name = named.get("name") if isinstance(named, Mapping) else None
        if isinstance(name, str):
            yield name
