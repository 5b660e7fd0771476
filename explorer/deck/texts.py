"""Answers as styled text for a terminal: calls, messages, differences, chains. Pure functions.

Every recorded value passes through views/recorded_text.py, so none is read as markup and none can control the terminal.
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
    "not ended": ("○", "yellow"),
}  # fmt: skip
"""The sign and the style of each outcome. The sign suffices where colours cannot be seen."""
HEADING, DIM, OLD, NEW, BAD = "bold", "dim", "red", "green", "bold red"


def outcome_text(outcome: str) -> Text:
    """Return the sign of an outcome; a space if it has none."""
    sign, style = OUTCOMES.get(outcome, (" ", ""))
    return Text(sign, style)


def utc(time: str | None) -> str:
    """Format an RFC 3339 time in UTC as `2026-11-21 03:12:00.125`; "-" for None."""
    if not time:
        return "-"
    return time.removesuffix("Z").replace("T", " ")[:23]


def source_text(source: dict[str, Any] | None) -> str:
    """Return the agent, with its run and step if it has them."""
    if not source:
        return "-"
    run = f" {source['run']}#{source['step']}" if source["run"] and source["step"] else ""
    return f"{source['agent'] or '-'}{run}"


def lines(parts: Iterable[Text]) -> Text:
    """Join texts, each on its own line."""
    return Text("\n").join(parts)


def heading(text: str) -> Text:
    """Return a heading within a pane."""
    return Text(visible(text), HEADING)


def value_text(value: Any, indent: int = 2, style: str = "") -> Text:
    """Return a value as text. A long value is cut, with a note.

    Args:
        value: The value. A text is shown as it is, anything else as indented JSON.
        indent: The number of spaces before each line.
        style: The style of the text; empty: none.
    """
    found = clipped(value, VALUE_MAX)
    pad = " " * indent
    text = Text("\n".join(pad + line for line in found.text.split("\n")), style)
    if found.left_out:
        text.append(f"\n{pad}… {found.left_out:,} more characters (y copies the command that prints them)", DIM)
    return text


def failure_text(failure: Mapping[str, Any], indent: int = 0) -> Text:
    """Format a failure as `PaymentRefused: 1998 cents are no price`, on as many lines as the message has."""
    name = failure["exception"].rpartition(".")[2]
    return value_text(f"{name}: {failure['message']}" if failure["message"] else name, indent, BAD)


def call_text(call: Mapping[str, Any], *, is_raw: bool) -> list[Text]:
    """Return the request of a call, each retry, and its answer or failure.

    Args:
        call: The call, as the view of a step has it; see step_shown.
        is_raw: Whether request and answer are shown as recorded.
    """
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
    """Return the role of a message, then its parts.

    Args:
        indent: The number of spaces before the role. Parts are indented by two more.
    """
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
    """Return one difference: the old value after -, the new one after +."""
    text = Text(visible(path), HEADING)
    if has_before:
        text.append("\n- " + cell(before, 600), OLD)
    if has_after:
        text.append("\n+ " + cell(after, 600), NEW)
    return text


def words_text(pieces: Sequence[TextPiece], sign: str, style: str) -> Text:
    """Return one side of two texts that differ. Words that the other side does not have are in reverse video."""
    text = Text(f"{sign} ", style)
    for piece in pieces:
        text.append(piece.text, f"{style} reverse" if piece.is_other else "")
    return text
