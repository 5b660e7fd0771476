"""The panes of a step: what it did, its state, what the model was asked, what the agent had read. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from refold.explorer.deck.texts import (
    BAD,
    DIM,
    HEADING,
    call_text,
    change_text,
    failure_text,
    heading,
    lines,
    message_text,
    utc,
    value_text,
)
from refold.explorer.views.recorded_text import cell, visible

PANES = ("did", "state", "model", "read")


def pane_text(index: int, shown: dict[str, Any], *, is_raw: bool) -> Text:
    """Return the text of a pane.

    Args:
        index: The index of the pane in PANES.
        shown: The result of step_shown.
        is_raw: Whether calls are shown as recorded instead of as messages.
    """
    if index == 0:
        return lines(_actions_pane(shown, is_raw=is_raw))
    if index == 1:
        return lines(_state(shown))
    if index == 2:
        return lines(_model(shown, is_raw=is_raw))
    return lines(_read(shown))


def _actions_pane(shown: dict[str, Any], *, is_raw: bool) -> Iterator[Text]:
    step = shown["step"]
    name = f" {step['name']}" if step["name"] else ""
    yield heading(f"Step {step['step']}{name}: {step['outcome'] or step['status']}")
    if step["decision"] is not None:
        yield Text("decided ", "cyan").append(cell(step["decision"], 300), HEADING)
        if step["rationale"]:
            yield value_text(f"because {step['rationale']}")
    if step["failure"] is not None:
        yield failure_text(step["failure"])
    for attempt in shown["attempts"]:
        yield Text(f"attempt {attempt['attempt']} failed; again after {attempt['backoff_ms']} ms", DIM)
        if attempt["failure"] is not None:
            yield failure_text(attempt["failure"], 2)
    for call in shown["calls"]:
        if call["is_of_the_process"] and not is_raw:
            continue
        yield Text()
        yield from call_text(call, is_raw=is_raw)
    for name, value in shown["observed"].items():
        yield Text(f"{visible(name)} = ").append(cell(value, 600))
    if step["result"] is not None:
        yield Text()
        yield Text("returned ", "cyan").append(cell(step["result"], 600))


def _state(shown: dict[str, Any]) -> Iterator[Text]:
    if not shown["changed"]:
        yield Text("the step changed nothing in the state", DIM)
    for each in shown["changed"]:
        if each.message is not None:
            yield Text(f"{visible(each.path)}: new", HEADING)
            yield from message_text(each.message, 2)
        else:
            yield change_text(each.path, each.before, each.after, has_before=each.has_before, has_after=each.has_after)
    if shown["changed_count"] > len(shown["changed"]):
        yield Text(f"and {shown['changed_count'] - len(shown['changed']):,} more changes", DIM)
    yield Text()
    yield heading("State after the step")
    yield value_text(shown["after"])


def _model(shown: dict[str, Any], *, is_raw: bool) -> Iterator[Text]:
    calls = [call for call in shown["calls"] if call["kind"] == "model"]
    if not calls and not shown["context"]:
        yield Text("no model was asked in this step", DIM)
    for message in shown["context"]:
        yield from message_text(message)
    for call in calls:
        yield from call_text({**call, "said_before": 0}, is_raw=is_raw)
        yield Text()


def _read(shown: dict[str, Any]) -> Iterator[Text]:
    if shown["not_known"]:
        yield Text(visible(shown["not_known"]), "yellow")
    elif not shown["has_entity"]:
        yield Text("the spans of the run do not say what it read", DIM)
    elif not shown["reads"]:
        yield Text("the agent had read no entity by then", DIM)
    for each in shown["reads"]:
        stale = Text("  stale: the log held another state", BAD) if each["stale"] else Text("")
        yield Text(visible(each["entity"]), HEADING).append(f"  v{each['version']}").append_text(stale)
        yield Text(f"  read in step {each['step']} at {utc(each['read_at'])} UTC; e opens it", DIM)
        for differing in each["differing"]:
            sides = (cell(differing[side], 300) if side in differing else "nothing" for side in ("known", "held"))
            text = Text(f"  {visible(differing['path'])}:")
            for words, style, value in zip((" it knew ", ", the log had "), ("red", "green"), sides, strict=True):
                text.append(words).append(value, style)
            yield text
        yield value_text(each["fields"], 4)
