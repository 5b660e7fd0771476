"""The text that a tool answers with: the question's JSON, bounded, with its arguments at the cut."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.mcp.bounded import AnswerPart, bounded, part_at
from refold.explorer.mcp.tools import CURSOR, HistoryTool
from refold.streams.cut import PREFIX

ANSWER_CHARS_MAX = 20_000
"""About 5,000 tokens."""
SPACE_MIN_CHARS = 64
POINTS = ("at", "a", "b")


def answer(log: AgentLog, tool: HistoryTool, given: Mapping[str, Any], chars: int = ANSWER_CHARS_MAX) -> str:
    """What a tool says: JSON of `again`, `answer`, and `more` where it is cut short. At most `chars` characters.

    Raises:
        RefoldError: The question has no answer.
    """
    asked = tool.checked(given)
    cursor = asked.pop(CURSOR, None)
    part = None if cursor is None else part_at(cursor)
    again = tool.pin(log, asked)
    if part is not None and any(again[name] != asked.get(name) for name in POINTS if _is_cut(again.get(name))):
        raise InputError("cursor: give it with the arguments in `again` of its answer, including the cuts")
    return fitted({"again": again}, tool.make(again).answer(log), chars, part)


def _is_cut(given: Any) -> bool:
    return isinstance(given, str) and given.startswith(PREFIX)


def fitted(head: Mapping[str, Any], tree: Any, chars: int, part: AnswerPart | None = None) -> str:
    """An answer's JSON, in at most `chars` characters."""
    space = chars
    while True:
        shown, rests = bounded(tree, space, part)
        more = {"more": [each._asdict() for each in rests]} if rests else {}
        text = compact({**head, "answer": shown, **more})
        if len(text) <= chars or space < SPACE_MIN_CHARS:
            return text
        space = min(space * chars // len(text), space * 7 // 8)


def compact(tree: Any) -> str:
    """JSON in one line; in ASCII where a recorded text holds half of a UTF-16 pair, which UTF-8 cannot carry."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(tree, separators=(",", ":"))
    return text
