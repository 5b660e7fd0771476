"""The time of each message: its own, else a synthetic one that keeps the order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from refold.avro.errors import ValidationError
from refold.avro.times import TIME_MAX, parse_time

MILLISECOND = 1_000
SECOND = 1_000_000
MILLIS_FROM = 10**11  # seconds reach this in the year 5138, milliseconds did in 1973
MICROS_FROM = 10**14


def own_time(given: object) -> int | None:
    """Convert a time, as files write it, to microseconds since 1970.

    Args:
        given: A number of seconds, milliseconds or microseconds, told apart by its size; or text in RFC 3339. Text
            without a zone is UTC.

    Returns:
        Microseconds since 1970; None if the value is not a time.
    """
    if isinstance(given, str):
        for text in (given, f"{given}Z"):
            try:
                return parse_time(text)
            except ValidationError:
                continue
        return None
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not math.isfinite(given) or given < 0:
        return None
    unit = SECOND if given < MILLIS_FROM else MILLISECOND if given < MICROS_FROM else 1
    micros = round(given * unit)
    return micros if micros <= TIME_MAX else None


def message_times(own: Sequence[int | None], start: int | None, default: int) -> list[int]:
    """Return the time of each message: its own, else one millisecond after the message before it.

    Messages before the first own time count from `start`; without `start`, they count back from that time. If no
    message has a time of its own and there is no `start`, they count from `default`.

    Args:
        own: Each message's own time, or None.
        start: When the conversation began, if that is known.
        default: The start of a conversation without any time.

    Returns:
        One time for each message. All times are microseconds.
    """
    first = next(((index, time) for index, time in enumerate(own) if time is not None), None)
    if start is None:
        start = default if first is None else first[1] - first[0] * MILLISECOND
    times: list[int] = []
    following = start
    for time in own:
        times.append(following if time is None else time)
        following = times[-1] + MILLISECOND
    return times
