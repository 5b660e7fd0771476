"""JSON that is read in a diff: one member a line, keys in the order that the run had, no line without end.

What fits in a line stands in one. A text that is long, or has lines of its own, stands as {"$text": [its pieces]}: they
are put together as they are. An object that looks like that stands as {"$object": it}. Law: parsed(pretty(tree)) is
the tree again, to the type of each number.
"""

from __future__ import annotations

import json
import re

from refold.agents.journal.record import Plain
from refold.avro import strict_json

_WIDTH = 100
_PIECE_MAX = 80
_TEXT, _OBJECT = "$text", "$object"
_MARKS = ({_TEXT}, {_OBJECT})
_PIECES = re.compile(rf".{{1,{_PIECE_MAX}}}(?:\s|$)|.{{1,{_PIECE_MAX}}}", re.DOTALL)


def pretty(tree: Plain) -> str:
    """The text of a JSON tree, ending with a line break. Keys stand in the order of the tree."""
    return _written(_split(tree), "", 0) + "\n"


def parsed(text: str) -> Plain:
    """The tree behind the text. ValueError where it is no JSON, or none that can be used."""
    return _joined(strict_json.loads(text))


def compact(tree: Plain) -> str:
    """The one text of a tree: keys sorted, no white space."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _written(tree: Plain, indent: str, taken: int) -> str:
    line = json.dumps(tree, ensure_ascii=False, allow_nan=False)
    if not isinstance(tree, (dict, list)) or not tree:
        return line
    if len(line) + taken < _WIDTH and f'"{_TEXT}"' not in line:
        return line
    if isinstance(tree, dict):
        if tree.keys() == {_TEXT} and isinstance(tree[_TEXT], list):  # each of its pieces on a line
            opening, closing, tree = f'{{"{_TEXT}": [', "]}", tree[_TEXT]
        else:
            opening, closing = "{", "}"
    else:
        opening, closing = "[", "]"
    inner = indent + "  "
    heads = [f"{json.dumps(key, ensure_ascii=False)}: " for key in tree] if isinstance(tree, dict) else [""] * len(tree)
    members = tree.values() if isinstance(tree, dict) else tree
    lines = [
        f"{inner}{head}{_written(each, inner, len(inner) + len(head))}"
        for head, each in zip(heads, members, strict=True)
    ]
    return f"{opening}\n" + ",\n".join(lines) + f"\n{indent}{closing}"


def _split(tree: Plain) -> Plain:
    if isinstance(tree, str):
        return {_TEXT: _pieces(tree)} if len(tree) > _PIECE_MAX or "\n" in tree[:-1] else tree
    if isinstance(tree, dict):
        inner = {key: _split(value) for key, value in tree.items()}
        return {_OBJECT: inner} if tree.keys() in _MARKS else inner
    return [_split(each) for each in tree] if isinstance(tree, list) else tree


def _pieces(text: str) -> list[str]:
    """Its lines, and of long lines pieces that end between words."""
    return [piece for line in text.splitlines(keepends=True) for piece in _PIECES.findall(line)]


def _joined(tree: Plain) -> Plain:
    if isinstance(tree, dict):
        if tree.keys() == {_TEXT} and isinstance(tree[_TEXT], list):
            if not all(isinstance(piece, str) for piece in tree[_TEXT]):
                raise ValueError(f"a {_TEXT} is a list of texts")
            return "".join(tree[_TEXT])
        if tree.keys() == {_OBJECT} and isinstance(tree[_OBJECT], dict):
            return {key: _joined(value) for key, value in tree[_OBJECT].items()}
        return {key: _joined(value) for key, value in tree.items()}
    return [_joined(each) for each in tree] if isinstance(tree, list) else tree
