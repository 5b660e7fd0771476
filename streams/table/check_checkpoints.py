"""The checkpoints of a table: each is the fold of its entity's arrivals up to its place, by its definition.

Each entity that has any is folded once more by each definition they name, in log order. Where an arrival does not fold
directly, the next checkpoint is compared with a fold from nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from refold.avro.errors import CorruptionError, SchemaError, UndecodableError
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.streams.log.port import Mismatch
from refold.streams.partition import partition_of
from refold.streams.rocks.database import Database
from refold.streams.table import keys
from refold.streams.table.batch import stored_history
from refold.streams.table.checkpoints import checkpoint_of, checkpoint_value

PLACE: Final = "checkpoints"


def check_checkpoints(database: Database, registry: Registry, partitions: int) -> Iterator[Mismatch]:
    """Every checkpoint that is not what the log folds to, or that stands where nothing arrived."""
    for prefix, rows in groupby(database.scan(PLACE), lambda row: row[0].partition(b"\0")[0]):
        kept: dict[int, dict[int, bytes]] = {}
        name = ""
        for key, value in rows:
            try:
                name, offset, definition = keys.checkpoint_place(key)
                checkpoint_of(key, value)
            except CorruptionError as error:
                yield Mismatch(PLACE, str(error), name)
                continue
            if name.encode() != prefix:
                yield Mismatch(PLACE, f"the key {key.hex()[:200]} cannot be read")
                continue
            kept.setdefault(definition, {})[offset] = value
        for definition, some in kept.items():
            places = _Places(name, partition_of(name, partitions))
            try:
                yield from _compare(database, registry, places, definition, some)
            except (CorruptionError, UndecodableError, SchemaError) as error:
                yield Mismatch(PLACE, f"cannot be compared with the log: {error}", name)


class _Places:
    """Mismatches of one entity's checkpoints."""

    def __init__(self, name: str, partition: int) -> None:
        self.name = name
        self._partition = partition

    def mismatch(self, offset: int, problem: str) -> Mismatch:
        return Mismatch(PLACE, f"{self._partition}={offset} {problem}", self.name)


def _compare(
    database: Database, registry: Registry, places: _Places, definition: int, kept: dict[int, bytes]
) -> Iterator[Mismatch]:
    """kept: stored values by offset; what was compared is taken out."""
    name = places.name
    version = next((each for each in registry.versions(type_of(name)) if each.offset == definition), None)
    if version is None:
        for offset in kept:
            yield places.mismatch(offset, f"is by the definition {definition}, which is none of its type")
        return
    fold = Fold(version.definition)
    entity = Entity(name)
    folded: list[Seen] = []
    is_behind = False
    for seen in stored_history(database, registry, name):
        folded.append(seen)
        is_behind = is_behind or not _directly(fold, entity, seen)
        value = kept.pop(seen.offset, None)
        if value is None:
            continue
        if is_behind:
            entity, is_behind = fold.from_nothing(name, folded), False
        if checkpoint_value(entity) != value:
            yield places.mismatch(seen.offset, "is not what the log folds to")
        if not kept:
            return
    for offset in kept:
        yield places.mismatch(offset, "is a checkpoint where nothing arrived")


def _directly(fold: Fold, entity: Entity, seen: Seen) -> bool:
    """Whether an observation folded directly; if not, the entity is of no more use."""
    try:
        return fold.directly(entity, seen) is not None
    except SchemaError:  # a custom reducer may fail on what a clear hides when all is folded from nothing
        return False
