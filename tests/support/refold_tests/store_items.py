"""Items that a LangGraph store returned, in a form for comparisons."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def named(found: Iterable[Any]) -> list[tuple[tuple[str, ...], str]]:
    """Return the namespace and key of each item, in order."""
    return sorted((each.namespace, each.key) for each in found)


def keys(found: Iterable[Any]) -> list[str]:
    """Return the keys of items, in the order of their namespaces."""
    return [key for _, key in named(found)]


def value_of(item: Any) -> Any:
    """Return an item's value; None if there is no item."""
    return None if item is None else item.value
