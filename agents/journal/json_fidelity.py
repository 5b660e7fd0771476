"""Preserve what JSON in a log loses: floats with an integral value, and the order of an object's keys.

In a log 50.0 is 50, and keys are sorted (avro/canonical.py), which is right for facts. A replayed agent must get
exactly what it got before: its code may print the number, or put the object's JSON into a prompt. So in a journal

    50.0                 is written as {"refold.float": 50}
    {"b": 1, "a": 2}     as {"refold.object": {"a": 2, "b": 1}, "refold.keys": [1, 0]}: positions among the sorted keys
    a value that looks like one of these as {"refold.object": value}

Law: read(written(tree)) equals the tree, including the type of each number and the order of all keys.
"""

from __future__ import annotations

from refold.agents.journal.record import Plain

_FLOAT, _OBJECT, _KEYS = "refold.float", "refold.object", "refold.keys"
_MARKS = ({_FLOAT}, {_OBJECT}, {_OBJECT, _KEYS})


def written(tree: Plain) -> Plain:
    """Return the tree as a journal stores it. Parts that need not change are shared with `tree`."""
    if type(tree) is float:
        return {_FLOAT: "-0" if str(tree) == "-0.0" else int(tree)} if tree.is_integer() else tree
    if isinstance(tree, dict):
        inner = {key: written(value) for key, value in tree.items()}
        keys = list(tree)
        in_order = sorted(keys)
        if keys != in_order:
            place = {key: at for at, key in enumerate(in_order)}
            return {_OBJECT: inner, _KEYS: [place[key] for key in keys]}
        return {_OBJECT: inner} if tree.keys() in _MARKS else inner
    # The tree of a step (record.to_tree) has tuples instead of lists.
    return [written(each) for each in tree] if isinstance(tree, list | tuple) else tree


def read(tree: Plain) -> Plain:
    """Return the tree that `written` stored."""
    if isinstance(tree, dict):
        if tree.keys() == {_FLOAT}:
            return float(tree[_FLOAT])
        if tree.keys() == {_OBJECT}:
            return {key: read(value) for key, value in tree[_OBJECT].items()}
        if tree.keys() == {_OBJECT, _KEYS}:
            inner, in_order = tree[_OBJECT], sorted(tree[_OBJECT])
            return {key: read(inner[key]) for key in (in_order[at] for at in tree[_KEYS])}
        return {key: read(value) for key, value in tree.items()}
    return [read(each) for each in tree] if isinstance(tree, list) else tree
