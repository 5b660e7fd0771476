"""A `file:` log's table as it is at one moment, for sealing epochs while the fold goes on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial

from refold.avro.registry import Registry
from refold.streams.log.file.records import Progress
from refold.streams.partition import placed
from refold.streams.rocks.database import Database
from refold.streams.snapshots.closed_entities import closings
from refold.streams.snapshots.dirty_entities import Touched
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.table import EpochState
from refold.streams.table import keys
from refold.streams.table.pinned import PinnedTable


class TableViews:
    """The tables of all partitions at the moment this is made, between two batches. `release` it.

    touched: what is known of the latest records.
    """

    def __init__(
        self, database: Database, registry: Registry, partitions: int, progress: Progress, touched: Touched
    ) -> None:
        self._database = database
        self._partitions = partitions
        self._progress = progress
        self._known = touched
        self._schemas = len(registry)
        self._types = registry.fingerprints()
        self._closing = closings(registry)
        self._states = database.pin("state")

    def each(self, partitions: Collection[int] | None) -> list[PinnedTable]:
        """A view of each partition that has records, or of those of some partitions."""
        return [
            PinnedTable(
                self._states,
                self._standing(partition, offset),
                self._partitions,
                partial(self._touched, partition, end=offset),
            )
            for partition, offset in self._progress.observations.items()
            if offset and (partitions is None or partition in partitions)
        ]

    def release(self) -> None:
        """Let go of them."""
        self._states.release()

    def _touched(self, partition: int, start: int, end: int) -> Mapping[bytes, bytes]:
        known = self._known.between(partition, start, end)
        return dict.fromkeys(map(placed, self._named(partition, start, end)), b"") if known is None else known

    def _named(self, partition: int, start: int, end: int) -> Iterator[str]:
        first, stop = keys.position_key(partition, start), keys.position_key(partition, end)
        names = (keys.record_entity(value) for _, value in self._database.scan("observations", first, stop))
        return filter(None, names)  # a hole is of none

    def _standing(self, partition: int, offset: int) -> EpochState:
        key = keys.position_key(partition, offset - 1)
        last = keys.record_of(key, self._database.get("observations", key) or b"")
        first, stop = keys.position_key(partition, 0), keys.position_key(partition + 1, 0)
        dead = self._database.last("deadletters", first, stop)
        return EpochState(
            epoch=Epoch(partition, offset, self._schemas),
            entities=self._progress.entities[partition],
            observations=self._progress.distinct[partition],
            recorded_at=last.recorded_at,
            deadletters=0 if dead is None else keys.deadletter_position(dead[0])[1] + 1,
            types=self._types,
            closing=self._closing,
        )
