"""Edits of a state, redacted: what stands at the path of a secret's name is one, and no name stands beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from refold.agents.journal.record import Edit, Plain


def redacted_edits(edits: Sequence[Edit], redact: Callable[[Plain], Plain]) -> list[Edit]:
    """The edits (journal/delta.py) as they may be written."""
    return [_redacted(each, redact) for each in edits]


def _redacted(edit: Edit, redact: Callable[[Plain], Plain]) -> Edit:
    kind, path, *rest = edit
    value = rest[-1] if rest else None
    tree: Plain = value
    for key in reversed(path):
        tree = {key: tree} if isinstance(key, str) else [tree]
    found = redact(tree)
    keys: list[str | int] = []
    for key in path:
        if isinstance(key, str):
            (name, found), *_ = found.items()
            keys.append(name)
        else:
            (found,) = found
            keys.append(key)
    return [kind, keys, *rest[:-1], found] if rest else [kind, keys]
