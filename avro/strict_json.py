"""Parses untrusted JSON, with limits on depth and number of values.

1. Values are counted in the text before any object is created: a value takes 50 bytes of memory or more, but only two
   bytes of text.
2. The text is decoded. NaN, Infinity and integers of more than 4,300 digits are refused, as are texts with lone
   surrogates: none of these can be stored or hashed.
3. The depth is measured. Code that walks a tree recurses, so the limit is far below Python's recursion limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from refold.avro.errors import InputError

DEPTH_MAX = 100
ITEMS_MAX = 1_000_000

_SIGNS = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[{,]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class JsonRefused(ValueError):
    """Text that is JSON, but contains a value that is not allowed."""


class TooDeep(JsonRefused):
    """Nested deeper than the limit."""


class TooMany(JsonRefused):
    """More values than the limit."""


def loads(
    text: str,
    *,
    depth_max: int = DEPTH_MAX,
    items_max: int = ITEMS_MAX,
    pairs_hook: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The JSON value in a text.

    Args:
        text: The text.
        depth_max: How deep it may be nested.
        items_max: How many values it may have.
        pairs_hook: As object_pairs_hook of the json module.

    Raises:
        json.JSONDecodeError: It is not JSON.
        JsonRefused: It holds a value that is not allowed, or is above a limit.
    """
    openings = text.count("[") + text.count("{")
    if openings + text.count(",") >= items_max and _has_more(text, items_max):
        raise TooMany(f"it holds more than {items_max:,} values")
    try:
        tree = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=pairs_hook)
    except RecursionError:
        raise TooDeep(f"it is nested deeper than {depth_max} levels") from None
    except (json.JSONDecodeError, JsonRefused):
        raise
    except ValueError as error:
        if "digits" in str(error):
            raise JsonRefused("it holds an integer of more than 4,300 digits") from None
        raise JsonRefused(str(error)) from None
    if openings > depth_max and _is_deeper(tree, depth_max):
        raise TooDeep(f"it is nested deeper than {depth_max} levels")
    if _SURROGATE.search(text):
        _refuse_surrogates(tree)
    return tree


def json_or_text(text: str) -> Any:
    """Return the JSON value in `text`, or the text itself if it is not JSON. So 50 is a number and "50" a text.

    Raises:
        InputError: It is JSON that is not allowed.
    """
    try:
        return loads(text)
    except json.JSONDecodeError:
        return text
    except JsonRefused as error:
        raise InputError(f"the value {text!r:.120} cannot be used: {error}; put text in double quotes") from None


def _has_more(text: str, items_max: int) -> bool:
    """Whether it has more values. Counted: each opening bracket and comma outside of texts, plus one."""
    count = 1
    for found in _SIGNS.finditer(text):
        if found[0][0] != '"':
            count += 1
            if count > items_max:
                return True
    return False


def _is_deeper(tree: Any, depth_max: int) -> bool:
    level = [tree] if isinstance(tree, (list, dict)) else []
    for _ in range(depth_max):
        level = [
            inner
            for each in level
            for inner in (each if isinstance(each, list) else each.values())
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return False
    return True


def _refuse_constant(name: str) -> NoReturn:
    raise JsonRefused(f"{name} is not a JSON number")


def _refuse_surrogates(tree: Any) -> None:
    try:
        json.dumps(tree, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise JsonRefused("a string must be Unicode text without lone surrogates") from None
