"""Values as `refold state` shows them: plain, short JSON that is never used to restore the graph."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from refold.agents.journal.record import Plain
from refold.avro.canonical import JsonText, json_text

TEXT_MAX = 300
ITEMS_MAX = 6
DEPTH_MAX = 5
BYTES_MAX = 4096
_INT_MAX = 2**53
# The fields of a message that are shown, in this order.
_MESSAGE_FIELDS = ("type", "content", "name", "tool_calls", "tool_call_id", "status", "id")


def readable(value: Any) -> Plain:
    """Return a value as short JSON. A longer one than BYTES_MAX is cut to the beginning of texts and the end of lists.

    It never raises: a value that cannot be shown is replaced by the name of its class.
    """
    return _readable(value)[0]


def readable_json(value: Any) -> JsonText | None:
    """As `readable`, as canonical text; None for null, of which no field has the text."""
    shown, text = _readable(value)
    return None if shown is None else JsonText(text)


def _readable(value: Any) -> tuple[Plain, str]:
    try:
        for depth, items in ((DEPTH_MAX, ITEMS_MAX), (3, 3)):
            shown = _shown(value, depth, items)
            text = json_text(shown)
            if len(text.encode()) <= BYTES_MAX:
                return shown, text
        shown = _summary(value)
    except Exception:  # a user's object may raise anything; its checkpoint is stored all the same
        shown = f"({type(value).__name__})"
    return shown, json_text(shown)


def _shown(value: Any, depth: int, items: int) -> Plain:
    if type(value) is str:
        return _text(value)
    if value is None or isinstance(value, bool):
        return value
    if depth and _model_fields(cast(Hashable, type(value))) is not None:  # messages, of which each step shows several
        return _members(_fields_of(value) or {}, depth, items)
    if isinstance(value, enum.Enum):
        return _shown(value.value, depth, items)
    if isinstance(value, int):
        return int(value) if -_INT_MAX <= value <= _INT_MAX else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"({len(value)} bytes)"
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    if depth == 0:
        return _summary(value)
    if isinstance(value, Mapping):
        return _members(value, depth, items)
    if isinstance(value, (Sequence, Set)):
        return _items(value, depth, items)
    fields = _fields_of(value)
    return _summary(value) if fields is None else _members(fields, depth, items)


def _fields_of(value: Any) -> Mapping[str, Any] | None:
    """Return an object's fields by name.

    For a message these are the important fields, for any other pydantic model or dataclass all fields. None if the
    value is none of these.
    """
    if isinstance(value, type):
        return None
    wanted = _model_fields(cast(Hashable, type(value)))
    if wanted is not None:
        if wanted is not _MESSAGE_FIELDS:
            return {name: getattr(value, name, None) for name in wanted}
        own = vars(value)
        return {
            name: each for name in wanted
            if type(each := own.get(name)) is str or (each is not None and each not in ([], {}))
        }  # fmt: skip
    if dataclasses.is_dataclass(value):
        return {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
    return None


@lru_cache(maxsize=256)
def _model_fields(kind: Hashable) -> tuple[str, ...] | None:
    """Return the names of the fields to show of a pydantic model; None for any other class."""
    names = getattr(kind, "model_fields", None)
    if (
        not isinstance(kind, type)
        or not isinstance(names, Mapping)
        or issubclass(kind, (enum.Enum, int, float, str, Mapping, Sequence, Set))
    ):
        return None
    return _MESSAGE_FIELDS if {"type", "content", "additional_kwargs"} <= names.keys() else tuple(names)


def _members(value: Mapping[Any, Any], depth: int, items: int) -> Plain:
    shown = {
        _text(str(key)): _text(each) if type(each) is str else _shown(each, depth - 1, items)
        for key, each in islice(value.items(), items)
    }
    if len(value) > items:
        shown["..."] = f"{len(value) - items} more"
    return shown


def _items(value: Sequence[Any] | Set[Any], depth: int, items: int) -> Plain:
    every = [*value]
    if isinstance(value, Set):
        every.sort(key=repr)
    shown = [_shown(each, depth - 1, items) for each in every[-items:]]
    return shown if len(every) <= items else [f"... {len(every) - items} earlier", *shown]


def _text(value: str) -> str:
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()  # a log does not accept lone surrogates in JSON
    return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}... ({len(value)} characters)"


def _summary(value: Any) -> str:
    if isinstance(value, (Sequence, Set, Mapping)):
        return f"({type(value).__name__} of {len(value)})"
    return f"({type(value).__name__})"
