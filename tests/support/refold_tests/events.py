"""The events that the package's code logs: every call of `log_event` and `event_of` from streams/events.py, by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from refold_tests.tree import ROOT

FOLDERS = ("streams", "explorer", "sinks", "agents")


def events_in_code() -> dict[str, set[str]]:
    """Return each event's fields, collected from all calls that log it."""
    found: dict[str, set[str]] = {}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "events.py":
                for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                    if isinstance(call, ast.Call):
                        for name in _named(call):
                            found.setdefault(name, set()).update(each.arg for each in call.keywords if each.arg)
    found |= {"dead_letter": {"partition", "offset", "reason"}, "dead_letters_suppressed": {"count", "seconds"}}
    for name in ("foreign_records", "damaged_records"):
        found[name] = {"topic", "records", "partition", "offset"}
    found["reducer_failed"] = {"reducer", "observation", "why"}  # logged in reducers, which do not know events
    return {name: fields - {"level"} for name, fields in found.items()}


def _named(call: ast.Call) -> Iterator[str]:
    """Yield the names that a call logs: its argument is a name, or a conditional expression of two."""
    is_log_event = isinstance(call.func, ast.Name) and call.func.id == "log_event" and len(call.args) > 1
    is_event_of = isinstance(call.func, ast.Name) and call.func.id == "event_of"
    if not (is_log_event or is_event_of):
        return
    given = call.args[1] if is_log_event else call.args[0]
    choices = [given.body, given.orelse] if isinstance(given, ast.IfExp) else [given]
    for each in choices:
        assert isinstance(each, ast.Constant), f"an event's name is written out: {ast.unparse(call)}"
        yield str(each.value)
