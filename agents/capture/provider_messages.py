"""Messages of Gemini, Ollama and Bedrock's Converse, in the forms that importers read (agents/importers/messages.py).

    gemini     {"role": "user" or "model", "parts": [{"text"}, {"functionCall"}, {"functionResponse"}, ...]}
    ollama     as OpenAI's, but results name their tool (`tool_name`) and need no id, and thoughts are in `thinking`
    converse   {"role", "content": [{"text"}, {"toolUse"}, {"toolResult"}, {"reasoningContent"}, ...]}

Only messages, calls and results are read here. The messages themselves are stored in the provider's form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from refold.avro.canonical import json_text


def gemini(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a content of Gemini's API. The result of a function becomes a separate message."""
    parts = [each for each in _list(message.get("parts")) if isinstance(each, Mapping)]
    kinds = (("thinking" if each.get("thought") else "text", each.get("text")) for each in parts)
    texts = [{"type": kind, kind: text} for kind, text in kinds if isinstance(text, str) and text]
    calls = [_call(each["functionCall"]) for each in parts if isinstance(each.get("functionCall"), Mapping)]
    found: list[dict[str, Any]] = []
    if texts or calls:
        role = "assistant" if message.get("role") == "model" else "user"
        found.append({"role": role, "content": texts or None, **({"tool_calls": calls} if calls else {})})
    for result in (each["functionResponse"] for each in parts if isinstance(each.get("functionResponse"), Mapping)):
        answer = result.get("response")
        found.append({
            "role": "tool", "name": _text(result.get("name")), "tool_call_id": _text(result.get("id")),
            "content": answer if isinstance(answer, str) else json_text(answer),
            "is_error": isinstance(answer, Mapping) and bool(answer.get("error")),
        })  # fmt: skip
    return found


def ollama(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a message of Ollama's API."""
    found = {key: value for key, value in message.items() if key not in ("images", "tool_name", "thinking")}
    if isinstance(message.get("tool_name"), str):
        found["name"] = message["tool_name"]
    if isinstance(message.get("thinking"), str):
        found["reasoning"] = message["thinking"]
    return [found]


def converse(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Convert a message of Bedrock's Converse to one of Anthropic's API."""
    blocks = [_converse_block(each) for each in _list(message.get("content")) if isinstance(each, Mapping)]
    return [{"role": message.get("role"), "content": [each for each in blocks if each is not None] or None}]


READABLE: Mapping[str, Callable[[Mapping[str, Any]], list[dict[str, Any]]]] = {
    "gemini": gemini, "ollama": ollama, "converse": converse,
}  # fmt: skip
"""Converters to readable messages, by the family of the provider; messages of other families need none."""


def readable(family: str, message: Any) -> list[Any]:
    """Convert a message to the form that importers read; it may become several.

    Args:
        family: The family of the provider.
        message: The message in the provider's form.
    """
    make = READABLE.get(family)
    return [message] if make is None or not isinstance(message, Mapping) else make(message)


def _converse_block(block: Mapping[str, Any]) -> dict[str, Any] | None:
    if isinstance(block.get("text"), str):
        return {"type": "text", "text": block["text"]}
    if isinstance(use := block.get("toolUse"), Mapping):
        return {"type": "tool_use", "id": use.get("toolUseId"), "name": use.get("name"), "input": use.get("input")}
    if isinstance(thought := block.get("reasoningContent"), Mapping):
        reasoning = thought.get("reasoningText")
        return {"type": "thinking", "thinking": reasoning.get("text") if isinstance(reasoning, Mapping) else None}
    if isinstance(result := block.get("toolResult"), Mapping):
        parts = [_result_part(each) for each in _list(result.get("content")) if isinstance(each, Mapping)]
        return {
            "type": "tool_result", "tool_use_id": result.get("toolUseId"), "content": parts,
            "is_error": result.get("status") == "error",
        }  # fmt: skip
    return None


def _result_part(part: Mapping[str, Any]) -> dict[str, Any]:
    text = part.get("text")
    return {"type": "text", "text": text if isinstance(text, str) else json_text(part.get("json", dict(part)))}


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": _text(call.get("id")), "function": {"name": call.get("name"), "arguments": call.get("args")}}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
