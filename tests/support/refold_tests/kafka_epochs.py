"""Epochs of a log on Kafka without a worker. Each partition's table is a full replay."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Self

from refold.streams.cut import Cut
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import ManifestMap
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.snapshots import KafkaSnapshotStore
from refold.streams.partitioner import placed
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.closed_entities import closings
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import DEFAULT_SETTINGS, SnapshotSettings
from refold.streams.snapshots.table import EpochState
from refold_tests.sealing import View

TIMEOUT_S = 30.0


class ReplayedTable(View):
    """One partition's table at the log's end."""

    def __init__(self, log: KafkaLog, partition: int) -> None:
        end, schemas = log.ends()[partition], len(log.registry)
        cut = Cut(log.log_id, {partition: end}, schemas, log.registry.digest(schemas))
        part = rebuild(log, cut, full=True).parts[partition]
        self._log = log
        epoch_state = EpochState(
            epoch=Epoch(partition, end, schemas),
            entities=part.entities,
            observations=part.observations,
            recorded_at=log.recorded_below(partition, end),
            deadletters=0,
            types=log.registry.fingerprints(),
            closing=closings(log.registry),
        )
        super().__init__(epoch_state, dict(part.layers.rows()), [])

    def touched(self, start: int) -> Mapping[bytes, bytes]:
        partition, end, _ = self.epoch_state.epoch
        return dict.fromkeys((placed(record.entity) for record in self._log.read(partition, start, end)), b"")


class Sealing:
    """Seals epochs at the log's end, instead of its workers."""

    def __init__(
        self, log: KafkaLog, made: type[KafkaSnapshotStore] = KafkaSnapshotStore,
        settings: SnapshotSettings = DEFAULT_SETTINGS,
    ) -> None:  # fmt: skip
        self._log = log
        self._uncommitted = LogReaders(log.clients, TIMEOUT_S, committed=False)
        manifests = ManifestMap(
            log.topics.manifests, log.partitions, log.offsets, log.reading, time.monotonic, ForeignRecords()
        )
        self.store = made(log.clients, log.topics, manifests, log.offsets, log.reading, self._uncommitted)
        self._sealer = Sealer(self.store, log.log_id, log.partitions, settings=settings)

    def seal(self, made: type[ReplayedTable] = ReplayedTable) -> Sequence[Epoch]:
        """Seal an epoch of each partition that has records."""
        partitions = [partition for partition, end in self._log.ends().items() if end]
        return [self._sealer.seal(made(self._log, each)).epoch for each in partitions]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()
        self._uncommitted.close()


class Flipping(KafkaSnapshotStore):
    """Changes one bit of every record, so that it differs from the manifest."""

    is_flipping = False

    def append(self, partition: int, data: bytes) -> None:
        if self.is_flipping:
            data = (
                bytes((data[0] ^ 1,)) + data[1:] if len(data) < 50 else data[:49] + bytes((data[49] ^ 4,)) + data[50:]
            )
        super().append(partition, data)
