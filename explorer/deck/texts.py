"""Answers as styled text for a terminal: calls, messages, differences, chains. Pure.

Every recorded value passes views/recorded_text.py: none is read as markup, and none can steer the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.text import Text

from refold.explorer.views.comparison import TextPiece
from refold.explorer.views.messages import MessagePart, ModelMessage
from refold.explorer.views.recorded_text import cell, clipped, visible

VALUE_MAX = 4_000
OUTCOMES = {
    "succeeded": ("✓", "green"), "failed": ("✗", "bold red"), "timed_out": ("✗", "bold red"),
    "cancelled": ("■", "yellow"), "unknown": ("?", "yellow"), "running": ("▶", "cyan"), "pending": ("▶", "cyan"),
}  # fmt: skip
"""A sign and a style by outcome; the sign tells outcomes apart without colours."""
HEADING, DIM, OLD, NEW, BAD = "bold", "dim", "red", "green", "bold red"


def outcome_text(outcome: str) -> Text:
    """The sign of an outcome; a space where there is none."""
    sign, style = OUTCOMES.get(outcome, (" ", ""))
    return Text(sign, style)


def utc(time: str | None) -> str:
    """`2026-11-21 03:12:00.125` of an RFC 3339 time in UTC; "-" for none."""
    if not time:
        return "-"
    return time.removesuffix("Z").replace("T", " ")[:23]


def source_text(source: dict[str, Any] | None) -> str:
    """Who: the agent, and its run and step where it has them."""
    if not source:
        return "-"
    run = f" {source['run']}#{source['step']}" if source["run"] and source["step"] else ""
    return f"{source['agent'] or '-'}{run}"


def lines(parts: Iterable[Text]) -> Text:
    """Texts, each on its own line."""
    return Text("\n").join(parts)


def heading(text: str) -> Text:
    """A heading within a pane."""
    return Text(visible(text), HEADING)


def value_text(value: Any, indent: int = 2, style: str = "") -> Text:
    """A value: a text itself, anything else as indented JSON; a long one is cut, and says so."""
    found = clipped(value, VALUE_MAX)
    pad = " " * indent
    text = Text("\n".join(pad + line for line in found.text.split("\n")), style)
    if found.left_out:
        text.append(f"\n{pad}… {found.left_out:,} more characters (y copies the command that prints them)", DIM)
    return text


def failure_text(failure: Mapping[str, Any], indent: int = 0) -> Text:
    """`PaymentRefused: 1998 cents are no price`, on as many lines as the message has."""
    name = failure["exception"].rpartition(".")[2]
    return value_text(f"{name}: {failure['message']}" if failure["message"] else name, indent, BAD)


def call_text(call: Mapping[str, Any], *, is_raw: bool) -> list[Text]:
    """A call: its request, each retry, its answer or failure. is_raw: request and answer as they were recorded."""
    found = [Text.assemble((f"{call['kind']} ", "cyan"), (visible(call["name"] or ""), HEADING), _effect(call))]
    if is_raw:
        found += [Text("  request", DIM), value_text(call["request"], 4)]
    elif call["exchange"] is not None:
        messages = call["exchange"].messages
        if call["said_before"]:
            found.append(Text(f"  {call['said_before']} messages as in the call before; pane 3 has all", DIM))
        for message in messages[call["said_before"] :]:
            found += message_text(message, 2)
    elif call["is_function"]:
        found += [Text(f"  {visible(name)} = ").append(cell(value, 600)) for name, value in call["arguments"]]
    elif call["request"] is not None and call["kind"] != "decide":
        found.append(value_text(call["request"]))
    if call["facts"]:
        found.append(Text("  " + ", ".join(map(visible, call["facts"])), DIM))
    for retry in call["retries"]:
        found.append(Text(f"  try {retry['attempt']} failed; again after {retry['backoff_ms']} ms", DIM))
        found.append(failure_text(retry["failure"], 4))
    if call["failure"] is not None:
        if not call["is_told"]:
            found.append(failure_text(call["failure"], 2))
    elif is_raw or not call["answered"]:
        if call["kind"] != "decide":
            found += [Text("  answered", DIM), value_text(call["answer"], 4)]
    else:
        for message in call["answered"]:
            found += message_text(message, 2)
    return found


def _effect(call: Mapping[str, Any]) -> Text:
    return Text(f"  {call['effect']}" if call["effect"] == "write" else "", "yellow")


def message_text(message: ModelMessage, indent: int = 0) -> list[Text]:
    """A message: its role, then its parts."""
    pad = " " * indent
    found = [Text(f"{pad}{visible(message.role)}", "magenta")]
    for part in message.parts:
        found += _part_text(part, indent + 2)
    return found


def _part_text(part: MessagePart, indent: int) -> list[Text]:
    pad = " " * indent
    if part.kind == "text":
        return [value_text(part.value, indent)]
    if part.kind == "thinking":
        return [value_text(part.value, indent, "italic dim")]
    if part.kind in ("call", "result"):
        sign = "→" if part.kind == "call" else "←"
        return [Text(f"{pad}{sign} {visible(part.name)}", "cyan"), value_text(part.value, indent + 2)]
    return [value_text(part.value, indent)]


def change_text(path: str, before: Any, after: Any, *, has_before: bool, has_after: bool) -> Text:
    """One difference: the old value struck with -, the new one with +."""
    text = Text(visible(path), HEADING)
    if has_before:
        text.append("\n- " + cell(before, 600), OLD)
    if has_after:
        text.append("\n+ " + cell(after, 600), NEW)
    return text


def words_text(pieces: Sequence[TextPiece], sign: str, style: str) -> Text:
    """One side of a text that differs, with the words that the other side has not got in reverse."""
    text = Text(f"{sign} ", style)
    for piece in pieces:
        text.append(piece.text, f"{style} reverse" if piece.is_other else "")
    return text
