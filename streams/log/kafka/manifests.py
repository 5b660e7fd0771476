"""The `.manifests` topic as one map for each partition: the last value of each key.

"epoch/", the epoch                 -> a manifest                      in the epoch's partition, as the next two
"pin/" or "tomb/", the epoch's key  -> streams/snapshots/store.py
"marker/", a marker's name          -> a marker, as every log has it     in partition 0
"quarantine/", a token              -> quarantine_records.py           in partition 0
"activation/", a token              -> activations.py                  in partition 0
"format/activations"                -> anything                        in partition 0: versions with code may be pending
"format/", what has another format  -> anything                        in partition 0: this release refuses the log

A record with another key, or whose marker, pin or tomb cannot be read, was not written by refold (foreign_records.py).
Such a value counts as no value for its key. A pin is the exception: an unreadable pin still keeps its epoch, because
without the pin the epoch would be removed. A manifest that cannot be read stays: readers fall back to the epoch before
it, and verify names it.

`refresh` reads each partition from the end of its last read up to the last stable offset, so records of an open or
aborted transaction are never seen. A tombstone (a null value) removes its key. Compaction keeps tombstones for a time
(Kafka's `delete.retention.ms`, a day) so that followers see them. A map that was not refreshed for FORGOTTEN_S is read
again from the beginning.

The map can be read while a refresh waits for a broker: a worker's pages answer during an outage.

A marker is as every log stores it (streams/log/stored_markers.py), with a header `refold-replace` if it may replace
another. Setting one, by any number of processes at once (`Markers.mark`):
1. read to the end; if another marker has the name and replace is not set, refuse;
2. write the marker and wait until it is durable: now it has an offset;
3. read past that offset. If replace is not set and another marker of the name was written in between, ours hides it:
   write the other one again, and refuse ours. (Compaction keeps only the last record of a key, so readers cannot let
   the first one win.) If several were written in between, the first counts, or the last one with replace: every process
   that writes it again writes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.quarantine import Ruling
from refold.streams.log.kafka.activations import ACTIVATION, FORMAT, Activation, activation_key, activation_of
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.quarantine_records import DECISION, Decision, decision_key, decision_of
from refold.streams.log.kafka.quarantine_records import FORMAT as ASIDE
from refold.streams.log.kafka.range_reader import Headers, LogReaders, RawRecord
from refold.streams.log.port import Marked
from refold.streams.log.stored_markers import MARKER, marked_of, marker_exists, marker_key, marker_value, oldest_first
from refold.streams.snapshots.manifest import KEY_BYTES, PREFIX, Epoch, epoch_of
from refold.streams.snapshots.store import PIN, PINNED_UNREADABLY, TOMB, Pin, pin_of, pin_value, tombstone_of

FORGOTTEN_S = 6 * 3_600.0
LATER = b"format/"
KNOWN = frozenset({FORMAT, ASIDE})
MARKERS = 0
"""The partition where markers, decisions and activations are."""


class ManifestMap:
    """Follows one log's `.manifests`.

    Args:
        clock_s: A monotonic clock, in seconds.
    """

    def __init__(
        self, topic: str, partitions: int, offsets: Offsets, reading: LogReaders, clock_s: Callable[[], float],
        foreign: ForeignRecords,
    ) -> None:  # fmt: skip
        self.partitions = partitions
        self._foreign = foreign
        self._topic = topic
        self._offsets = offsets
        self._reading = reading
        self._clock_s = clock_s
        self._refreshing = Lock()
        # A partition's map is replaced as a whole, so a reader sees the state after one refresh or after the next.
        self._values: list[dict[bytes, bytes]] = [{} for _ in range(partitions)]
        self._next = [0] * partitions
        self._read_at = [clock_s()] * partitions

    def refresh(self, partitions: Iterable[int] | None = None) -> None:
        """Read everything committed so far, in all partitions or in the given ones.

        Raises:
            StorageError: a newer release changed the log to a format that this release cannot read.
        """
        with self._refreshing:
            now = self._clock_s()
            asked = range(self.partitions) if partitions is None else partitions
            for place, end in self._offsets.ends(KafkaPartition(self._topic, each) for each in asked).items():
                self._read_on(place, end, is_anew=now - self._read_at[place.partition] > FORGOTTEN_S)
                self._read_at[place.partition] = now
            later = next((key for key in self._values[MARKERS] if key.startswith(LATER) and key not in KNOWN), None)
            if later is not None:
                raise StorageError(
                    f"{self._topic}: {later.decode(errors='replace')}: a newer release of refold changed this log to "
                    "a form that this release cannot read; use the newer one"
                )

    def _read_on(self, place: KafkaPartition, end: int, *, is_anew: bool) -> None:
        start = 0 if is_anew else self._next[place.partition]
        if start >= end and not is_anew:
            return
        values = {} if is_anew else {**self._values[place.partition]}
        for record in self._reading.records(place, start, end):
            key, value = record.key or b"", record.value
            if not is_entry(place.partition, key, value):
                self._foreign.count_skipped(place, record.offset)
                value = _instead(place.partition, key)
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        self._values[place.partition], self._next[place.partition] = values, end

    def get(self, partition: int, key: bytes) -> bytes | None:
        """Return a key's value as of the last refresh, or None."""
        return self._values[partition].get(key) if 0 <= partition < self.partitions else None

    def decision_of(self, token: bytes) -> Decision | Ruling | None:
        """Return an administrator's decision by its token; refreshes first if the token is unknown."""
        key = decision_key(token)
        if self.get(MARKERS, key) is None:
            self.refresh([MARKERS])
        value = self.get(MARKERS, key)
        return None if value is None else decision_of(key, value)

    def activated(self, token: bytes) -> Activation | None:
        """Return the activation with a token; refreshes first if the token is unknown."""
        key = activation_key(token)
        if self.get(MARKERS, key) is None:
            self.refresh([MARKERS])
        value = self.get(MARKERS, key)
        return None if value is None else activation_of(key, value)

    def scan(self, partition: int, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """Return (key, value) of the keys with a prefix, sorted by key."""
        return sorted(item for item in self._values[partition].items() if item[0].startswith(prefix))


def is_entry(partition: int, key: bytes, value: bytes | None) -> bool:
    """Whether refold wrote a record of `.manifests`.

    Args:
        partition: The record's partition.
        key: Its key, which must belong in that partition.
        value: Its value, which must be readable; None removes the key.
    """
    if key.startswith(MARKER):
        return partition == MARKERS and _is_read(lambda: marked_of(key, value or b""), value)
    if key.startswith(LATER):
        return partition == MARKERS
    if key.startswith(DECISION):  # a decision is never removed, so refold writes no tombstone for it
        return partition == MARKERS and value is not None and _is_read(lambda: decision_of(key, value), value)
    if key.startswith(ACTIVATION):
        return partition == MARKERS and value is not None and _is_read(lambda: activation_of(key, value), value)
    epoch = _epoch(partition, key)
    if epoch is None:
        return False
    if key.startswith(PREFIX):
        return True
    return _is_read(lambda: (pin_of if key.startswith(PIN) else tombstone_of)(epoch, value or b""), value)


def _is_read(read: Callable[[], object], value: bytes | None) -> bool:
    try:
        if value is not None:
            read()
    except CorruptionError:
        return False
    return True


def _instead(partition: int, key: bytes) -> bytes | None:
    """Return the value that replaces one that cannot be read, or None."""
    epoch = _epoch(partition, key)
    return pin_value(Pin(epoch, PINNED_UNREADABLY)) if epoch is not None and key.startswith(PIN) else None


def _epoch(partition: int, key: bytes) -> Epoch | None:
    """Return the epoch that the key of a manifest, pin or tomb names; None for any other key."""
    prefix = next((each for each in (PIN, TOMB) if key.startswith(each)), b"")
    name = key.removeprefix(prefix)
    if not name.startswith(PREFIX) or len(name) != KEY_BYTES:
        return None
    epoch = epoch_of(name)
    return epoch if epoch.partition == partition else None


REPLACE = "refold-replace"


class Markers:
    """The markers of one log, as of the manifests' last `refresh`."""

    def __init__(
        self, topic: str, manifests: ManifestMap, offsets: Offsets, reading: LogReaders
    ) -> None:  # fmt: skip
        self._place = KafkaPartition(topic, MARKERS)
        self._manifests = manifests
        self._offsets = offsets
        self._reading = reading

    def all(self) -> list[Marked]:
        """The markers, oldest first."""
        return oldest_first(self._manifests.scan(MARKERS, MARKER))

    def mark(self, marked: Marked, outgoing: LogProducer, *, replace: bool) -> None:
        """Store a marker, durable on return.

        Args:
            marked: Its name, cut and time.
            outgoing: The producer that writes it.
            replace: Whether it may replace another marker of that name.

        Raises:
            InputError: The name is taken and replace is False.
            StorageError: A transaction was open for too long: nobody knows yet which marker counts.
        """
        key, value = marker_key(marked.name), marker_value(marked)
        start = self._offsets.ends([self._place])[self._place]
        self._manifests.refresh([MARKERS])
        current = self._manifests.get(MARKERS, key)
        if not replace and current not in {None, value}:
            raise marker_exists(marked)
        offset = outgoing.write(self._marker_record(key, value, marked, replace=replace))
        for raw in self._between(start, offset):
            is_marker = raw.key == key and is_entry(MARKERS, key, raw.value)
            if is_marker and (current is None or raw.header(REPLACE) is not None):
                current = raw.value
        if not replace and current not in {None, value}:
            outgoing.write(self._marker_record(key, current, marked, replace=True))
            self._manifests.refresh([MARKERS])
            raise marker_exists(marked)
        self._manifests.refresh([MARKERS])

    def _marker_record(self, key: bytes, value: bytes | None, marked: Marked, *, replace: bool) -> OutgoingRecord:
        headers: Headers = [(REPLACE, b"")] if replace else []
        return OutgoingRecord(self._place, key, value, headers, f"the marker {marked.name!r}")

    def _between(self, start: int, offset: int) -> list[RawRecord]:
        """The records before an offset, once the record at the offset is visible."""
        self._offsets.wait_past(
            self._place, offset,
            "an epoch is being sealed, or a process that ended has a transaction open; read the markers again later",
        )  # fmt: skip
        return list(self._reading.records(self._place, start, offset))
