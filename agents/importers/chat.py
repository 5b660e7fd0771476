"""Conversations in the OpenAI style, one a line: a list of messages, or an object with `messages`.

Of an object, `model` and `agent` name themselves; `created`, `created_at` or `timestamp` (also inside
`metadata`) is when it began. Its other members, `id` among them, stand in the run's `metadata`. Tool calls
are taken from `tool_calls` and from `function_call`. Documents follow the general rule (see documents), for
nothing is known of the tools; nor whether they write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from refold.agents.importers.messages import TIME_KEYS, parse_messages
from refold.agents.importers.model import Conversation, run_of
from refold.agents.importers.reading import DEFAULT, Limits, Line, Progress, json_lines
from refold.agents.importers.times import own_time
from refold.avro.errors import InputError
from refold.avro.observation import Value

FORMAT = "chat"
DEFAULT_START = 946_684_800_000_000  # 2000-01-01T00:00:00Z: early enough never to pass for a real time


def conversations(
    path: str | Path, progress: Progress | None = None, limits: Limits = DEFAULT
) -> Iterator[Conversation]:
    """Each line's conversation. InputError names file and line; the lines before it have been given."""
    for line in json_lines(path, progress, limits):
        yield conversation_of(line)


def conversation_of(line: Line) -> Conversation:
    """The conversation in one line; raises InputError where it has another shape."""
    given: Mapping[str, Value]
    if isinstance(line.value, Mapping):
        given = line.value
        if "messages" not in given:
            raise InputError(f"{line.place}: the object has no member messages: is it another format?")
    else:
        given = {"messages": line.value}
    messages = parse_messages(given["messages"], line.place)
    taken = {"messages", *(key for key in ("agent", "model") if isinstance(given.get(key), str))}
    asked = next((message.content for message in messages if message.role == "user"), None)
    return Conversation(
        run=run_of(given["messages"]),
        messages=messages,
        agent=_text(given, "agent") or FORMAT,
        imported_from=FORMAT,
        default_start=DEFAULT_START,
        start=_start(given),
        model=_text(given, "model"),
        input=asked,
        metadata={key: value for key, value in given.items() if key not in taken},
    )


def _start(given: Mapping[str, Value]) -> int | None:
    inner = given.get("metadata")
    for place in (given, inner if isinstance(inner, Mapping) else {}):
        for key in TIME_KEYS:
            time = own_time(place.get(key))
            if time is not None:
                return time
    return None


def _text(given: Mapping[str, Value], key: str) -> str:
    value = given.get(key)
    return value if isinstance(value, str) else ""
