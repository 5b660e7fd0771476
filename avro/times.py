"""Converts times in microseconds since 1970 UTC to and from RFC 3339 text and datetimes."""

from __future__ import annotations

import datetime as dt
import re

from refold.avro.errors import ValidationError

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICRO = dt.timedelta(microseconds=1)
TIME_MIN = (dt.datetime.min.replace(tzinfo=dt.UTC) - EPOCH) // MICRO
TIME_MAX = (dt.datetime.max.replace(tzinfo=dt.UTC) - EPOCH) // MICRO
FORM = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d([.,]\d{1,6})?)?([Zz]|[+-]\d\d:?\d\d)?\Z")


def datetime_micros(moment: dt.datetime) -> int:
    """Microseconds since 1970 UTC; a datetime without zone counts as UTC."""
    aware = moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)
    return (aware - EPOCH) // MICRO


def parse_time(given: str, path: str = "time", *, local: bool = False) -> int:
    """Parse RFC 3339 text such as `2026-11-21T03:12:00.5Z`.

    Args:
        given: The text.
        path: Its place, for errors.
        local: Require text without a zone, instead of text with one.

    Returns:
        Microseconds since 1970.

    Raises:
        ValidationError: It is no such text.
    """
    try:
        if not FORM.match(given.strip()):
            raise ValueError(given)
        moment = dt.datetime.fromisoformat(given.strip().upper().replace(",", "."))
    except ValueError:
        raise ValidationError(
            path, "a time in RFC 3339 form to the microsecond, such as 2026-11-21T03:12:00.5Z", given
        ) from None
    if (moment.tzinfo is None) != local:
        rule = "a local time, without a zone" if local else "a time with its zone: end it with Z or +hh:mm"
        raise ValidationError(path, rule, given)
    return datetime_micros(moment)


def time_text(micros: int, digits: int = 6) -> str:
    """RFC 3339 text in UTC, with `digits` (3 or 6) digits of a second."""
    if not TIME_MIN <= micros <= TIME_MAX:
        return f"{micros}us"
    moment = EPOCH + micros * MICRO
    stamp = moment.isoformat(timespec="milliseconds" if digits == 3 else "microseconds")
    return stamp.replace("+00:00", "Z")


def millis_text(millis: int) -> str:
    """RFC 3339 text in UTC of milliseconds since 1970."""
    return time_text(millis * 1000, 3)
