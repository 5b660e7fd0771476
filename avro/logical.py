"""Logical types at the door: times, dates, uuids and decimals from the forms Python and JSON use."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from refold.avro.errors import ValidationError
from refold.avro.times import datetime_micros, parse_time

SPANS = {"int": (-(2**31), 2**31), "long": (-(2**63), 2**63)}
EPOCH_DAY = dt.date(1970, 1, 1).toordinal()

Check = Callable[[Any, str, Any], Any]


def logical_checker(node: dict[str, Any]) -> Check:
    """The check of a node with a logical type other than refold-json."""
    logical = node["logicalType"]
    if logical == "decimal":
        return _decimal(node["precision"], node["scale"])
    if logical == "uuid":
        return _uuid
    low, end = SPANS[node["type"]]
    unit = 1000 if logical.endswith("millis") else 1
    convert = _from_time if logical.startswith("time-") else _from_date if logical == "date" else _from_timestamp

    def check(given: Any, path: str, blobs: Any) -> Any:
        value = given if type(given) is int else convert(given, path, unit, logical)
        if not low <= value < end:
            raise ValidationError(path, f"a {logical} within a {node['type']}", given)
        return value

    return check


def _from_timestamp(given: Any, path: str, unit: int, logical: str) -> int:
    local = logical.startswith("local-")
    if isinstance(given, str):
        return parse_time(given, path, local=local) // unit
    if isinstance(given, dt.datetime):
        if (given.tzinfo is None) != local:
            raise ValidationError(path, "a datetime without time zone" if local else "a datetime with a time zone", given)
        return datetime_micros(given) // unit
    raise ValidationError(path, f"a time: RFC 3339 text, a datetime or an integer ({logical})", given)


def _from_date(given: Any, path: str, unit: int, logical: str) -> int:
    try:
        date = dt.date.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        date = None
    if not isinstance(date, dt.date) or isinstance(date, dt.datetime):
        raise ValidationError(path, "a date: YYYY-MM-DD, a date or days since 1970", given)
    return date.toordinal() - EPOCH_DAY


def _from_time(given: Any, path: str, unit: int, logical: str) -> int:
    try:
        time = dt.time.fromisoformat(given) if isinstance(given, str) else given
    except ValueError:
        time = None
    if not isinstance(time, dt.time) or time.tzinfo is not None:
        raise ValidationError(path, f"a time of day: HH:MM:SS[.ffffff], a time or an integer ({logical})", given)
    return (((time.hour * 60 + time.minute) * 60 + time.second) * 1_000_000 + time.microsecond) // unit


def _uuid(given: Any, path: str, blobs: Any) -> str:
    try:
        return str(given if isinstance(given, uuid.UUID) else uuid.UUID(given))
    except (ValueError, AttributeError, TypeError):
        raise ValidationError(path, "a UUID", given) from None


def _decimal(precision: int, scale: int) -> Check:
    rule = f"a decimal of at most {precision} digits, {scale} of them after the point"

    def check(given: Any, path: str, blobs: Any) -> Any:
        try:
            if isinstance(given, Mapping):
                value = decimal.Decimal(int(given["unscaled"])).scaleb(-int(given["scale"]))
            elif isinstance(given, bool):
                raise ValidationError(path, rule, given)
            else:
                value = decimal.Decimal(repr(given) if isinstance(given, float) else given)
        except (decimal.InvalidOperation, KeyError, TypeError, ValueError):
            raise ValidationError(path, rule, given) from None
        if not value.is_finite():
            raise ValidationError(path, rule, given)
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        unscaled = int("".join(map(str, digits)))
        while unscaled and unscaled % 10 == 0:
            unscaled, exponent = unscaled // 10, exponent + 1
        if not unscaled:
            return {"unscaled": 0, "scale": 0}
        if exponent > 0:
            unscaled, exponent = unscaled * 10 ** min(exponent, precision + 1), 0
        if -exponent > scale or unscaled * 10 ** (scale + exponent) >= 10**precision:
            raise ValidationError(path, rule, given)
        return {"unscaled": -unscaled if sign else unscaled, "scale": -exponent}

    return check


def decimal_bytes(tree: Mapping[str, Any], scale: int) -> bytes:
    """A canonical decimal as Avro's two's-complement bytes at the schema's scale."""
    unscaled: int = tree["unscaled"] * 10 ** (scale - tree["scale"])
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def decimal_tree(data: bytes, scale: int) -> dict[str, int]:
    """The canonical decimal behind Avro's bytes: its scale as small as it can be."""
    unscaled = int.from_bytes(data, "big", signed=True)
    while scale and unscaled % 10 == 0:
        unscaled, scale = unscaled // 10, scale - 1
    return {"unscaled": unscaled, "scale": scale}
