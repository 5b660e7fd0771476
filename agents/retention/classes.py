"""Classes of runs, and for how many days a run's content is kept after its end.

A run's class is the recorded `retention_class`; without one, its kind and outcome decide. A flagged run is kept for the
days of the class `flagged` or of its own class, whichever is longer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from refold.avro.errors import InputError

SUCCESS, FAILED, FLAGGED, TEST, UNSAMPLED = "success", "failed", "flagged", "test", "unsampled"
DAYS: Mapping[str, float] = {SUCCESS: 7, FAILED: 30, FLAGGED: 90, TEST: 1, UNSAMPLED: 1}
DAY_MICROS = 86_400_000_000
_GIVEN = re.compile(r"([\w.-]{1,100})=(\d{1,6}(?:\.\d{1,6})?)\Z")


def days_of(given: Iterable[str]) -> dict[str, float]:
    """Return the days of each class: the defaults, overridden by the given ones.

    Args:
        given: Texts NAME=DAYS.

    Raises:
        InputError: A text has another form.
    """
    days = dict(DAYS)
    for each in given:
        found = _GIVEN.match(each)
        if found is None:
            raise InputError(f"{each!r:.80}: give a class and the days its content is kept, such as failed=60")
        days[found[1]] = float(found[2])
    return days


def class_of(fields: Mapping[str, Any]) -> str:
    """Return the class of a run.

    Args:
        fields: The run's fields that are stored in clear.
    """
    recorded: str = fields.get("retention_class") or ""
    if recorded:
        return recorded
    if fields.get("outcome") != "succeeded":
        return FAILED
    return TEST if fields.get("kind") == "test" else SUCCESS


def kept_days(fields: Mapping[str, Any], days: Mapping[str, float]) -> float:
    """Return for how many days a run's content is kept after its end; infinite if its class has no days.

    Args:
        fields: The run's fields that are stored in clear.
        days: The days of each class.
    """
    own = days.get(class_of(fields), math.inf)
    return max(own, days[FLAGGED]) if fields.get("flagged") else own
