"""Verdicts and dead letters.

A verdict is the final decision that a record is not an observation, with a full copy of the record. Its bytes are
deterministic CBOR {format: 1, offset, reason, detail, key, value, headers: [[name, value]], timestamp} of the record.
Only workers decide (streams/worker/verdicts.py); archives keep what they decided.

A retry is another record. Its header `refold-retry-of` has the position of the one that it repeats: partition u32 and
offset u64, big-endian.

For people a record is described by its observation, if a schema that the log has by now decodes it, or else by its key.
Neither means that it is an observation of this log: the verdict decides that, and a retry may change it
(streams/log/kafka/deadletter_retry.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.codec import framed_id
from refold.avro.errors import CorruptionError, InputError, UndecodableError
from refold.avro.observation import Observation
from refold.avro.registry import Registry
from refold.avro.times import TIME_MAX
from refold.streams.log.port import LogReader, Position

FORMAT = 1
END_MS = TIME_MAX // 1000 + 1
REASONS = ("misplaced", "misidentified", "undecodable", "no_such_id", "foreign_schema", "held")
NAMED_MAX = 5
"""How many missing dead letters an error names."""


class Verdict(NamedTuple):
    """Why a record is not an observation, and the record.

    Attributes:
        reason: One of REASONS.
        detail: A sentence.
        timestamp: Its append time, in milliseconds.
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
    """Whether each value has its type: any writer of the topic can write anything."""
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
    """Decode a verdict.

    Args:
        partition: Its partition of `.deadletters`.
        value: The record's value.

    Raises:
        CorruptionError: It is not a verdict, or of a format that this release does not read.
    """
    where = f"a dead letter of partition {partition}"
    try:
        tree = cbor2.loads(value)
        if tree.pop("format") != FORMAT:
            raise CorruptionError(f"{where} has a format that this release does not read; use the newer refold")
        headers = [(name, given) for name, given in tree.pop("headers")]
        found = Verdict(partition=partition, headers=headers, **tree)
        if not _is_whole(found):
            raise TypeError("its values are of other types")
        return found
    except CorruptionError:
        raise
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"{where} cannot be read: {error}") from error


RETRY_OF = "refold-retry-of"
_POSITION = struct.Struct(">IQ")

REMEDIES = {
    "misplaced": "mend the producer: the key is TYPE/ID of what it observes, and the partitioner murmur2 "
    "(partitioner=murmur2 for librdkafka's clients). A retry puts this one where it belongs",
    "misidentified": "its content or its id was changed on the way, and which of them is not known: have the producer "
    "send it again. Where the content is right, observe it again: save `observation` of refold deadletters show --json "
    "as a line of a file, and import that with refold import",
    "undecodable": "these bytes are no observation and a retry changes nothing: mend the producer, and have it send "
    "again what it meant",
    "no_such_id": "its writer has a schema that this log does not hold: register that definition with refold types "
    "--register FILE, then retry. One by another registry's ids stays unknown: mend the producer",
    "foreign_schema": "the Schema Registry has this schema for something else than this log: mend the producer, or "
    "register the type it meant with refold types --register FILE, then retry",
    "held": "its type, or the version it was written by, names custom code that no worker was given. If that code is "
    "yours, start the workers with --reducers MODULE:FUNCTION, then retry with the same option",
}


class DeadLetterView(NamedTuple):
    """A dead letter.

    Attributes:
        number: Its offset in `.deadletters`.
        entity: The entity of the observation in the record, or else the key; empty if that is not text.
        wire_id: The schema id in its bytes; None without one.
    """

    number: int
    verdict: Verdict
    entity: str
    wire_id: int | None
    observation: Observation | None

    @property
    def position(self) -> Position:
        """The record's position in `.observations`."""
        return Position(self.verdict.partition, self.verdict.offset)

    @property
    def type_name(self) -> str:
        """The apparent type; empty if unknown."""
        name, slash, _ = self.entity.partition("/")
        return name if slash else ""

    @property
    def retry_of(self) -> Position | None:
        """The record that this one was a retry of, if it was one."""
        return next((position_in(value) for name, value in self.verdict.headers if name == RETRY_OF), None)

    @property
    def remedy(self) -> str:
        """What to do about it."""
        return REMEDIES.get(self.verdict.reason, "a newer release of refold knows what to do about it")


def retry_header(of: Position) -> tuple[str, bytes]:
    """The header of a record that repeats another."""
    return RETRY_OF, _POSITION.pack(*of)


def position_in(given: str | bytes | None) -> Position | None:
    """Parse the position in that header; None if it is invalid, because any producer can write headers."""
    if not isinstance(given, bytes) or len(given) != _POSITION.size:
        return None
    return Position(*_POSITION.unpack(given))


def dead_letters(log: LogReader) -> Iterator[DeadLetterView]:
    """Yield every dead letter of a log, by the position of its record.

    Raises:
        CorruptionError: One cannot be read.
    """
    for each in log.deadletters():
        yield describe_dead_letter(log.registry, each.offset, read_verdict(each.partition, each.data))


def dead_letters_at(log: LogReader, positions: Sequence[Position]) -> list[DeadLetterView]:
    """Return the dead letters on records, each once, in the given order.

    Raises:
        InputError: A record has none.
    """
    there = {each.position: each for each in dead_letters(log) if each.position in positions}
    missing = [each for each in dict.fromkeys(positions) if each not in there]
    if missing:
        named = ", ".join(map(str, islice(missing, NAMED_MAX))) + (", ..." if len(missing) > NAMED_MAX else "")
        raise InputError(f"{named}: there is no dead letter on it; `refold deadletters list` shows those there are")
    return [there[each] for each in dict.fromkeys(positions)]


def describe_dead_letter(registry: Registry, number: int, verdict: Verdict) -> DeadLetterView:
    """Describe a verdict's record, by the known schemas.

    Args:
        registry: The log's types; the record is decoded if one of them reads it.
        number: Its position in the listing.
        verdict: The decision on the record, with the record.
    """
    value = verdict.value or b""
    try:
        observation = registry.decode(value)
    except UndecodableError:
        return DeadLetterView(number, verdict, _key_text(verdict.key), _wire_id(value), None)
    return DeadLetterView(number, verdict, observation.entity, _wire_id(value), observation)


def _wire_id(value: bytes) -> int | None:
    try:
        return framed_id(value)
    except UndecodableError:
        return None


def _key_text(key: bytes | None) -> str:
    try:
        return (key or b"").decode()
    except UnicodeDecodeError:
        return ""
