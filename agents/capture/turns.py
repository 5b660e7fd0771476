"""Parse model providers' requests and answers: the conversation so far, and the model's reply to it.

    anthropic   POST .../messages                messages; the reply is content blocks, in a stream by deltas
                also by Bedrock (.../model/ID/invoke) and Vertex AI (...:rawPredict)
    chat        POST .../chat/completions        messages; the reply is choices[0].message, in a stream by deltas
    responses   POST .../responses               input, text or items; the reply is output items
                also by WebSocket: messages of the type response.create
    gemini      POST ...:generateContent         contents; the reply is candidates[0].content
    ollama      POST .../api/chat, .../generate  messages, or a prompt; the reply is message, or response
    converse    POST .../model/ID/converse       messages; the reply is output.message

A stream is of events (SSE), lines of JSON (Ollama), one list (Gemini) or frames (Bedrock, event_stream.py). Any other
exchange is not parsed, and is not a turn.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import msgspec

from refold.agents.capture.answers import body_of, event_texts
from refold.agents.capture.exchange import WEBSOCKET, is_of_messages
from refold.agents.capture.provider_messages import readable
from refold.agents.capture.stream_replies import ASSEMBLED
from refold.agents.importers.json_lines import parse_json
from refold.agents.importers.messages import Message, ToolCall, parse_messages
from refold.agents.importers.responses_items import messages_of_items
from refold.agents.journal.record import Plain
from refold.avro.errors import InputError

Family: TypeAlias = Literal["anthropic", "chat", "responses", "gemini", "ollama", "converse"]
_PATHS: Mapping[Family, re.Pattern[str]] = {
    "anthropic": re.compile(
        r"/messages$|/model/[^/]+/invoke(?:-with-response-stream)?$|:(?:rawPredict|streamRawPredict)$"
    ),
    "chat": re.compile(r"/chat/completions$"),
    "responses": re.compile(r"/responses$"),
    "gemini": re.compile(r":(?:generateContent|streamGenerateContent)$"),
    "ollama": re.compile(r"/api/(?:chat|generate)$"),
    "converse": re.compile(r"/model/[^/]+/converse(?:-stream)?$"),
}
# Cache marks for the provider. Clients move them from message to message.
VOLATILE_KEYS = frozenset({"cache_control"})
_TEXT_KINDS = ("text", "input_text", "output_text")


class ModelTurn(NamedTuple):
    """A request to a model.

    Attributes:
        chain: A hash for each prefix of the conversation, from one message on.
        follows: The id of the response that it continues, if the provider stores the conversation.
    """

    family: Family
    messages: list[Any]
    chain: list[str]
    follows: str = ""


class ModelReply(NamedTuple):
    """A model's answer.

    Attributes:
        messages: The messages, in the form in which the next request repeats them.
        id: The id of the response.
    """

    messages: list[Any]
    calls: Sequence[ToolCall] = ()
    text: str = ""
    id: str = ""


TASK_CHARACTERS_MIN = 16
"""A shorter text may be in a call's arguments by chance."""


class ToolResult(NamedTuple):
    """The agent's result for a tool call.

    Attributes:
        failed: Whether it is marked as an error.
        tool: The tool's name, if given.
    """

    call_id: str
    output: str | None
    failed: bool
    tool: str = ""


def family_of(request: Plain) -> Family | None:
    """Return the form of an exchange's request, by its path; None if it is of none of them."""
    path = urlsplit(request["url"]).path.rstrip("/")
    return next((family for family, pattern in _PATHS.items() if pattern.search(path)), None)


def turn_of(request: Plain) -> ModelTurn | None:
    """Return the turn in an exchange's request; None if it is not a turn."""
    family = family_of(request)
    body = _json(request.get("body"))
    if family is None or not isinstance(body, dict) or not _asks(family, request, body):
        return None
    messages = body.get(_key_of_messages(family))
    if family == "ollama" and isinstance(body.get("prompt"), str):
        messages = body["prompt"]
    if isinstance(messages, str) and family in ("responses", "ollama"):
        messages = [{"role": "user", "content": messages}]
    if not isinstance(messages, list) or not messages:
        return None
    return ModelTurn(family, messages, _chain(family, messages), _follows(family, body))


