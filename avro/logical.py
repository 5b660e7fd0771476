"""Validation of logical types: times, dates, uuids and decimals in the forms of Python and JSON."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from refold.avro.errors import ValidationError
from refold.avro.times import TIME_MAX, TIME_MIN, datetime_micros, parse_time

EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
DIGITS_MAX = 1000
UUID_FORM = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Check = Callable[[Any, str, Any], Any]


def logical_checker(node: dict[str, Any]) -> Check:
    """The check of a node with a logical type other than refold-json."""
    logical = node["logicalType"]
    if logical == "decimal":
        return _decimal(node["precision"], node["scale"])
    if logical == "uuid":
        return _uuid
    low, end = span_of(logical)
    rule = "a time of day, below 24 hours" if logical.startswith("time-") else "a time within the years 1 to 9999"
    unit = 1000 if logical.endswith("millis") else 1
    convert = _from_time if logical.startswith("time-") else _from_date if logical == "date" else _from_timestamp

    def check(given: Any, path: str, blobs: Any) -> Any:
        value = given if type(given) is int else convert(given, path, unit, logical)
        if not low <= value < end:
            raise ValidationError(path, f"{rule} ({logical})", given)
        return value

    return check


def span_of(logical: str) -> tuple[int, int]:
    """The least value of a date or time, and one past the greatest: the range that all readers' types can hold."""
    unit = 1000 if logical.endswith("millis") else 1
    if logical == "date":
        return dt.date.min.toordinal() - EPOCH_DAY, dt.date.max.toordinal() - EPOCH_DAY + 1
    if logical.startswith("time-"):
        return 0, 86_400_000_000 // unit
    return TIME_MIN // unit, TIME_MAX // unit + 1


def _from_timestamp(given: Any, path: str, unit: int, logical: str) -> int:
    local = logical.startswith("local-")
    if isinstance(given, str):
        return parse_time(given, path, local=local) // unit
    if isinstance(given, dt.datetime):
        if (given.tzinfo is None) != local:
            raise ValidationError(
                path, "a datetime without time zone" if local else "a datetime with a time zone", given
            )
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


def check_uuid_text(given: str) -> str:
    """`given` unchanged; ValidationError unless it is a UUID in its canonical text."""
    if not UUID_FORM.fullmatch(given):
        raise ValidationError("uuid", "a UUID in lower-case text with hyphens", given)
    return given


def _decimal(precision: int, scale: int) -> Check:
    rule = _decimal_rule(precision, scale)

    def check(given: Any, path: str, blobs: Any) -> Any:
        # No decimal arithmetic, because that rounds by the decimal context of the caller's thread.
        negative, digits, exponent = _decimal_parts(given, path, rule)
        significant = digits.rstrip("0")
        exponent += len(digits) - len(significant)
        significant = significant.lstrip("0")
        if not significant:
            return {"unscaled": 0, "scale": 0}
        if exponent < -scale or len(significant) + exponent > precision - scale:
            raise ValidationError(path, rule, given)
        unscaled = int(significant) * 10 ** max(exponent, 0)
        return {"unscaled": -unscaled if negative else unscaled, "scale": max(-exponent, 0)}

    return check


def _decimal_rule(precision: int, scale: int) -> str:
    return f"a decimal of at most {precision} digits, {scale} of them after the point"


def _decimal_parts(given: Any, path: str, rule: str) -> tuple[bool, str, int]:
    """Return (negative, digits, exponent) of a decimal in any form."""
    if isinstance(given, Mapping) and given.keys() == {"unscaled", "scale"}:
        unscaled, scale = given["unscaled"], given["scale"]
        if type(unscaled) is int and type(scale) is int and abs(unscaled) < 10**DIGITS_MAX:
            return unscaled < 0, str(abs(unscaled)), -scale
    elif isinstance(given, (int, float, str, decimal.Decimal)) and not isinstance(given, bool):
        try:
            value = decimal.Decimal(float.__repr__(given) if isinstance(given, float) else given)
        except (decimal.InvalidOperation, ValueError):
            raise ValidationError(path, rule, given) from None
        sign, digits, exponent = value.as_tuple()
        if isinstance(exponent, int):
            return bool(sign), "".join(map(str, digits)), exponent
    raise ValidationError(path, rule, given)


def decimal_bytes(tree: Mapping[str, Any], scale: int) -> bytes:
    """A canonical decimal as Avro's two's-complement bytes at the schema's scale."""
    unscaled: int = tree["unscaled"] * 10 ** (scale - tree["scale"])
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def decimal_reader(precision: int, scale: int) -> Callable[[bytes], dict[str, int]]:
    """Return the conversion from Avro's bytes to the canonical decimal, which has the smallest possible scale."""
    end = 10**precision

    def read(data: bytes) -> dict[str, int]:
        unscaled, places = int.from_bytes(data, "big", signed=True), scale
        if not -end < unscaled < end:
            raise ValidationError("decimal", _decimal_rule(precision, scale), unscaled)
        while places and unscaled % 10 == 0:
            unscaled, places = unscaled // 10, places - 1
        return {"unscaled": unscaled, "scale": places}

    return read
