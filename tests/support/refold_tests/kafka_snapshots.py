"""Snapshot stores on a broker, without a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.manifests import ManifestMap
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.snapshots import KafkaSnapshotReader, KafkaSnapshotStore
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.transactions import TRANSACTION_TIMEOUT_MS

TIMEOUT_S = 30.0


def make_topics(config: Mapping[str, str], prefix: str, partitions: int, settings: Mapping[str, str] = {}) -> None:
    """Create the two topics in which snapshots are stored, compacted."""
    topics = Topics(prefix)
    named = {"cleanup.policy": "compact", **settings}
    new = [NewTopic(name, partitions, config=dict(named)) for name in (topics.snapshots, topics.manifests)]
    admin = AdminClient(dict(config))
    for done in admin.create_topics(new).values():
        done.result()
    for name in (topics.snapshots, topics.manifests):
        while not _is_led(admin, name, partitions):
            time.sleep(0.01)


def _is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    """Return whether a new topic is ready. It is not available at once."""
    found = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
    return len(found) == partitions and all(each.leader >= 0 for each in found.values())


class Connection:
    """Stores and readers of one log's snapshots. They are closed at the end of the block."""

    def __init__(self, config: Mapping[str, str], prefix: str, partitions: int) -> None:
        self.topics = Topics(prefix)
        self._clients = Clients(config, prefix)
        self._partitions = partitions
        self._offsets = Offsets(self._clients.admin(), TIMEOUT_S)
        self._reading = LogReaders(self._clients, TIMEOUT_S)
        self._uncommitted = LogReaders(self._clients, TIMEOUT_S, committed=False)
        self._stores: list[KafkaSnapshotStore] = []

    def store(
        self, made: type[KafkaSnapshotStore] = KafkaSnapshotStore, *,
        owns: Callable[[int], bool] = lambda partition: True, transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS,
    ) -> KafkaSnapshotStore:  # fmt: skip
        """Return a store that writes, as another process would."""
        found = made(
            self._clients, self.topics, self._map(), self._offsets, self._reading, self._uncommitted, owns=owns,
            transaction_timeout_ms=transaction_timeout_ms,
        )  # fmt: skip
        found.refresh()
        self._stores.append(found)
        return found

    def reader(self) -> KafkaSnapshotReader:
        """Return a reader of what is committed by now."""
        found = KafkaSnapshotReader(self.topics, self._map(), self._offsets, self._reading)
        found.refresh()
        return found

    def ends(self, *, committed: bool) -> list[int]:
        """Return the ends of `.snapshots` and then of `.manifests`, partition by partition."""
        both = self.topics.snapshots, self.topics.manifests
        places = [KafkaPartition(topic, number) for topic in both for number in range(self._partitions)]
        found = self._offsets.ends(places, committed=committed)
        return [found[place] for place in places]

    def stored(
        self, topic: str, partition: int, *, committed: bool = True
    ) -> dict[int, tuple[bytes | None, bytes | None]]:
        """Return key and value of every existing record, by offset. committed=False includes records never
        committed.
        """
        place = KafkaPartition(topic, partition)
        end = self._offsets.ends([place], committed=committed)[place]
        reading = self._reading if committed else self._uncommitted
        return {each.offset: (each.key, each.value) for each in reading.records(place, 0, end)}

    def write(self, topic: str, partition: int, key: bytes, value: bytes | None) -> None:
        """Write an illegal record, which no store wrote. It is durable on return."""
        producer = self._clients.producer()
        producer.produce(topic, value, key, partition)
        assert producer.flush(TIMEOUT_S) == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._stores:
            store.close()
        for reading in (self._uncommitted, self._reading):
            reading.close()

    def _map(self) -> ManifestMap:
        return ManifestMap(
            self.topics.manifests, self._partitions, self._offsets, self._reading, time.monotonic, ForeignRecords()
        )
