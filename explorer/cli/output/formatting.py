"""Formats field values for people: times as text, decimals as numbers, contents by a description."""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections.abc import Callable, Mapping
from typing import Any

from refold.agents.journal.objects import bare
from refold.avro.definition import TypeDefinition
from refold.avro.jsonform import BLOB, SEALED, WRAPPED
from refold.avro.nodes import JSON, Node, value_of
from refold.avro.observation import type_of
from refold.avro.times import EPOCH
from refold.avro.values import first_name
from refold.explorer.cli.output.screen import moment, printable
from refold.reducers.links import FIELD as LINKS

_OF_RUNS = ("run", "step", "effect")
Convert = Callable[[Any], Any]
Opened = Callable[[str, str, Any], Any]


class ValueFormatter:
    """Formats values of the given types as one line of text. Values are in their JSON form.

    Args:
        opened: Called with an entity, a field and a value. Returns the value with its sealed parts opened, or marked as
            unreadable (sealed.py).
    """

    def __init__(
        self, types: Mapping[str, TypeDefinition], opened: Opened = lambda entity, field, value: value
    ) -> None:
        self._types = types
        self._opened = opened
        self._known: dict[tuple[str, str, bool], Convert] = {}

    def field(self, entity: str, name: str, value: Any) -> str:
        """Format a whole field."""
        return self._text(entity, name, value, whole=True)

    def element(self, entity: str, name: str, value: Any) -> str:
        """Format the value of one mutation: a collection's element, else the whole value; "-" for none."""
        return "-" if value is None else self._text(entity, name, value, whole=False)

    def _text(self, entity: str, name: str, value: Any, *, whole: bool) -> str:
        if name == LINKS:
            return (
                ", ".join(f"{side.removeprefix('valid_')} {moment(micros)}" for side, micros in value.items())
                or "linked"
            )
        type_name = type_of(entity)
        key = (type_name, name, whole)
        convert = self._known.get(key)
        if convert is None:
            convert = self._known[key] = self._converter(type_name, name, whole)
        opened = self._opened(entity, name, value)
        return text_of(convert(bare(opened) if type_name in _OF_RUNS else opened))

    def _converter(self, type_name: str, name: str, whole: bool) -> Convert:
        definition = self._types.get(type_name)
        field = None if definition is None else definition.by_first_name.get(name)
        if field is None or field.reducer in ("sum", "count"):
            return lambda value: value
        return text_converter(field.node if whole else field.element)


def text_of(value: Any) -> str:
    """Return text unchanged, any other value as JSON."""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def text_converter(node: Node, *, is_member: bool = False) -> Convert:
    """Return the converter from a value's JSON form to text for people.

    Args:
        node: The schema node of the value.
        is_member: Whether the value is a member of a list, a map or a record, which is written as JSON as a whole.
    """
    plain = _plain(value_of(node), is_member=is_member)

    def convert(value: Any) -> Any:
        if isinstance(value, dict) and len(value) == 1:
            mark, inner = next(iter(value.items()))
            if mark == BLOB and inner.get("key_id") and not inner.get("expired"):
                return f"[{_damage_prefix(inner)}sealed under key {inner['key_id']}, {inner['size']:,} bytes]"
            if mark == BLOB:
                what = "expired blob" if inner.get("expired") else "blob"
                return f"[{what} {inner['hash']}, {inner['size']:,} bytes, {inner['media_type']}]"
            if mark == SEALED:
                was = "expired, was " if inner.get("expired") else _damage_prefix(inner)
                return f"[{was}sealed under key {inner['key_id']}]"
            if mark == WRAPPED:
                return inner
        return value if value is None else plain(value)

    return convert


def _damage_prefix(inner: dict[str, Any]) -> str:
    return "damaged, was " if inner.get("damaged") else ""


def _plain(node: dict[str, Any], *, is_member: bool) -> Convert:
    kind, logical = node["type"], node.get("logicalType")
    if logical == JSON:
        # Text of a JSON value is quoted, so that "50" and 50 differ.
        return lambda value: value if is_member else json.dumps(value, ensure_ascii=False)
    if logical is not None:
        return _logical(logical)
    if kind == "array":
        item = text_converter(node["items"], is_member=True)
        return lambda value: [item(each) for each in value]
    if kind == "map":
        entry = text_converter(node["values"], is_member=True)
        return lambda value: {key: entry(each) for key, each in value.items()}
    if kind == "record":
        fields = {first_name(field): text_converter(field["type"], is_member=True) for field in node["fields"]}
        return lambda value: {key: fields[key](each) if key in fields else each for key, each in value.items()}
    return lambda value: value


def _logical(logical: str) -> Convert:
    unit = 1000 if logical.endswith("millis") else 1
    if logical.startswith("local-"):
        return lambda value: moment(value * unit).removesuffix("Z")
    if logical.startswith("timestamp-"):
        return lambda value: moment(value * unit)
    if logical.startswith("time-"):
        return lambda value: (EPOCH + dt.timedelta(microseconds=value * unit)).time().isoformat()
    if logical == "date":
        return _date
    if logical == "decimal":
        return lambda value: str(decimal.Decimal(value["unscaled"]).scaleb(-value["scale"]))
    return lambda value: value


def _date(days: int) -> str:
    try:
        return (EPOCH.date() + dt.timedelta(days=days)).isoformat()
    except OverflowError:
        return f"day {days}"
