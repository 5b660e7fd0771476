"""Redact the pieces of a stream as one text, because a secret may be split over two pieces.

1. The strings at one path of the pieces are one text: the pieces themselves if they are strings, or, for example,
   choices[0].delta.content of each.
2. If lines of that text are JSON, or events that carry JSON, the strings at one path of those are one text too.
3. Each text is redacted, and split again at the same places. A split within a secret moves after its token. So there
   are as many pieces as before; some of them may be empty.
4. This repeats until nothing changes, so that a replay, which receives the redacted pieces, gets the same result.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

from refold.agents.journal.record import Plain
from refold.agents.redaction.tokens import token_spans

ROUNDS_MAX = 4
# Limits how deep texts of events are nested in the strings of other events.
_DEPTH_MAX = 3
_EVENT = "data:"

Texts: TypeAlias = Callable[[list[str]], list[str]]
"""Redacts some texts."""

_Path: TypeAlias = tuple[str | int, ...]


class _Part(NamedTuple):
    """A string in a piece: the number of the piece, and the path in it."""

    piece: int
    path: _Path
    text: str


def pieces_redacted(pieces: Sequence[Plain], redact: Texts) -> list[Plain]:
    """Return the pieces without their secrets, including secrets that are split over several pieces.

    Args:
        pieces: The pieces of one stream, JSON trees.
        redact: Redacts a list of texts.

    Returns:
        As many pieces as were given.
    """
    found = [*pieces]
    for _ in range(ROUNDS_MAX):
        before, found = found, _redact_pieces(found, redact, _DEPTH_MAX)
        if found == before:
            break
    return found


def recut(pieces: Sequence[str], new: str) -> list[str]:
    """Split a redacted text at the places at which the original was split.

    Args:
        pieces: The pieces of the original text.
        new: The redacted text.

    Returns:
        As many pieces as were given; joined, they are `new`.
    """
    old = "".join(pieces)
    if new == old:
        return [*pieces]
    cuts = [0, *_moved_splits(old, new, [*accumulate(map(len, pieces))][:-1]), len(new)]
    return [new[start:end] for start, end in pairwise(cuts)]


def _redact_pieces(pieces: list[Plain], redact: Texts, depth: int) -> list[Plain]:
    places: defaultdict[_Path, list[_Part]] = defaultdict(list)
    for number, piece in enumerate(pieces):
        for path, text in _strings(piece, ()):
            places[path].append(_Part(number, path, text))
    groups = [each for each in places.values() if len(each) > 1]
    if not groups:
        return pieces
    texts = ["".join(part.text for part in each) for each in groups]
    if depth:
        texts = [_redact_lines(each, redact, depth - 1) for each in texts]
    changed: defaultdict[int, dict[_Path, str]] = defaultdict(dict)
    for group, new in zip(groups, redact(texts), strict=True):
        for part, text in zip(group, recut([each.text for each in group], new), strict=True):
            if text != part.text:
                changed[part.piece][part.path] = text
    return [
        _replace_at(piece, (), changed[number]) if number in changed else piece for number, piece in enumerate(pieces)
    ]


def _redact_lines(text: str, redact: Texts, depth: int) -> str:
    """Return the text with those lines redacted that are JSON, or events that carry JSON."""
    lines = text.split("\n")
    trees = {number: tree for number, line in enumerate(lines) if (tree := _json_of(line)) is not None}
    if len(trees) < 2:
        return text
    new = _redact_pieces([*trees.values()], redact, depth)
    for (number, tree), found in zip(trees.items(), new, strict=True):
        if found is not tree:
            lines[number] = _with_json(lines[number], found)
    return "\n".join(lines)


def _json_of(line: str) -> Any:
    """Return the JSON object or list of a line; None if it has none."""
    body = line.removeprefix(_EVENT).strip()
    if not body.startswith(("{", "[")):
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _with_json(line: str, tree: Plain) -> str:
    """Return the line with its JSON replaced."""
    body = line.removeprefix(_EVENT).strip()
    start = line.index(body)
    return line[:start] + json.dumps(tree, ensure_ascii=False) + line[start + len(body) :]


def _strings(tree: Plain, path: _Path) -> Iterator[tuple[_Path, str]]:
    if isinstance(tree, str):
        yield path, tree
    elif isinstance(tree, dict):
        for name, each in tree.items():
            yield from _strings(each, (*path, name))
    elif isinstance(tree, list):
        for number, each in enumerate(tree):
            yield from _strings(each, (*path, number))


def _replace_at(tree: Plain, path: _Path, changed: Mapping[_Path, str]) -> Plain:
    if isinstance(tree, str):
        return changed.get(path, tree)
    if isinstance(tree, dict):
        return {name: _replace_at(each, (*path, name), changed) for name, each in tree.items()}
    if isinstance(tree, list):
        return [_replace_at(each, (*path, number), changed) for number, each in enumerate(tree)]
    return tree


def _moved_splits(old: str, new: str, cuts: Sequence[int]) -> list[int]:
    """Return the positions of the splits in the new text, in order."""
    before, after = old.split("\n"), new.split("\n")
    if len(before) != len(after):
        before, after = [old], [new]
    found: list[int] = []
    line = start = new_start = 0
    place = _position_map(before[0], after[0])
    for cut in cuts:
        while cut > start + len(before[line]):
            start, new_start, line = start + len(before[line]) + 1, new_start + len(after[line]) + 1, line + 1
            place = _position_map(before[line], after[line])
        found.append(new_start + place(cut - start))
    return [*accumulate(found, max)]


def _position_map(old: str, new: str) -> Callable[[int], int]:
    """Return a function from a position in the old text to one in the new, which has tokens instead of secrets."""
    if old == new:
        return lambda cut: cut
    spans = token_spans(new)
    starts, ends = [0, *(end for _, end in spans)], [*(start for start, _ in spans), len(new)]
    places: list[int] = []  # where the new text's parts between tokens end in the old text
    moved: list[tuple[int, int]] = []  # where they begin in both texts
    at = 0
    for start, end in zip(starts, ends, strict=True):
        kept = new[start:end]
        found = len(old) - len(kept) if end == len(new) and old.endswith(kept) else old.find(kept, at)
        if found < at:
            return _near(old, new, spans)
        at = found + len(kept)
        places.append(at)
        moved.append((found, start))

    def place(cut: int) -> int:
        found, start = moved[min(bisect_left(places, cut), len(moved) - 1)]
        return start + max(0, cut - found)

    return place


def _near(old: str, new: str, spans: Sequence[tuple[int, int]]) -> Callable[[int], int]:
    """As `_position_map`, for a new text that differs elsewhere: by common prefix and suffix, in proportion between."""
    head = _common(old, new)
    tail = min(_common(old[::-1], new[::-1]), len(old) - head, len(new) - head)

    def place(cut: int) -> int:
        if cut <= head:
            found = cut
        elif cut >= len(old) - tail:
            found = len(new) - (len(old) - cut)
        else:
            found = head + (cut - head) * (len(new) - tail - head) // (len(old) - tail - head)
        number = bisect_left(spans, (found, 0)) - 1
        return max(found, spans[number][1]) if number >= 0 else found

    return place


def _common(one: str, other: str) -> int:
    """Return the length of the common prefix of two texts."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
