"""An answer of bounded size: a JSON tree whose long parts are shortened, with a cursor to continue each of them.

1. Space is divided from the outside in. In an object, small members are kept whole and the large ones share the rest.
In
   a list, elements follow one another until the space is used, each shortened to its share of it.
2. A shortened text ends with `…`; a shortened list or object has fewer elements. Each is listed in `more`.
3. A cursor is POINTER@OFFSET: the position of the part in the whole answer (JSON Pointer, RFC 6901), and how many of
its
   characters, elements or members were returned. It holds no state: the same question at the same cut has the same
   tree.

`answer` makes the text that a tool returns: the bounded answer in JSON, with the arguments at the exact cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.mcp.tools import CURSOR, HistoryTool
from refold.streams.cut import PREFIX

ELEMENTS_SHARING = 24
"""A list shows about this many elements before it shortens its elements less."""
SHARE_MIN_CHARS = 160


class Remainder(NamedTuple):
    """The rest of a shortened part.

    Attributes:
        cursor: The cursor that continues it.
        left: How much is left, as text.
    """

    cursor: str
    left: str


class AnswerPart(NamedTuple):
    """A part of an answer.

    Attributes:
        pointer: The JSON Pointer of the part.
        offset: How many characters, elements or members to skip.
    """

    pointer: str = ""
    offset: int = 0

    @property
    def cursor(self) -> str:
        """The cursor as text."""
        return f"{self.pointer}@{self.offset}"


def part_at(cursor: str) -> AnswerPart:
    """Return the part that a cursor names.

    Raises:
        InputError: The text is not a cursor.
    """
    pointer, at, offset = cursor.rpartition("@")
    is_number = offset.isascii() and offset.isdigit() and len(offset) < 16
    if not at or not is_number or (pointer and not pointer.startswith("/")):
        raise InputError(f"cursor {cursor!r:.80}: give one from `more` of an answer")
    return AnswerPart(pointer, int(offset))


def bounded(tree: Any, chars: int, part: AnswerPart | None = None) -> tuple[Any, list[Remainder]]:
    """Shorten a tree, or the rest of a part of it, to about `chars` characters of JSON.

    Returns:
        The shortened tree, and a cursor for each part that was shortened.

    Raises:
        InputError: The tree has no such part.
    """
    part = part or AnswerPart()
    found = _subtree(tree, part)
    if part.offset and not isinstance(found, str | list | dict):
        raise _no_part(part)
    fitting = _Fitting()
    shown = fitting.fit(found, chars, part.pointer, part.offset)
    return shown, fitting.rests


def size_of(tree: Any) -> int:
    """Return the number of characters of a tree's JSON."""
    return len(json.dumps(tree, ensure_ascii=False))


def _subtree(tree: Any, part: AnswerPart) -> Any:
    for step in part.pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            tree = tree[int(name)] if isinstance(tree, list) else tree[name]
        except (KeyError, IndexError, ValueError, TypeError):
            raise _no_part(part) from None
    return tree


def _no_part(part: AnswerPart) -> InputError:
    return InputError(f"cursor {part.cursor!r:.80}: the answer has no such part; give it with the arguments in `again`")


