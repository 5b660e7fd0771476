"""Read a recorded exchange: the JSON of its request and its answer, and each provider's names of the same fields.

Models and counts of tokens are returned under the names of OpenAI's API, for every provider:

    Gemini    the model in the path; usageMetadata: promptTokenCount, candidatesTokenCount
    Ollama    prompt_eval_count, eval_count
    Bedrock   the model in the path; usage: inputTokens, outputTokens
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from refold.agents.capture import event_stream
from refold.agents.capture.exchange import bytes_of, frames_of, is_of_messages
from refold.agents.journal.record import Plain

_MODEL = re.compile(r"/models?/([^/:]+)(?::|/(?:converse|invoke))")
_INPUT = (
    ("usage", "input_tokens"), ("usage", "prompt_tokens"), ("usage", "inputTokens"),
    ("usageMetadata", "promptTokenCount"), ("", "prompt_eval_count"),
)  # fmt: skip
_OUTPUT = (
    ("usage", "output_tokens"), ("usage", "completion_tokens"), ("usage", "outputTokens"),
    ("usageMetadata", "candidatesTokenCount"), ("", "eval_count"),
)  # fmt: skip
_USAGES = ("usage", "usageMetadata")
# The parts of an event that hold fields of the answer, and for each a field of it that is not the answer's.
_HOLDERS = (("message", ""), ("response", ""), ("delta", "type"))


def json_exchange(request: Plain, answer: Plain) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a model's request and answer as the JSON of both; empty if they are not JSON.

    For a stream the answer has the fields of its events, and those under `message`, `response` and `delta` in them;
    later ones override earlier ones. Token counts from different events are combined.
    """
    body = _json(bytes_of(request.get("body", "")))
    path = urlsplit(str(request.get("url", ""))).path
    if "model" not in body and (found := _MODEL.search(path)) is not None:
        body = {**body, "model": unquote(found[1])}
    if not isinstance(answer, dict):
        return body, {}
    whole = {} if is_of_messages(answer) else _json(body_of(answer))
    if whole:
        return body, whole
    answered: dict[str, Any] = {}
    for event in _events(answer):
        # The type of an event is not a field of the answer.
        for part, left in ((event, "type"), *((event.get(name), left) for name, left in _HOLDERS)):
            if isinstance(part, dict):
                members = {key: each for key, each in part.items() if each not in (None, []) and key != left}
                # Anthropic reports the tokens read at the beginning, and those written at the end.
                kept = {key: {**answered[key], **members[key]} for key in _USAGES if _are_both(answered, members, key)}
                answered |= members | kept
    return body, answered


def reported_tokens(answered: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the tokens that a model read and wrote, as it reports them; None if it does not."""
    return _first_count(answered, _INPUT), _first_count(answered, _OUTPUT)


def body_of(answer: Mapping[str, Any]) -> bytes:
    """Return the bytes of a recorded answer's body."""
    return b"".join(bytes_of(body) for _, body in answer.get("chunks", ()))


def event_texts(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the events of a stream that may be JSON: the event's name, if its frame has one, and its text."""
    frames = [frame for _, body in answer.get("chunks", ()) for frame in frames_of(body)]
    if frames:
        yield from ((event_stream.frame_event(each), event_stream.frame_text(each)) for each in frames)
        return
    if is_of_messages(answer):
        yield from (("", body) for _, body in answer["chunks"] if isinstance(body, str))
        return
    for line in body_of(answer).split(b"\n"):
        text = line.strip()
        if text[:1] in (b"d", b"{"):
            yield "", text.removeprefix(b"data:").strip().decode("utf-8", "replace")


def _are_both(before: Mapping[str, Any], now: Mapping[str, Any], key: str) -> bool:
    return isinstance(before.get(key), dict) and isinstance(now.get(key), dict)


def _events(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    whole = _decode_json(body_of(answer))
    if isinstance(whole, list):  # Gemini's streams are one list, unless events are requested
        yield from (each for each in whole if isinstance(each, dict))
        return
    for _, text in event_texts(answer):
        if event := _json(text.encode()):
            yield event


def _first_count(answered: Mapping[str, Any], names: tuple[tuple[str, str], ...]) -> int | None:
    for holder, name in names:
        within = answered.get(holder) if holder else answered
        value = within.get(name) if isinstance(within, dict) else None
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _json(data: bytes) -> dict[str, Any]:
    found = _decode_json(data)
    return found if isinstance(found, dict) else {}


def _decode_json(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
