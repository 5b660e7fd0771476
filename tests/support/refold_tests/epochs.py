"""Logs that seal epochs of every kind while they are still small: bases, deltas, and closed entities of several
months.
"""

from __future__ import annotations

import random

from refold.avro.definition import TypeDefinition
from refold.streams.client import Log
from refold.streams.log.file.log import FileLog
from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.snapshots.manifest import Manifest
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.store import Tombstone
from refold_tests.histories import TYPE
from refold_tests.opening import take
from refold_tests.sample_types import OTHER, defined, document, said

CLOSING = defined({**document(), "refold.closed_by": "high"})
"""The test type; a field closes its entities, and is also cleared sometimes."""
MONTH_MICROS = 31 * 86_400_000_000
SMALL_EPOCHS = SnapshotSettings(chunk_bytes=700, changed_min=6)
"""Spans of a few records, and frequent bases."""


def grow(log: Log, rng: random.Random, epochs: int, definition: TypeDefinition = CLOSING, names: int = 40) -> None:
    """Record observations of a few entities, which close, reopen, arrive late and repeat. Seal an epoch after each
    part.
    """
    for _ in range(epochs):
        every = []
        for number in range(rng.choice((1, 3, 10, 40))):
            name = f"{OTHER.name if rng.random() < 0.2 else TYPE}/{rng.randrange(names)}"
            given = said(name, rng.randrange(1 << 20), last=number)
            chance = rng.random()
            if chance < 0.5:
                later = rng.randrange(3) * MONTH_MICROS
                given = given._replace(patch={"high": number}, observed_at=given.observed_at + later)
            elif chance < 0.55:
                given = given._replace(patch={}, cleared=("high",))
            elif chance < 0.6:
                given = given._replace(observed_at=rng.randrange(5), patch={"log": [number], "attrs": {"k": "v"}})
            every += [given] * rng.choice((1, 1, 1, 2))
        take(log, every, definition)
        log.snapshot()


def close_many(log: Log, count: int = 150) -> None:
    """Record `count` entities that are closed for good. Their index is longer than what later bases add to it."""
    take(log, [said(f"{TYPE}/closed{number}", number, high=number) for number in range(count)], CLOSING)
    log.snapshot()


def manifests(log: Log) -> list[Manifest]:
    """Return every manifest, by partition and offset."""
    reader = log.port.snapshots
    return [reader.manifest(epoch) for each in range(log.port.partitions) for epoch in reader.epochs(each)]


def clean_up(log: Log, rng: random.Random) -> None:
    """Remove some epochs and, for most of them, the records that no other epoch refers to, as garbage collection
    does.
    """
    assert isinstance(log.port, FileLog)
    store = FileSnapshotStore(log.port.database, log.port.partitions)
    every = manifests(log)
    buried = [each for each in every if rng.random() < 0.4]
    store.add_tombstone(*(Tombstone(each.epoch, 0, each.encoded) for each in buried))
    forgotten = [each for each in buried if rng.random() < 0.7]
    for partition in range(log.port.partitions):
        kept = [
            (span.start, span.end)
            for each in every
            if each.epoch.partition == partition and each not in forgotten
            for span in each.spans
        ]
        store.clear(partition, kept, [each.epoch for each in forgotten if each.epoch.partition == partition])
