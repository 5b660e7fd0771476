"""Rulings: which damaged records of a log an administrator has set aside. Pure; a function of `.schemas` alone.

A ruling is about one record of `.observations` or `.changes`, by partition and offset, or about the records of a whole
batch that cannot be read: so many offsets from one on. Of `.schemas`, `.manifests`, `.deadletters` and `.keys` only
such batches are ruled on.
1. The last ruling on a record counts: it is set aside, or it is not.
2. A record that is set aside holds nothing, for every cut. So whoever read `.schemas` to the same place answers alike,
   and an answer at an earlier cut is that of a log without the record.
3. A cut's own place in `.schemas` plays no part: at an earlier place the record could not be read either, and every
   question about the past would go on failing.
4. What was made of the record while it was whole (tables, epochs) says which records it leaves out. Where that is not
   what is set aside by now, it is not used (streams/worker/commit.py, streams/snapshots/manifest.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from refold.avro.errors import DamagedRecord

OBSERVATIONS, CHANGES = "observations", "changes"
SCHEMAS, MANIFESTS, DEADLETTERS, KEYS = "schemas", "manifests", "deadletters", "keys"
TOPICS = (OBSERVATIONS, CHANGES, SCHEMAS, MANIFESTS, DEADLETTERS, KEYS)
"""Those whose records somebody needs: a reader stops at a damaged one that is not set aside."""
GIVE_UP_KEYS = "--give-up-keys"
"""The option without which the command sets no batch of `.keys` aside."""
NAME_BYTES_MAX = 2_048
LENGTH_MAX = 1_000_000
"""More offsets than any batch of a broker's has."""
_NUMBER_END = 1 << 63
_NONE: Mapping[int, str] = MappingProxyType({})


class Ruling(NamedTuple):
    """One decision on one record, or on `length` offsets.

    entity: whose it is, empty where its key does not say; decided_at in milliseconds.
    """

    topic: str
    partition: int
    offset: int
    length: int
    entity: str
    is_lifted: bool
    decided_at: int


def ruling_of(parts: object) -> Ruling:
    """The ruling in a list of its parts; ValueError where they are none."""
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

    name: what the log's topics begin with. url: how a command names the log. Both are empty in a log that has no
    rulings.
    """

    def __init__(self, name: str = "", url: str = "") -> None:
        self._name = name
        self._url = url
        # A mapping is replaced and never altered: who holds one holds the rulings of one moment.
        self._aside: dict[tuple[str, int], Mapping[int, str]] = {}
        self._taken: list[tuple[int, Ruling]] = []

    def take(self, ruling: Ruling, place: int) -> None:
        """Take up a ruling; place: its offset in `.schemas`."""
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
        """What is set aside in one partition: offset and entity. The same object until a ruling changes it."""
        return self._aside.get((topic, partition), _NONE)

    def all(self) -> list[Ruling]:
        """The last ruling at each offset where one begins, by topic and position."""
        last = {each[:3]: each for _, each in self._taken}
        return [last[key] for key in sorted(last)]

    def entities(self, topic: str, partition: int) -> frozenset[str]:
        """The entities of records that were ever ruled on; an empty name where a key did not say."""
        return frozenset(
            each.entity for _, each in self._taken if (each.topic, each.partition) == (topic, partition)
        )  # fmt: skip

    def between(self, start: int, end: int) -> list[Ruling]:
        """The rulings whose place in `.schemas` is in start <= place < end."""
        return [each for place, each in self._taken if start <= place < end]

    def damaged(self, topic: str, partition: int, offset: int, entity: str, why: str) -> DamagedRecord:
        """The error where a record is needed and damaged: its place, and what sets it aside."""
        place = f"{self._name}.{topic} {partition}={offset}" if self._name else f"{topic} {partition}={offset}"
        whose = f" of {entity}" if entity else ""
        return DamagedRecord(
            f"{place}: the record{whose} is damaged: {why}. {self.remedy(topic, partition, offset)}",
            topic, partition, offset,
        )  # fmt: skip

    def damaged_batch(self, topic: str, partition: int, offset: int, why: str) -> DamagedRecord:
        """The error where a record is needed and its batch cannot be read."""
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
        """The command that sets a record aside; empty where the log has no rulings."""
        if not self._name:
            return ""
        flag = f" {GIVE_UP_KEYS}" if topic == KEYS else ""
        return f"refold quarantine add {self._name}.{topic}/{partition}/{offset}{flag} --log {self._url}"
