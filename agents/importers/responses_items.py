"""Convert items of OpenAI's Responses API, and of formats built on it, to messages.

What a model does in one turn is written as several items: `reasoning`, a `message` of the assistant, and calls.
Consecutive items become one message of the assistant, which stores the items unchanged in its `extra`. An item whose
type ends in `_output` answers the call with its `call_id`. A `message` of another role becomes a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from refold.agents.importers.messages import Message, ToolCall, parse_messages, parsed, record
from refold.avro.canonical import json_text
from refold.avro.errors import InputError
from refold.avro.observation import Value

CALLS = {"function_call": "arguments", "custom_tool_call": "input", "local_shell_call": "action"}
SERVED = frozenset({"web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call"})
"""Calls that the provider answers itself: they are stored with their turn, and are not actions of the agent."""


def messages_of_items(items: Iterable[Value], place: str) -> list[Message]:
    """Convert a list of items to messages.

    Args:
        items: The items as they are in the file.
        place: FILE:LINE, for error messages.

    Returns:
        The messages in order.

    Raises:
        InputError: An item has another shape; the message names `place` and the item.
    """
    turns = Turns()
    for index, item in enumerate(items):
        turns.add(item, f"{place}: item {index}", None)
    return turns.messages()


class Turns:
    """Combines items into messages, in their order."""

    def __init__(self) -> None:
        self._made: list[Message | _Turn] = []
        self._open: _Turn | None = None

    def add(self, item: Value, place: str, at: int | None) -> str:
        """Add one item.

        Args:
            item: The item as it is in the file.
            place: FILE:LINE, for the error message.
            at: When it was recorded, microseconds; None if that is not known.

        Returns:
            The item's type if it is not understood and therefore stored unchanged, else an empty string.

        Raises:
            InputError: The item has another shape.
        """
        if not isinstance(item, Mapping):
            raise InputError(f"{place}: is not an object with a type")
        kind = item.get("type") if isinstance(item.get("type"), str) else "message" if "role" in item else ""
        if kind == "message" and item.get("role") == "assistant":
            self._turn(item, at)
        elif kind == "message":
            self._close()
            time: dict[str, Any] = {} if at is None else {"timestamp": at}
            self._made += parse_messages([{**item, **time}], place)
        elif kind == "reasoning" or kind in SERVED:
            self._turn(item, at)
        elif kind in CALLS:
            self._turn(item, at).calls.append(_call(item, str(kind), place))
        elif isinstance(kind, str) and kind.endswith("_output") and isinstance(item.get("call_id"), str):
            self._close()
            self._made.append(_answer(item, at))
        else:
            self.keep(record(str(kind) or "item without type", item, at))
            return str(kind) or "item without type"
        return ""

    def keep(self, message: Message) -> None:
        """Add a message unchanged, without ending the current turn."""
        self._made.append(message)

    def messages(self) -> list[Message]:
        """Return all messages, in order."""
        return [each.message() if isinstance(each, _Turn) else each for each in self._made]

    def _turn(self, item: Any, at: int | None) -> _Turn:
        if self._open is None:
            self._open = _Turn(at)
            self._made.append(self._open)
        self._open.items.append(item)
        return self._open

    def _close(self) -> None:
        self._open = None


class _Turn:
    """The items that were read so far of one turn of the model."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.items: list[Any] = []
        self.calls: list[ToolCall] = []

    def message(self) -> Message:
        texts = [
            text for each in self.items if each.get("type", "message") == "message" for text in _texts(each, "content")
        ]
        thought = [
            text
            for each in self.items
            if each.get("type") == "reasoning"
            for text in (*_texts(each, "summary"), *_texts(each, "content"))
        ]
        return Message(
            role="assistant",
            content="".join(texts) or None,
            calls=tuple(self.calls),
            rationale="\n".join(thought),
            at=self.at,
            extra={"items": self.items},
        )


def _texts(item: Mapping[str, Any], key: str) -> list[str]:
    listed = item.get(key)
    if isinstance(listed, str):
        return [listed]
    found = (each.get("text") for each in listed or () if isinstance(each, Mapping)) if isinstance(listed, list) else ()
    return [each for each in found if isinstance(each, str) and each]


def _call(item: Mapping[str, Any], kind: str, place: str) -> ToolCall:
    name, written = item.get("name", "shell" if kind == "local_shell_call" else None), item.get(CALLS[kind])
    if not isinstance(name, str):
        raise InputError(f"{place}: names no tool")
    call_id = item.get("call_id") or item.get("id")
    return ToolCall(
        name, parsed(written) if isinstance(written, str) else written, call_id if isinstance(call_id, str) else ""
    )


def _answer(item: Mapping[str, Any], at: int | None) -> Message:
    output = item.get("output")
    inner = output.get("content") if isinstance(output, Mapping) and isinstance(output.get("content"), str) else output
    texts = _texts({"output": inner}, "output") if isinstance(inner, list) else []
    is_text = bool(texts) and isinstance(inner, list) and len(texts) == len(inner)
    result = inner if inner is None or isinstance(inner, str) else "".join(texts) if is_text else json_text(inner)
    failed = output.get("success") if isinstance(output, Mapping) else None
    return Message(
        role="tool",
        content=output if output is None or isinstance(output, str) else json_text(output),
        content_type="text" if output is None or isinstance(output, str) else "json",
        tool_call_id=item["call_id"],
        result=result,
        failed=True if failed is False else None,
        at=at,
        extra={key: value for key, value in item.items() if key not in ("output", "call_id")},
    )
