"""A key ring in a topic next to the log's own, wrapped by a master key: for all who share a log on Kafka.

`PREFIX.keys`: one partition, compacted. A record's key is CBOR [key id, 8 random bytes]. Its value is the wrapped key
(master.py), or null once the key is destroyed. If an id has several records, the one at the lowest offset is valid.
Compaction preserves this, because each has a record key of its own.

Creating a key, in any number of processes at once:
1. Read to the end. If there is a key of the id, it is valid.
2. Write one, and wait until it is durable.
3. Read on past it. Another may have been written before it: then that one is valid, and ours is deleted.

Destroying a key:
1. Read to the end.
2. Write null over each record of the id, over the valid one last. Until then the key stays as it was, and if the
   process is killed in between, the next `destroy` repeats the step.

Other processes see a change at their next `refresh`. `get` refreshes by itself once its data is REFRESH_S old.

If a batch of the topic cannot be read, reading the ring raises an error that names it, until an administrator sets the
batch aside (streams/log/kafka/damaged.py). The batch may have held the record that destroyed a key. So a key whose
valid record is before the batch is not used any more: `get` and `create` raise KeyUnreadable, and `destroy` destroys
it. No record states this, and such keys can be used again once the batch is restored and taken back.

When the (wrapped) bytes of a destroyed key are gone from the brokers' disks:
1. The segment with the record that destroyed it is closed. A broker closes a segment that is `segment.ms` (an hour) old
   when the next record is written, and never by itself. If nobody creates a key, `erase_removed` writes a record. Its
   key is CBOR ["", empty bytes] and it has no value, so it is not a key, and compaction drops it.
2. The brokers compact the closed segments, within minutes (`max.compaction.lag.ms`, `min.cleanable.dirty.ratio`).
3. They delete the files of the old segments, `file.delete.delay.ms` (a minute) later.
`remaining` counts the keys for which step 2 has not happened.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple

import cbor2

from refold.agents.keys.master import MasterKeys
from refold.agents.keys.ring import KeyDamage, new_key
from refold.avro.canonical import encode
from refold.avro.errors import KeyUnreadable
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.manifests import FORGOTTEN_S
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.range_reader import LogReaders
from refold.streams.log.kafka.topics import TopicAdmin, Topics
from refold.streams.log.kafka.url import Address

REFRESH_S = 60.0
_NEEDED = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}
_CLOSING = encode(["", b""])
_HOUR_MS = str(3600 * 1000)
_EXTRA = {
    "segment.ms": _HOUR_MS, "segment.bytes": str(16 << 20), "max.compaction.lag.ms": _HOUR_MS,
    "min.cleanable.dirty.ratio": "0.1",
}  # fmt: skip


class _KeyRecord(NamedTuple):
    offset: int
    wrapped: bytes


class KafkaKeyRing:
    """Keys in a topic; see KeyRing.

    Args:
        clock_s: Returns the time of a monotonic clock, in seconds.
    """

    def __init__(
        self, address: Address, clients: Clients, masters: MasterKeys, timeout_s: float, *,
        make: Callable[[], bytes] = new_key, clock_s: Callable[[], float] = time.monotonic,
        unreadable: UnreadableBatches | None = None,
    ) -> None:  # fmt: skip
        """Open the ring and read its keys.

        Args:
            address: The log's address.
            clients: Creates the Kafka clients.
            masters: The master keys.
            timeout_s: How long each operation may take, seconds.
            make: Creates a new key.
            clock_s: Returns monotonic seconds.
            unreadable: The batches that are set aside in the log.

        Raises:
            InputError: The existing keys need another master key.
            DamagedRecord: A batch of the topic cannot be read.
        """
        self._topic = Topics(address.prefix).keys
        self.place = f"the topic {self._topic}"
        self._address = address
        self._masters = masters
        self._make = make
        self._clock_s = clock_s
        admin = clients.admin()
        self._topics = TopicAdmin(admin, timeout_s, clients)
        self._offsets = Offsets(admin, timeout_s, clients.admin)
        self._unreadable = unreadable
        self._reading = LogReaders(clients, timeout_s, unreadable=unreadable)
        self._outgoing = LogProducer(clients)
        self._lock = RLock()
        self._is_there = False
        self._next = 0
        self._read_at = clock_s()
        # By id, each record's key with its offset and value; the first is valid.
        self._records: dict[str, dict[bytes, _KeyRecord]] = {}
        try:
            self.refresh()
            for key_id, held in self._records.items():
                for _, wrapped in held.values():
                    if masters.is_wrapped(wrapped) and not masters.is_of(wrapped):
                        raise masters.missing(key_id, wrapped, self.place)
        except BaseException:
            self.close()
            raise

    def create(self, key_id: str) -> bytes:
        """As KeyRing."""
        with self._lock:
            self.refresh()
            while key_id not in self._records:  # repeated if another process destroys it at this moment
                self._is_there = self._topics.has_extra_topic(self._topic, _NEEDED, _EXTRA, self._address, make=True)
                ours = encode([key_id, secrets.token_bytes(8)])
                offset = self._write(ours, self._masters.wrap(key_id, self._make()), key_id)
                self._offsets.wait_past(self._partition, offset, "whoever writes there has a transaction open")
                self.refresh()
                if next(iter(self._records.get(key_id, {ours: b""}))) != ours:
                    self._write(ours, None, key_id)
            return self._key(key_id)

    def get(self, key_id: str) -> bytes | None:
        """As KeyRing; the result may be up to REFRESH_S old."""
        with self._lock:
            if key_id not in self._records or self._clock_s() - self._read_at > REFRESH_S:
                self.refresh()
            return self._key(key_id) if key_id in self._records else None

    def destroy(self, key_id: str) -> None:
        """As KeyRing."""
        with self._lock:
            self.refresh()
            # The valid one goes last; else another would become valid if this process died in between.
            for record_key in [*self._records.get(key_id, ())][::-1]:
                self._write(record_key, None, key_id)
            self.refresh()

    def ids(self) -> list[str]:
        """As KeyRing."""
        with self._lock:
            return sorted(self._records)

    def damaged(self, key_ids: Iterable[str]) -> list[KeyDamage]:
        """As KeyRing."""
        found: list[KeyDamage] = []
        with self._lock:
            for key_id in sorted(self._records):
                try:
                    self._key(key_id)
                except KeyUnreadable as error:
                    found.append(KeyDamage(key_id, str(error)))
        return found

    def remaining(self) -> int:
        """As KeyRing: the records of destroyed keys that the brokers still return."""
        with self._lock:
            self.refresh()
            if not self._is_there:
                return 0
            end = self._offsets.ends([self._partition])[self._partition]
            stored: set[bytes] = set()
            gone: set[bytes] = set()
            for raw in self._reading.records(self._partition, 0, end):
                (gone if raw.value is None else stored).add(raw.key or b"")
            return len(stored & gone)

    def erase_removed(self) -> None:
        """As KeyRing: write one record, so that a segment past its age is closed and compacted."""
        with self._lock:
            self._is_there = self._topics.has_extra_topic(self._topic, _NEEDED, _EXTRA, self._address, make=False)
            if self._is_there:
                self._write(_CLOSING, None, "the record that closes a segment")

    def refresh(self) -> None:
        """As KeyRing."""
        with self._lock:
            now = self._clock_s()
            if now - self._read_at > FORGOTTEN_S:
                self._records, self._next = {}, 0
            if not self._is_there:
                self._is_there = self._topics.has_extra_topic(self._topic, _NEEDED, _EXTRA, self._address, make=False)
            if self._is_there:
                end = self._offsets.ends([self._partition])[self._partition]
                for raw in self._reading.records(self._partition, self._next, end):
                    self._take(raw.key or b"", raw.offset, raw.value)
                self._next = max(end, self._next)
            self._read_at = now

    def close(self) -> None:
        """As KeyRing."""
        self._outgoing.close()
        self._reading.close()

    @property
    def _partition(self) -> KafkaPartition:
        return KafkaPartition(self._topic, 0)

    def _take(self, record_key: bytes, offset: int, value: bytes | None) -> None:
        try:
            key_id = str(cbor2.loads(record_key)[0])
        except Exception:  # cbor2 raises various errors for invalid bytes; no key ring wrote this record
            return
        if value is not None:
            self._records.setdefault(key_id, {}).setdefault(record_key, _KeyRecord(offset, value))
        elif key_id in self._records:
            self._records[key_id].pop(record_key, None)
            if not self._records[key_id]:
                del self._records[key_id]

    def _key(self, key_id: str) -> bytes:
        held = next(iter(self._records[key_id].values()))
        left_out_to = 0 if self._unreadable is None else self._unreadable.left_out_to(self._partition)
        if held.offset < left_out_to:
            raise KeyUnreadable(
                f"{self.place}: the key {key_id} is not used: a damaged batch before offset {left_out_to} is set "
                "aside, and may have destroyed it; restore the brokers' data, then: refold quarantine remove "
                f"{self._topic}/0/{left_out_to - 1}"
            )
        return self._masters.unwrap(key_id, held.wrapped, self.place)

    def _write(self, record_key: bytes, value: bytes | None, key_id: str) -> int:
        return self._outgoing.write(OutgoingRecord(self._partition, record_key, value, [], f"the key {key_id}"))
