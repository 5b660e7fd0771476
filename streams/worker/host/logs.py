"""A worker's log on standard error: one line a record, as text or as JSON.

    2026-11-25T00:43:18.123Z WARNING broker_lost servers=127.0.0.1:9092 why="no broker answers"
    {"time": "2026-11-25T00:43:18.123Z", "level": "warning", "logger": "refold.streams.worker.broker_watch",
     "event": "broker_lost", "message": "broker_lost servers=...", "servers": "127.0.0.1:9092", ...}

The first five keys of a JSON line are the same on every line, and no event has a field of their names (FIXED). A
record that is no event (streams/events.py) is shown as the event `message`. docs/OPERATIONS.md lists every event with
its fields.

Messages of libraries, Kafka's clients among them, are written at the level debug and in the same form; at other levels
they are dropped: their consequence for the worker is an event. The same holds for warnings, and an error that ends a
thread is one line.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refold.avro.times import millis_text

# The event of a record that is not an event.
PLAIN = "message"
FIXED = ("time", "level", "logger", "event", "message")
# Kafka's client logs through it, and is a library all the same.
_CLIENT = "refold.streams.log.kafka.clients"
# Faust logs its start, its stop and its crash at length; refold itself logs what matters.
_LIBRARIES = ("faust", "mode", "aiokafka", "asyncio")
_PLAIN = re.compile(r"[^\s\"=]+")

_log = logging.getLogger(__name__)


@contextmanager
def logged_to_stderr(level: str, form: str) -> Iterator[None]:
    """Write what refold logs to standard error while the block runs; afterwards logging is as it was.

    Args:
        level: debug, info, warning or error: the least severe level that is written.
        form: text or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    # A root logger without any handler would have Python write warnings of libraries to standard error.
    of_libraries: logging.Handler = handler if level == "debug" else logging.NullHandler()
    root, log, client = logging.getLogger(), logging.getLogger("refold"), logging.getLogger(_CLIENT)
    muted = [] if level == "debug" else [client, *map(logging.getLogger, _LIBRARIES)]
    before = [(each, each.level, each.propagate) for each in (root, log, *muted)]
    hook = threading.excepthook
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False
    root.addHandler(of_libraries)
    if level == "debug":
        root.setLevel(logging.INFO)
    for each in muted:
        each.setLevel(logging.CRITICAL + 1)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_failure
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        log.removeHandler(handler)
        root.removeHandler(of_libraries)
        for each, had_level, propagated in before:
            each.setLevel(had_level)
            each.propagate = propagated


def _log_thread_failure(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit and failed.exc_value is not None:
        name = failed.thread.name if failed.thread else "a thread"
        info = (failed.exc_type, failed.exc_value, failed.exc_traceback)
        _log.error("the thread %s failed: %s", name, failed.exc_value, exc_info=info)


class TextLines(logging.Formatter):
    """Time, level, event and key=value; a value with spaces, quotes or equals signs is quoted as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback would make more of them, and is a field."""
        event, fields = _event(record)
        if event == PLAIN:
            fields = {"logger": record.name, "message": record.getMessage(), **fields}
        given = [f"{name}={_shown(value)}" for name, value in fields.items()]
        return " ".join([_time(record), record.levelname, event, *given])


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        event, fields = _event(record)
        fixed = (_time(record), record.levelname.lower(), record.name, event, record.getMessage())
        line = {**fields, **dict(zip(FIXED, fixed, strict=True))}
        line = {name: line[name] for name in (*FIXED, *fields)}
        return json.dumps(line, ensure_ascii=False, default=str)


def _event(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    event, fields = getattr(record, "event", PLAIN), dict(getattr(record, "fields", {}))
    if record.exc_info:
        fields["traceback"] = logging.Formatter().formatException(record.exc_info)
    return str(event), fields


def _time(record: logging.LogRecord) -> str:
    return millis_text(int(record.created * 1000))


def _shown(value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str, separators=(",", ":"))
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