def _asks(family: Family, request: Plain, body: Mapping[str, Any]) -> bool:
    """Return whether a request has the method by which models are called."""
    if request.get("method") == WEBSOCKET:
        return family == "responses" and body.get("type") == "response.create"
    return str(request.get("method", "")).upper() == "POST"


def reply_of(family: Family, answer: Plain) -> ModelReply | None:
    """Return the reply in an exchange's answer; None if it has none, or only a part of one."""
    is_messages = is_of_messages(answer)
    if not isinstance(answer, dict) or answer.get("end") != "whole":
        return None
    if not is_messages and not 200 <= answer.get("status", 0) < 300:
        return None
    try:
        whole = None if is_messages else _json(body_of(answer).decode("utf-8", "replace"))
        if isinstance(whole, dict) and family != "ollama":
            return _reply(family, whole)
        if isinstance(whole, list | dict):
            events = [each for each in (whole if isinstance(whole, list) else [whole]) if isinstance(each, dict)]
        else:
            found = ((name, _json(text)) for name, text in event_texts(answer))
            events = [{"type": name, **each} if name else each for name, each in found if isinstance(each, dict)]
        return _reply(family, ASSEMBLED[family](events))
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration):
        return None  # it has another shape: it is recorded, and not understood


def going_on(request: Plain, messages: Sequence[Any]) -> dict[str, Any] | None:
    """Return the JSON of a turn's request with other messages, as a client sends it to continue.

    A conversation that the provider stores is sent whole. A request to Ollama's `generate` becomes one to `chat`.

    Args:
        request: The turn's request.
        messages: The messages of the new request.

    Returns:
        None if the request is not a turn.
    """
    turn, body = turn_of(request), _json(request.get("body"))
    if turn is None:
        return None
    left_out: tuple[str, ...] = ("previous_response_id", "prompt", "context")
    if request.get("method") == WEBSOCKET:  # in the form that a client sends by HTTP
        left_out += ("type", "stream_id")
    kept = {key: value for key, value in body.items() if key not in left_out}
    return {**kept, _key_of_messages(turn.family): list(messages)}


def results_of(family: Family, messages: Sequence[Any]) -> list[ToolResult]:
    """Return the results of tool calls among some messages."""
    found = []
    for each in messages:
        try:
            read = _read(family, [each])
        except InputError:
            continue
        found += [
            ToolResult(message.tool_call_id, message.result, _is_failed(message), message.name)
            for message in read if message.is_result and (message.tool_call_id or message.name)
        ]  # fmt: skip
    return found


