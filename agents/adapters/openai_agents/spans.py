"""A span of the SDK as data: copied when it ends, because the SDK continues to change the lists that it holds.

The kinds of spans that are known are in KINDS. A span of any other kind is kept as the SDK exports it.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any, NamedTuple

import msgspec
from agents.tracing import Span
from pydantic import BaseModel

from refold.agents.journal.record import Failure, Plain
from refold.agents.recorder.plain import decoded, encoded
from refold.avro.errors import InputError
from refold.avro.times import datetime_micros

SPAN_ERROR = "agents.SpanError"

KINDS: dict[str, tuple[str, ...]] = {
    "agent": ("name", "handoffs", "tools", "output_type", "metadata"),
    "custom": ("name", "data"),
    "function": ("name", "input", "output", "mcp_data"),
    "generation": ("input", "output", "model", "model_config", "usage"),
    "guardrail": ("name", "triggered"),
    "handoff": ("from_agent", "to_agent"),
    "mcp_tools": ("server", "result"),
    "response": ("response", "input", "usage"),
    "speech": ("input", "output", "output_format", "model", "model_config", "first_content_at"),
    "speech_group": ("input",),
    "task": ("name", "usage", "metadata"),
    "transcription": ("input", "input_format", "output", "model", "model_config"),
    "turn": ("turn", "agent_name", "usage", "metadata"),
}
"""The members of each kind of span that are recorded."""

MODEL_KINDS = frozenset({"generation", "response", "speech", "transcription"})
DEPTH_MAX = 20
"""How deep a value is kept as a tree if it cannot be kept as it is."""
# Settings of a model that may hold credentials.
_SECRET_SETTINGS = frozenset({"extra_headers", "extra_query"})


class SpanKey(NamedTuple):
    """A span, as it is known from its beginning.

    Attributes:
        kind: The type of the span.
        name: The name of an agent or a tool; for other spans the kind.
    """

    trace: str
    id: str
    parent: str
    kind: str
    name: str


class EndedSpan(NamedTuple):
    """A span that ended.

    Attributes:
        data: The JSON of its members.
        started_at, ended_at: When it began and when it ended, in microseconds since 1970.
    """

    key: SpanKey
    data: bytes
    failure: Failure | None
    started_at: int
    ended_at: int

    @property
    def members(self) -> dict[str, Any]:
        """Its members as a JSON object."""
        members: dict[str, Any] = msgspec.json.decode(self.data)
        return members


def key_of(span: Span[Any]) -> SpanKey:
    """Return a span's key."""
    data = span.span_data
    name = getattr(data, "name", None) or getattr(data, "agent_name", None) or data.type
    identity = (span.trace_id, span.span_id, span.parent_id or "", data.type, name)
    return SpanKey(*map(_text, identity))


def ended(span: Span[Any], now_micros: int) -> EndedSpan:
    """Copy a span.

    Args:
        span: The span.
        now_micros: The time, microseconds. It is the end of a span that does not say when it ended. A span that does
            not say when it began has its end as its beginning.
    """
    data, key = span.span_data, key_of(span)
    names = KINDS.get(key.kind)
    members = data.export() if names is None else {name: getattr(data, name, None) for name in names}
    ended_at = _micros(span.ended_at, now_micros)
    return EndedSpan(
        key, json_of(members), _failure(span.error, ended_at), _micros(span.started_at, ended_at), ended_at
    )


def json_of(value: Any) -> bytes:
    """Return a value as JSON. What JSON cannot represent becomes text."""
    try:
        return msgspec.json.encode(value, enc_hook=_plain_form)
    except Exception:  # lone surrogates, keys that are no text, objects whose own conversion fails
        text = json.dumps(_plain(value), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def log_safe(data: bytes) -> bytes:
    """Return JSON that a log can hold. What it cannot, such as an integer of 90 bits, becomes text."""
    try:
        tree = decoded(data)
        encoded(tree, "a span")
    except (InputError, msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(_plain(json.loads(data)))
    return data


def request_of_span(members: dict[str, Any]) -> Plain:
    """Return the request of a model span, under the names that models' clients use."""
    settings = {
        name: value for name, value in (members.get("model_config") or {}).items()
        if value is not None and name not in _SECRET_SETTINGS
    }  # fmt: skip
    response = _response_of(members)
    if response:
        settings |= {
            name: response[name] for name in ("instructions", "tools", "temperature", "top_p") if response.get(name)
        }
    model = members.get("model") or response.get("model")
    return {"args": [], "kwargs": {**settings, **({"model": model} if model else {}), "input": members.get("input")}}


def answer_of(members: dict[str, Any]) -> Plain:
    """Return the answer of a model span; None if it has none."""
    if response := _response_of(members):
        return response
    if members.get("output") is None:
        return None
    usage = {"usage": members["usage"]} if members.get("usage") else {}
    return {"output": members["output"], **usage}


def text_of_answer(members: dict[str, Any]) -> str:
    """Return the text that a model answered; empty if it answered none."""
    items = _response_of(members).get("output") or members.get("output") or []
    if isinstance(items, str):
        return items
    texts = []
    for each in items if isinstance(items, list) else []:
        content = each.get("content") if isinstance(each, dict) else None
        parts = [{"text": content}] if isinstance(content, str) else content if isinstance(content, list) else []
        texts += [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "".join(texts)


def _response_of(members: dict[str, Any]) -> dict[str, Any]:
    """Return the response that a span holds, also a streamed one in the output of a generation; empty without one."""
    output = members.get("output")
    found = members.get("response") or (output[0] if isinstance(output, list) and len(output) == 1 else None)
    return found if isinstance(found, dict) and found.get("object") == "response" else {}


def _failure(error: Any, at: int) -> Failure | None:
    if error is None:
        return None
    details = error if isinstance(error, dict) else {"message": str(error)}
    message, data = str(details.get("message") or ""), details.get("data")
    detail = data.get("error") if isinstance(data, dict) else None
    shown = decoded(log_safe(json_of(data))) if data else None
    return Failure(
        exception=SPAN_ERROR, message=f"{message}: {detail}" if detail else message, at=at,
        tool=str(data.get("tool_name") or "") if isinstance(data, dict) else "", details=shown,
    )  # fmt: skip


def _micros(given: str | None, otherwise: int) -> int:
    try:
        return datetime_micros(dt.datetime.fromisoformat(given or ""))
    except (TypeError, ValueError):
        return otherwise


def _plain_form(value: Any) -> Any:
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, BaseModel) else str(value)


def _plain(value: Any, depth: int = 0) -> Any:
    """Return a tree that a log can hold; the slow way."""
    if depth < DEPTH_MAX and isinstance(value, dict):
        return {_text(key): _plain(each, depth + 1) for key, each in value.items()}
    if depth < DEPTH_MAX and isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each, depth + 1) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value).encode("utf-8", "replace").decode()
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"
