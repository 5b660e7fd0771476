"""Assemble a model's reply from the events of a stream, in the form of the same provider's whole answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from refold.agents.importers.json_lines import parse_json

Event = dict[str, Any]


def anthropic(events: Sequence[Event]) -> Event:
    """Assemble a reply of Anthropic's messages: blocks, to which deltas are added."""
    start = next(event["message"] for event in events if event.get("type") == "message_start")
    blocks: dict[int, Event] = {}
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


def chat(events: Sequence[Event]) -> Event:
    """Assemble a reply of OpenAI's chat completions: the first choice."""
    message: Event = {"role": "assistant", "content": None}
    calls: dict[int, Event] = {}
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


def responses(events: Sequence[Event]) -> Event:
    """Assemble a reply of OpenAI's responses: the last event holds all of it."""
    found: Event = next(
        event["response"] for event in reversed(events)
        if event.get("type") in ("response.completed", "response.incomplete") and "response" in event
    )  # fmt: skip
    return found


def gemini(events: Sequence[Event]) -> Event:
    """Assemble a reply of Gemini: each event has more parts of the first candidate. Adjacent texts of one kind become
    one part."""
    parts: list[Event] = []
    for event in events:
        for candidate in event.get("candidates") or ():
            if candidate.get("index", 0):
                continue
            for part in (candidate.get("content") or {}).get("parts") or ():
                if parts and _is_text(part) and _is_text(parts[-1]) and part.get("thought") == parts[-1].get("thought"):
                    parts[-1] = {**parts[-1], **part, "text": parts[-1]["text"] + part["text"]}
                elif part != {"text": ""}:  # the last event is often empty
                    parts.append(dict(part))
    if not any("candidates" in event for event in events):
        raise ValueError("no candidates")
    return {"candidates": [{"content": {"role": "model", "parts": parts}}]}


def ollama(events: Sequence[Event]) -> Event:
    """Assemble a reply of Ollama: each line has more text, and perhaps calls. `/api/generate` has its text under
    `response`."""
    if not events[-1].get("done"):
        raise ValueError("the last line is missing")
    message: Event = {"role": "assistant", "content": ""}
    for event in events:
        part = event.get("message") or {"content": event.get("response"), "thinking": event.get("thinking")}
        for key in ("content", "thinking"):
            if part.get(key):
                message[key] = message.get(key, "") + part[key]
        if part.get("tool_calls"):
            message["tool_calls"] = [*message.get("tool_calls", ()), *part["tool_calls"]]
    return {**events[-1], "message": message}


def converse(events: Sequence[Event]) -> Event:
    """Assemble a reply of Bedrock's ConverseStream: blocks, to which deltas are added. No event begins a text block."""
    stop = next(event for event in events if event["type"] == "messageStop")
    blocks: dict[int, Event] = {}
    written: dict[int, str] = {}
    for event in events:
        index = event.get("contentBlockIndex", 0)
        if event["type"] == "contentBlockStart":
            blocks[index] = {key: dict(each) for key, each in event["start"].items()}
        elif event["type"] == "contentBlockDelta":
            block, delta = blocks.setdefault(index, {}), event["delta"]
            if "text" in delta:
                block["text"] = block.get("text", "") + delta["text"]
            if "toolUse" in delta:
                written[index] = written.get(index, "") + delta["toolUse"]["input"]
            if "reasoningContent" in delta:
                thought = block.setdefault("reasoningContent", {}).setdefault("reasoningText", {})
                for key, value in delta["reasoningContent"].items():
                    thought[key] = thought.get(key, "") + value
    for index, block in blocks.items():
        if "toolUse" in block:
            block["toolUse"]["input"] = parse_json(written[index], "a tool's input") if written.get(index) else {}
    content = [blocks[index] for index in sorted(blocks)]
    return {"output": {"message": {"role": "assistant", "content": content}}, "stopReason": stop.get("stopReason")}


ASSEMBLED: Mapping[str, Callable[[Sequence[Event]], Event]] = {
    "anthropic": anthropic, "chat": chat, "responses": responses, "gemini": gemini, "ollama": ollama,
    "converse": converse,
}  # fmt: skip
"""By the family of the provider. Each function raises LookupError, ValueError or TypeError if events are missing."""


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)
