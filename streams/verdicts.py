"""A verdict: the final decision that a record is no observation, with everything it takes to look at the record again.

Its bytes are deterministic CBOR {format: 1, offset, reason, detail, key, value, headers: [[name, value]], timestamp} of
the record as it stands. Only workers decide (streams/worker/verdicts.py); archives keep what they decided.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.avro.times import TIME_MAX

FORMAT = 1
END_MS = TIME_MAX // 1000 + 1
REASONS = ("misplaced", "misidentified", "undecodable", "no_such_id", "foreign_schema", "held")


class Verdict(NamedTuple):
    """Why a record is no observation, and the record where it stands.

    reason: one of REASONS. detail: a sentence. timestamp: its append time, in milliseconds.
    """

    partition: int
    offset: int
    reason: str
    detail: str
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, str | bytes | None]]
    timestamp: int


def _is_whole(found: Any) -> bool:
    """Whether each value is of its type: whoever may write the topic may write anything."""
    numbers = ((found.offset, 2**63), (found.timestamp, END_MS))
    return (
        all(type(number) is int and 0 <= number < end for number, end in numbers)
        and all(isinstance(text, str) for text in (found.reason, found.detail))
        and all(part is None or isinstance(part, bytes) for part in (found.key, found.value))
        and all(isinstance(name, str) and isinstance(given, str | bytes | None) for name, given in found.headers)
    )


def verdict_value(verdict: Verdict) -> bytes:
    """The value of a verdict's record."""
    tree: dict[str, Any] = {"format": FORMAT, **verdict._asdict(), "headers": [list(each) for each in verdict.headers]}
    del tree["partition"]
    return encode(tree)


def read_verdict(partition: int, value: bytes) -> Verdict:
    """The verdict behind a value in a partition of `.deadletters`; CorruptionError where it is none."""
    where = f"a dead letter of partition {partition}"
    try:
        tree = cbor2.loads(value)
        if tree.pop("format") != FORMAT:
            raise CorruptionError(f"{where} is of a format that this release does not read; use the newer refold")
        headers = [(name, given) for name, given in tree.pop("headers")]
        found = Verdict(partition=partition, headers=headers, **tree)
        if not _is_whole(found):
            raise TypeError("its values are of other types")
        return found
    except CorruptionError:
        raise
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"{where} cannot be read: {error}") from error
