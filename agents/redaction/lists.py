"""Secrets whose name is in another item of a list, or another member of an object.

["--password", "x"]    [["authorization", "x"], ["accept", "y"]]    {"name": "DB_PASSWORD", "value": "x"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refold.agents.redaction.commands import hidden_words
from refold.agents.redaction.names import Names

_SEQUENCES = (list, tuple)
_NAMES_OF_A_VALUE = (("value", ("name", "key")), ("Value", ("Name", "Key")))


def secret_items(items: Sequence[Any], names: Names) -> dict[int, int]:
    """Of a list, the items that are secrets: their numbers, and from which character on."""
    return hidden_words(items, names) if len(items) > 1 else {}


def are_pairs(items: Sequence[Any]) -> bool:
    """Whether a list is of names and values, as headers are: two items each, of which the first is a text."""
    return bool(items) and all(type(each) in _SEQUENCES and len(each) == 2 and type(each[0]) is str for each in items)


def secret_member(members: Mapping[str, Any], names: Names) -> str:
    """Which member of an object is the secret that another one names; empty where none is."""
    for value, keys in _NAMES_OF_A_VALUE:
        if value in members:
            for key in keys:
                name = members.get(key)
                if type(name) is str and len(name) < 100 and names.is_secret(name):
                    return value
    return ""
