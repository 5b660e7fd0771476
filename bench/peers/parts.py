"""What a worker's own libraries cost: the calls of confluent-kafka and rocksdict that a worker makes, without refold.

parts.py KIND BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS

1. Fetch as the worker's fetcher does.
2. For each partition of a batch read the entities' states at once, then write one batch to its database, with the
   worker's options: for each record its rows of timeline, arrivals and ids, for each entity a state.
3. Produce a change for each entity, in a transaction with the offsets, committed every COMMIT_MS.

The rows and changes have the number and the sizes of a worker's on the uniform workload (SIZES); their bytes are those
of the records, repeated. Nothing is decoded, checked, folded or sealed. A worker is at best as fast as this.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from rocksdict import Rdict, WriteBatch

from refold.streams import runtime
from refold.streams.partitioner import all_placed
from refold.streams.rocks.families import Memory, owner_options

# (bytes of a key beside the entity's, bytes of a value): the averages of 100,000 observations of 20,000 entities.
TIMELINE, ARRIVAL, ID = (61, 155), (9, 69), (18, 0)
STATE_BYTES, CHANGE_BYTES = 421, 281
FETCHED_AT_ONCE = 10_000
# As streams/worker/fetcher.py and streams/log/kafka/clients.py.
READER = {
    "isolation.level": "read_committed", "enable.auto.commit": False, "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100, "fetch.message.max.bytes": 1 << 20, "fetch.max.bytes": 2 << 20,
    "queued.max.messages.kbytes": 4 << 10,
}  # fmt: skip
WRITER = {"enable.idempotence": True, "acks": "all", "compression.type": "lz4", "linger.ms": 5}


class Table:
    """The database of one partition."""

    def __init__(self, folder: Path, memory: Memory) -> None:
        options, families = owner_options(create=True, memory=memory)
        folder.mkdir(parents=True)
        self._raw = Rdict(str(folder), options=options, column_families=families)
        self._columns = {name: self._raw.get_column_family(name) for name in families}
        self._handles = {name: self._raw.get_column_family_handle(name) for name in families}

    def write(self, records: list[tuple[str, int, bytes]]) -> dict[str, bytes]:
        """Write the rows of records, given as (entity, offset, value); returns each entity's last value."""
        last = {entity: value for entity, _, value in records}
        places = all_placed(list(last))
        self._columns["state"].get(places)
        batch = WriteBatch(raw_mode=True)
        put = batch.put
        for family, (key_bytes, value_bytes) in (("timeline", TIMELINE), ("arrivals", ARRIVAL)):
            handle = self._handles[family]
            for entity, offset, value in records:
                put(entity.encode() + offset.to_bytes(8, "big") + value[: key_bytes - 8], value[:value_bytes], handle)
        handle = self._handles["ids"]
        for _, offset, value in records:
            put(value[-ID[0] + 8 :] + offset.to_bytes(8, "big"), b"", handle)
        handle = self._handles["state"]
        for key, value in sorted(zip(places, last.values(), strict=True)):
            put(key, sized(value, STATE_BYTES), handle)
        self._raw.write(batch)
        return last


def sized(value: bytes, size: int) -> bytes:
    """Return bytes of this size that begin with a value."""
    return (value * (size // len(value) + 1))[:size]


def main(_kind: str, bootstrap: str, topic: str, changes: str, group: str, folder: str, _schema: str, ms: str) -> None:
    """Run until SIGTERM."""
    runtime.limit_freed_memory()
    commit_s = int(ms) / 1000
    common = {"bootstrap.servers": bootstrap}
    consumer = Consumer({**common, **READER, "group.id": group})
    producer = Producer({**common, **WRITER, "transactional.id": group})
    producer.init_transactions()
    partitions = consumer.list_topics(topic).topics[topic].partitions
    memory = Memory(len(partitions))
    tables = {each: Table(Path(folder) / str(each), memory) for each in partitions}
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    consumer.subscribe([topic])
    begun_at, ends = 0.0, dict[int, int]()
    with runtime.tune_garbage_collector():
        while not ending:
            by_partition: dict[int, list[tuple[str, int, bytes]]] = {}
            for message in consumer.consume(FETCHED_AT_ONCE, commit_s):
                records = by_partition.setdefault(message.partition() or 0, [])
                records.append(((message.key() or b"").decode(), message.offset() or 0, message.value() or b""))
            if by_partition and not ends:
                producer.begin_transaction()
                begun_at = time.monotonic()
            for partition, records in by_partition.items():
                for entity, value in tables[partition].write(records).items():
                    producer.produce(changes, sized(value, CHANGE_BYTES), entity, partition)
                ends[partition] = records[-1][1] + 1
            producer.poll(0)
            if ends and time.monotonic() - begun_at >= commit_s:
                offsets = [TopicPartition(topic, partition, end) for partition, end in ends.items()]
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
                producer.commit_transaction()
                ends.clear()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
