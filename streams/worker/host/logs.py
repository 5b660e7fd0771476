"""A worker's log on standard error: one line a record, as text or as JSON.

    2026-11-25T00:43:18.123Z WARNING broker_lost servers=127.0.0.1:9092 why="no broker answers"
    {"time": "2026-11-25T00:43:18.123Z", "level": "warning", "event": "broker_lost", "servers": "127.0.0.1:9092", ...}

A record that is no event (streams/events.py) is shown as the event `message`, with its logger and text. A field
of an event is never called time, level or event.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refold.avro.times import millis_text

# What Kafka's client says about each connection. What follows from it for the worker is an event.
_CLIENT = "refold.streams.log.kafka.clients"
_PLAIN = re.compile(r"[^\s\"=]+")


@contextmanager
def logged_to_stderr(level: str, form: str) -> Iterator[None]:
    """Write what refold logs to standard error while the block runs; afterwards logging is as it was.

    Args:
        level: debug, info, warning or error: the least severe level that is written.
        form: text or json.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    log, client = logging.getLogger("refold"), logging.getLogger(_CLIENT)
    before = (log.level, log.propagate, client.level)
    log.addHandler(handler)
    log.setLevel(level.upper())
    log.propagate = False
    if level != "debug":
        client.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = before[1]
        log.setLevel(before[0])
        client.setLevel(before[2])


class TextLines(logging.Formatter):
    """Time, level, event and key=value; a value with spaces, quotes or equals signs is quoted as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """One line; a traceback would make more of them, and is a field."""
        event, fields = _event(record)
        given = [f"{name}={_shown(value)}" for name, value in fields.items()]
        return " ".join([_time(record), record.levelname, event, *given])


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        event, fields = _event(record)
        line = {"time": _time(record), "level": record.levelname.lower(), "event": event, **fields}
        return json.dumps(line, ensure_ascii=False, default=str)


def _event(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    event, fields = getattr(record, "event", None), dict(getattr(record, "fields", {}))
    if event is None:
        event, fields = "message", {"logger": record.name, "text": record.getMessage()}
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
