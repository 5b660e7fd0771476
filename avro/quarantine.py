"""Rulings: the damaged records that an administrator has set aside. A pure function of `.schemas`.

A ruling is about one record of `.observations` or `.changes`, by partition and offset, or about all records of a batch
that cannot be read: a number of offsets from the first one. In `.schemas`, `.manifests`, `.deadletters` and `.keys`
only such batches can be set aside.
1. The last ruling on a record counts: it is set aside, or it is not.
2. A record that is set aside is empty, at every cut. So all readers that read `.schemas` up to the same offset give
   equal answers, and an answer at an earlier cut is that of a log without the record.
3. A cut's own offset in `.schemas` does not matter. Otherwise every question about the past would still fail, because
   the record could not be read at an earlier cut either.
4. Tables and epochs, which may have been made while the record was readable, store the list of records that they leave
   out. If it differs from the present list, they are not used (streams/worker/pending_commit.py,
   streams/snapshots/manifest.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from refold.avro.errors import DamagedRecord

OBSERVATIONS, CHANGES = "observations", "changes"
SCHEMAS, MANIFESTS, DEADLETTERS, KEYS = "schemas", "manifests", "deadletters", "keys"
TOPICS = (OBSERVATIONS, CHANGES, SCHEMAS, MANIFESTS, DEADLETTERS, KEYS)
"""The topics whose records are required: a reader stops at a damaged record that is not set aside."""
GIVE_UP_KEYS = "--give-up-keys"
"""The option that the command requires to set a batch of `.keys` aside."""
NAME_BYTES_MAX = 2_048
LENGTH_MAX = 1_000_000
"""More offsets than any batch of a broker has."""
_NUMBER_END = 1 << 63
_NONE: Mapping[int, str] = MappingProxyType({})


class Ruling(NamedTuple):
    """One decision on one record, or on `length` offsets.

    Attributes:
        entity: The record's entity; empty if its key does not name one.
        decided_at: When it was decided, in milliseconds since 1970.
    """

    topic: str
    partition: int
    offset: int
    length: int
    entity: str
    is_lifted: bool
    decided_at: int


def ruling_of(parts: object) -> Ruling:
    """Build a ruling from the list of its parts.

    Raises:
        ValueError: They are invalid.
    """
    if not isinstance(parts, list) or len(parts) != len(Ruling._fields):
        raise ValueError("it lacks parts of a ruling")
    topic, partition, offset, length, entity, is_lifted, decided_at = parts
    numbers = (partition, offset, length, decided_at)
    if not all(type(each) is int and 0 <= each < _NUMBER_END for each in numbers) or type(is_lifted) is not bool:
        raise ValueError("its position, decision or time is invalid")
    if not 1 <= length <= LENGTH_MAX:
        raise ValueError("its number of offsets is invalid")
    if topic not in TOPICS or type(entity) is not str or len(entity.encode()) > NAME_BYTES_MAX:
        raise ValueError("its topic or entity is invalid")
    return Ruling(topic, partition, offset, length, entity, is_lifted, decided_at)


class Rulings:
    """The rulings of one log, as far as `.schemas` was read. For one writer; several threads may read.

    Args:
        name: The prefix of the log's topics; empty in a log that has no rulings.
        url: The log's URL for commands; empty in a log that has no rulings.
    """

    def __init__(self, name: str = "", url: str = "") -> None:
        self._name = name
        self._url = url
        # A mapping is replaced and never changed, so a reader holds a consistent snapshot of the rulings.
        self._aside: dict[tuple[str, int], Mapping[int, str]] = {}
        self._taken: list[tuple[int, Ruling]] = []

    def take(self, ruling: Ruling, place: int) -> None:
        """Add a ruling.

        Args:
            place: Its offset in `.schemas`.
        """
        key = (ruling.topic, ruling.partition)
        aside = dict(self._aside.get(key, _NONE))
        for offset in range(ruling.offset, ruling.offset + ruling.length):
            if ruling.is_lifted:
                aside.pop(offset, None)
            else:
                aside[offset] = ruling.entity
        self._aside[key] = MappingProxyType(aside)
        self._taken.append((place, ruling))

    def of(self, topic: str, partition: int) -> Mapping[int, str]:
        """The records of one partition that are set aside: offset to entity. The same object until a ruling changes
        it.
        """
        return self._aside.get((topic, partition), _NONE)

    def all(self) -> list[Ruling]:
        """The last ruling at each offset where a ruling begins, by topic and position."""
        last = {each[:3]: each for _, each in self._taken}
        return [last[key] for key in sorted(last)]

    def entities(self, topic: str, partition: int) -> frozenset[str]:
        """The entities of all records with a ruling; an empty name if the key named none."""
        return frozenset(
            each.entity for _, each in self._taken if (each.topic, each.partition) == (topic, partition)
        )  # fmt: skip

    def between(self, start: int, end: int) -> list[Ruling]:
        """The rulings whose place in `.schemas` is in start <= place < end."""
        return [each for place, each in self._taken if start <= place < end]

    def damaged(self, topic: str, partition: int, offset: int, entity: str, why: str) -> DamagedRecord:
        """The error for a required record that is damaged: its position, and the command that sets it aside."""
        place = f"{self._name}.{topic} {partition}={offset}" if self._name else f"{topic} {partition}={offset}"
        whose = f" of {entity}" if entity else ""
        return DamagedRecord(
            f"{place}: the record{whose} is damaged: {why}. {self.remedy(topic, partition, offset)}",
            topic, partition, offset,
        )  # fmt: skip

    def damaged_batch(self, topic: str, partition: int, offset: int, why: str) -> DamagedRecord:
        """The error for a required record whose batch cannot be read."""
        return self.damaged(topic, partition, offset, "", f"its batch cannot be read, nor can any record in it ({why})")

    def remedy(self, topic: str, partition: int, offset: int) -> str:
        """What to do about a damaged record, as a sentence that ends with the command."""
        if not self._name:
            return (
                "An embedded log has no quarantine: restore its folder from a backup, or import an archive or export "
                "of it into a new one"
            )
        cost = " and without all keys that were made before it" if topic == KEYS else ""
        return f"Restore the brokers' data; or go on without it{cost}: {self.command(topic, partition, offset)}"

    def command(self, topic: str, partition: int, offset: int) -> str:
        """The command that sets a record aside; empty if the log has no rulings."""
        if not self._name:
            return ""
        flag = f" {GIVE_UP_KEYS}" if topic == KEYS else ""
        return f"refold quarantine add {self._name}.{topic}/{partition}/{offset}{flag} --log {self._url}"
