"""Match items and namespaces of a LangGraph store with filters, conditions and the words of a query."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from langgraph.store.base import MatchCondition

from refold.avro.errors import InputError

_WORD = re.compile(r"\w+")


def matches(value: Any, wanted: Any) -> bool:
    """Whether a value matches a filter's value.

    An object with operators applies each of them. Any other object must match the value's members of the same names,
    and a list all elements in order.

    Args:
        value: The value, or None if the item has no such member.
        wanted: The filter's value.

    Raises:
        InputError: An operator is unknown.
    """
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_satisfies(value, name, bound) for name, bound in wanted.items())
        return isinstance(value, Mapping) and all(matches(value.get(name), each) for name, each in wanted.items())
    if isinstance(wanted, (list, tuple)):
        is_list = isinstance(value, (list, tuple)) and len(value) == len(wanted)
        return is_list and all(matches(one, other) for one, other in zip(value, wanted, strict=True))
    return bool(value == wanted)


def _satisfies(value: Any, operator: str, bound: Any) -> bool:
    if operator == "$eq":
        return bool(value == bound)
    if operator == "$ne":
        return bool(value != bound)
    order = _order(value, bound)
    if operator == "$gt":
        return order is not None and order > 0
    if operator == "$gte":
        return order is not None and order >= 0
    if operator == "$lt":
        return order is not None and order < 0
    if operator == "$lte":
        return order is not None and order <= 0
    raise InputError(f"filter operator {operator!r}: one of $eq, $ne, $gt, $gte, $lt, $lte")


def _order(value: Any, bound: Any) -> int | None:
    """Compare two values: as numbers, also if given as text, else as texts. None if they have no order."""
    try:
        pair: tuple[Any, Any] = (float(value), float(bound))
    except (TypeError, ValueError, OverflowError):
        if not (isinstance(value, str) and isinstance(bound, str)):
            return None
        pair = (value, bound)
    return int(pair[0] > pair[1]) - int(pair[0] < pair[1])


def words(text: str) -> frozenset[str]:
    """Return a text's words, without regard to case."""
    return frozenset(_WORD.findall(text.casefold()))


def share_found(wanted: frozenset[str], value: Any) -> float:
    """Return the share of words that a value's texts and numbers contain, from 0 to 1. `wanted` must not be empty."""
    found = {word for text in _texts(value) for word in words(text)}
    return len(wanted & found) / len(wanted)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def is_under(namespace: Sequence[str], conditions: Iterable[MatchCondition]) -> bool:
    """Whether a namespace matches every condition; `*` in a condition matches any label.

    Raises:
        InputError: A condition is neither of a prefix nor of a suffix.
    """
    return all(_is_matched(namespace, each) for each in conditions)


def _is_matched(namespace: Sequence[str], condition: MatchCondition) -> bool:
    path = condition.path
    if condition.match_type not in ("prefix", "suffix"):
        raise InputError(f"match type {condition.match_type!r}: prefix or suffix")
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