@dataclass(slots=True)
class _Fitting:
    rests: list[Remainder] = field(default_factory=list)

    def fit(self, tree: Any, chars: int, pointer: str, offset: int = 0) -> Any:
        if isinstance(tree, str):
            return self._text(tree, chars, AnswerPart(pointer, offset))
        if isinstance(tree, list):
            return self._list(tree, chars, AnswerPart(pointer, offset))
        if isinstance(tree, dict):
            return self._object(tree, chars, AnswerPart(pointer, offset))
        return tree

    def _text(self, text: str, chars: int, part: AnswerPart) -> str:
        end = part.offset + max(chars - 3, 1)
        if size_of(text[part.offset :]) <= chars or end >= len(text):
            return text[part.offset :]
        # Escapes make the JSON longer than the text.
        while size_of(text[part.offset : end]) > chars and end - part.offset > 1:
            end = part.offset + (end - part.offset) // 2
        self._leave(part, end, len(text), "characters")
        return text[part.offset : end] + "…"

    def _list(self, given: list[Any], chars: int, part: AnswerPart) -> list[Any]:
        wanted = given[part.offset :]
        if size_of(wanted) <= chars:
            return wanted
        share = max(chars // max(min(len(wanted), ELEMENTS_SHARING), 1), SHARE_MIN_CHARS)
        shown: list[Any] = []
        left = chars - 2
        for number, each in enumerate(wanted, part.offset):
            before = len(self.rests)
            fitted = self.fit(each, share, f"{part.pointer}/{number}")
            left -= size_of(fitted) + 2
            if left < 0 and shown:
                del self.rests[before:]
                self._leave(part, number, len(given), "elements")
                break
            shown.append(fitted)
        return shown

    def _object(self, given: dict[str, Any], chars: int, part: AnswerPart) -> dict[str, Any]:
        members = list(given.items())[part.offset :]
        sizes = {name: len(name) + 6 + size_of(value) for name, value in members}
        if sum(sizes.values()) + 2 <= chars:
            return dict(members)
        kept = members
        if len(members) * SHARE_MIN_CHARS > chars:
            kept, left = [], chars
            for name, value in members:
                left -= min(sizes[name], SHARE_MIN_CHARS)
                if left < 0 and kept:
                    self._leave(part, part.offset + len(kept), len(given), "members")
                    break
                kept.append((name, value))
        spaces = _shares({name: sizes[name] for name, _ in kept}, chars)
        return {
            name: value if sizes[name] <= spaces[name]
            else self.fit(value, max(spaces[name] - len(name) - 6, 16), f"{part.pointer}/{_escape(name)}")
            for name, value in kept
        }  # fmt: skip

    def _leave(self, part: AnswerPart, shown: int, total: int, what: str) -> None:
        self.rests.append(Remainder(part._replace(offset=shown).cursor, f"{total - shown} of {total} {what}"))


def _shares(sizes: dict[str, int], chars: int) -> dict[str, int]:
    """Divide the space: small members get what they need, the others share the rest equally."""
    left, found = chars, {}
    for number, (name, size) in enumerate(sorted(sizes.items(), key=lambda each: each[1])):
        found[name] = min(size, left // (len(sizes) - number))
        left -= found[name]
    return found


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


ANSWER_CHARS_MAX = 20_000
"""About 5,000 tokens."""
SPACE_MIN_CHARS = 64
POINTS = ("at", "a", "b")


def answer(log: AgentLog, tool: HistoryTool, given: Mapping[str, Any], chars: int = ANSWER_CHARS_MAX) -> str:
    """Return the text of a tool's answer: JSON with `again`, `answer`, and `more` if it was shortened.

    Args:
        log: The log to ask.
        tool: The tool.
        given: The tool's arguments, and a cursor to continue an answer.
        chars: The maximum number of characters.

    Raises:
        RefoldError: The question has no answer.
    """
    arguments = tool.checked(given)
    cursor = arguments.pop(CURSOR, None)
    part = None if cursor is None else part_at(cursor)
    again = tool.pin(log, arguments)
    if part is not None and any(again[name] != arguments.get(name) for name in POINTS if _is_cut(again.get(name))):
        raise InputError("cursor: give it with the arguments in `again` of its answer, including the cuts")
    return fitted({"again": again}, tool.make(again).answer(log), chars, part)


def _is_cut(given: Any) -> bool:
    return isinstance(given, str) and given.startswith(PREFIX)


def fitted(head: Mapping[str, Any], tree: Any, chars: int, part: AnswerPart | None = None) -> str:
    """Return an answer's JSON, shortened to at most `chars` characters."""
    space = chars
    while True:
        shown, rests = bounded(tree, space, part)
        more = {"more": [each._asdict() for each in rests]} if rests else {}
        text = compact({**head, "answer": shown, **more})
        if len(text) <= chars or space < SPACE_MIN_CHARS:
            return text
        space = min(space * chars // len(text), space * 7 // 8)


def compact(tree: Any) -> str:
    """Return JSON on one line. It is ASCII if a recorded text has a lone surrogate, which UTF-8 cannot encode."""
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(tree, separators=(",", ":"))
    return text
