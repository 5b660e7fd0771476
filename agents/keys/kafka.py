"""A key ring in a topic beside the log's own, wrapped by a master key: for all who have the log on Kafka.

`PREFIX.keys`: one partition, compacted. A record's key is CBOR [key id, 8 random bytes], its value the wrapped key
(master.py), or nothing once it was destroyed. Of several under one id the one at the lowest offset counts, which
compaction leaves as it is: each has a record key of its own.

Making a key, by any number of processes at once:
1. Read to the end. Where a key of the id stands, it counts.
2. Write one, and wait until it is durable.
3. Read on past it. Another may have come before it: then that one counts, and ours is taken back.

Destroying one:
1. Read to the end.
2. Write nothing over each record of the id, over the one that counts last: until then the key is there as it was, and
   whoever was killed in between is repeated by the next who destroys it.

Who follows the topic sees it at the next `refresh`, which `get` makes by itself once what it knows is REFRESH_S old.

Where a batch of the topic cannot be read, whoever reads the ring gets an error that names it, until an administrator
sets it aside (streams/log/kafka/damaged.py). It may have held the record that destroyed a key. So a key that counts by
a record before the batch is not used any more: `get` and `create` raise KeyUnreadable, and `destroy` destroys it. No
record says so, and such keys can be used again once the batch was restored and taken back.

When the bytes of a destroyed key, which are wrapped, are gone from the brokers' disks:
1. The segment with the record that destroyed it is closed. A broker closes one that is `segment.ms` (an hour) old when
   the next record is written, and never by itself: where nobody makes a key, `settle` writes a record. Its key is CBOR
   ["", empty bytes] and it has no value, so it is no key, and compaction drops it.
2. The brokers compact the closed segments, within minutes (`max.compaction.lag.ms`, `min.cleanable.dirty.ratio`).
3. They delete the files of the old segments, `file.delete.delay.ms` (a minute) later.
`remaining` counts what is before step 2.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from threading import RLock
from typing import NamedTuple

import cbor2

from refold.agents.keys.master import MasterKeys
from refold.agents.keys.ring import Damage, new_key
from refold.avro.canonical import encode
from refold.avro.errors import KeyUnreadable
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.damaged import UnreadableBatches
from refold.streams.log.kafka.manifests import FORGOTTEN_S
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.producer import LogProducer, Sent
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


class _Held(NamedTuple):
    offset: int
    wrapped: bytes


class KafkaKeyRing:
    """Keys in a topic; see KeyRing. clock_s: seconds that only grow."""

    def __init__(
        self, address: Address, clients: Clients, masters: MasterKeys, timeout_s: float, *,
        make: Callable[[], bytes] = new_key, clock_s: Callable[[], float] = time.monotonic,
        unreadable: UnreadableBatches | None = None,
    ) -> None:  # fmt: skip
        """unreadable: knows what is set aside in the log. InputError where the keys that are there need another master
        key; DamagedRecord where a batch of them cannot be read."""
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
        # By id, each record's key with its offset and value: the first counts.
        self._held: dict[str, dict[bytes, _Held]] = {}
        try:
            self.refresh()
            for key_id, held in self._held.items():
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
            while key_id not in self._held:  # again, where it is destroyed at this very moment
                self._is_there = self._topics.beside(self._topic, _NEEDED, _EXTRA, self._address, make=True)
                ours = encode([key_id, secrets.token_bytes(8)])
                offset = self._write(ours, self._masters.wrap(key_id, self._make()), key_id)
                self._offsets.wait_past(self._partition, offset, "whoever writes there has a transaction open")
                self.refresh()
                if next(iter(self._held.get(key_id, {ours: b""}))) != ours:
                    self._write(ours, None, key_id)
            return self._key(key_id)

    def get(self, key_id: str) -> bytes | None:
        """As KeyRing, of what was there REFRESH_S ago or later."""
        with self._lock:
            if key_id not in self._held or self._clock_s() - self._read_at > REFRESH_S:
                self.refresh()
            return self._key(key_id) if key_id in self._held else None

    def destroy(self, key_id: str) -> None:
        """As KeyRing."""
        with self._lock:
            self.refresh()
            # The one that counts goes last: else one that never did would count, should this process die in between.
            for record_key in [*self._held.get(key_id, ())][::-1]:
                self._write(record_key, None, key_id)
            self.refresh()

    def ids(self) -> list[str]:
        """As KeyRing."""
        with self._lock:
            return sorted(self._held)

    def damaged(self, key_ids: Iterable[str]) -> list[Damage]:
        """As KeyRing."""
        found: list[Damage] = []
        with self._lock:
            for key_id in sorted(self._held):
                try:
                    self._key(key_id)
                except KeyUnreadable as error:
                    found.append(Damage(key_id, str(error)))
        return found

    def remaining(self) -> int:
        """As KeyRing: records of keys that a later one destroyed, as long as the brokers give them out."""
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

    def settle(self) -> None:
        """As KeyRing: write one record, so that a segment whose time is over is closed, and compacted."""
        with self._lock:
            self._is_there = self._topics.beside(self._topic, _NEEDED, _EXTRA, self._address, make=False)
            if self._is_there:
                self._write(_CLOSING, None, "the record that closes a segment")

    def refresh(self) -> None:
        """As KeyRing."""
        with self._lock:
            now = self._clock_s()
            if now - self._read_at > FORGOTTEN_S:
                self._held, self._next = {}, 0
            if not self._is_there:
                self._is_there = self._topics.beside(self._topic, _NEEDED, _EXTRA, self._address, make=False)
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
    def _partition(self) -> TopicPlace:
        return TopicPlace(self._topic, 0)

    def _take(self, record_key: bytes, offset: int, value: bytes | None) -> None:
        try:
            key_id = str(cbor2.loads(record_key)[0])
        except Exception:  # cbor2 raises whatever comes of odd bytes; no ring wrote this
            return
        if value is not None:
            self._held.setdefault(key_id, {}).setdefault(record_key, _Held(offset, value))
        elif key_id in self._held:
            self._held[key_id].pop(record_key, None)
            if not self._held[key_id]:
                del self._held[key_id]

    def _key(self, key_id: str) -> bytes:
        held = next(iter(self._held[key_id].values()))
        left_out_to = 0 if self._unreadable is None else self._unreadable.left_out_to(self._partition)
        if held.offset < left_out_to:
            raise KeyUnreadable(
                f"{self.place}: the key {key_id} is not used: a damaged batch before offset {left_out_to} is set "
                "aside, and may have destroyed it; restore the brokers' data, then: refold quarantine remove "
                f"{self._topic}/0/{left_out_to - 1}"
            )
        return self._masters.unwrap(key_id, held.wrapped, self.place)

    def _write(self, record_key: bytes, value: bytes | None, key_id: str) -> int:
        return self._outgoing.write(Sent(self._partition, record_key, value, [], f"the key {key_id}"))