def answers_to(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[ToolResult | None]:
    """Return the result of each call: by its id, else the next result that names its tool. Gemini and Ollama need no
    ids."""
    left = list(results)
    found: list[ToolResult | None] = []
    for call in calls:
        answer = next((each for each in left if each.call_id and each.call_id == call.call_id), None)
        if answer is None:
            answer = next(
                (each for each in left if each.tool == call.tool and not (each.call_id and call.call_id)), None
            )
        if answer is not None:
            left.remove(answer)
        found.append(answer)
    return found


def is_of_the_model(message: Any) -> bool:
    """Return whether a model wrote a message or an item."""
    if not isinstance(message, Mapping):
        return False
    return message.get("role") in ("assistant", "model") or message.get("type") in _OF_THE_MODEL


def is_answered_by(turn: ModelTurn, rest: Sequence[Any], reply: ModelReply) -> bool:
    """Return whether the messages that follow an earlier request in a turn begin with the reply to that request.

    Args:
        turn: The turn.
        rest: Its messages after the earlier request.
        reply: The reply.
    """
    begin = next((at for at, each in enumerate(rest) if not is_of_the_model(each)), len(rest))
    ids, text = said_by(turn.family, rest[:begin])
    own_ids, own_text = said_by(turn.family, reply.messages)
    return begin > 0 and ids == own_ids and (text == own_text or not text or not own_text)


_OF_THE_MODEL = ("reasoning", "function_call", "custom_tool_call", "local_shell_call", "web_search_call",
                 "file_search_call", "code_interpreter_call", "image_generation_call")  # fmt: skip


def said_by(family: Family, messages: Sequence[Any]) -> tuple[frozenset[str], str]:
    """Return what distinguishes a model's reply: the ids of its calls, and its text without white space.

    If calls need no ids, clients may leave them out: then it is the tools' names.
    """
    calls, texts = _calls_and_texts(family, messages)
    named = (each.tool if family in ("gemini", "ollama") else each.call_id for each in calls)
    return frozenset(each for each in named if each), "".join("".join(texts).split())


def title_of(family: Family, messages: Sequence[Any]) -> str:
    """Return the first words of the user."""
    return " ".join(next(reversed(asked_first(family, messages)), "").split())[:80]


def asked_first(family: Family, messages: Sequence[Any]) -> list[str]:
    """Return the texts of the user's first message."""
    for each in (form for message in messages for form in readable(family, message)):
        if isinstance(each, Mapping) and each.get("role") == "user" and (texts := _content_texts(each.get("content"))):
            return texts
    return []


def is_task_in(call: ToolCall, texts: Sequence[str]) -> bool:
    """Return whether a call's arguments contain one of the texts as a whole: then the call gave an agent its task."""
    tasks = {text.strip() for text in texts if len(text.strip()) >= TASK_CHARACTERS_MIN}
    return any(each.strip() in tasks for each in _strings(call.inputs))


def without_keys(value: Any, keys: Collection[str]) -> Any:
    """Return a tree without the members of these names, at any depth."""
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
    elif family == "gemini":
        messages = [{"role": "model", **found["candidates"][0]["content"]}]
    elif family == "ollama":
        messages = [found["message"]]
        identity = identity or _context_hash(found.get("context"))
    elif family == "converse":
        messages = [found["output"]["message"]]
    else:
        messages = [{"role": "assistant", "content": found["content"]}]
    calls, texts = _calls_and_texts(family, messages)
    return ModelReply(list(messages), calls, "".join(texts), identity or "")


def _strings(tree: Any) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping | list):
        for each in tree.values() if isinstance(tree, Mapping) else tree:
            yield from _strings(each)


def _key_of_messages(family: Family) -> str:
    """Return the name of the member in which a request has its messages."""
    return {"responses": "input", "gemini": "contents"}.get(family, "messages")


def _calls_and_texts(family: Family, messages: Sequence[Any]) -> tuple[list[ToolCall], list[str]]:
    try:
        read = _read(family, messages)
    except InputError:
        return [], []
    replies = [each for each in read if each.role == "assistant"]
    return [call for each in replies for call in each.calls], [each.text for each in replies if each.text]


def _read(family: Family, messages: Sequence[Any]) -> Sequence[Message]:
    """Parse messages.

    Raises:
        InputError: They have another shape.
    """
    if family == "responses":
        return messages_of_items(messages, "input")
    forms = [form for each in messages for form in readable(family, each)]
    return parse_messages(forms, "messages") if forms else ()


def _is_failed(message: Message) -> bool:
    return message.failed is True or message.extra.get("is_error") is True


def _follows(family: Family, body: Mapping[str, Any]) -> str:
    """Return the id of the answer that a request continues."""
    if family == "ollama":
        return _context_hash(body.get("context"))
    found = body.get("previous_response_id") if family == "responses" else None
    return found if isinstance(found, str) else ""


def _context_hash(context: Any) -> str:
    """Return the identity of a conversation of Ollama's `generate`: it arrives as numbers, and is sent back."""
    return hashlib.sha256(msgspec.json.encode(context)).hexdigest() if isinstance(context, list) and context else ""


def _content_texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    found = (each.get("text") for each in content if isinstance(each, Mapping) and each.get("type") in _TEXT_KINDS) \
        if isinstance(content, list) else ()  # fmt: skip
    return [each for each in found if isinstance(each, str) and each]


def _json(text: Any) -> Any:
    """Parse a JSON value that an observation can hold; None for any other text."""
    if not isinstance(text, str):
        return None
    try:
        return parse_json(text, "")
    except InputError:
        return None
