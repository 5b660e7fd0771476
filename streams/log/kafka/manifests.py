"""The `.manifests` topic as a map, partition by partition: its last value of each key.

"epoch/", the epoch                 -> a manifest                      in the epoch's partition, as the next two
"pin/" or "tomb/", the epoch's key  -> streams/snapshots/stored.py
"marker/", a marker's name          -> a marker                        in partition 0

`refresh` reads each partition from where it read to before up to the last stable offset, so nothing of a transaction
that is open or was aborted shows. A value of nothing removes its key. Compaction keeps those for a time (Kafka's
`delete.retention.ms`, a day) so that who follows sees them: who did not for FORGOTTEN_S reads everything again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock

from refold.streams.log.kafka.offsets import Offsets, Place
from refold.streams.log.kafka.reading import Reading

FORGOTTEN_S = 6 * 3_600.0


class ManifestMap:
    """Follows one log's `.manifests`. clock_s: seconds that only grow."""

    def __init__(
        self, topic: str, partitions: int, offsets: Offsets, reading: Reading, clock_s: Callable[[], float]
    ) -> None:
        self.partitions = partitions
        self._topic = topic
        self._offsets = offsets
        self._reading = reading
        self._clock_s = clock_s
        self._lock = Lock()
        self._values: list[dict[bytes, bytes]] = [{} for _ in range(partitions)]
        self._next = [0] * partitions
        self._read_at = [clock_s()] * partitions

    def refresh(self, partitions: Iterable[int] | None = None) -> None:
        """See what was committed by now, in all partitions or in some."""
        with self._lock:
            now = self._clock_s()
            asked = range(self.partitions) if partitions is None else partitions
            for place, end in self._offsets.ends(Place(self._topic, each) for each in asked).items():
                if now - self._read_at[place.partition] > FORGOTTEN_S:
                    self._values[place.partition], self._next[place.partition] = {}, 0
                self._read_on(place, end)
                self._read_at[place.partition] = now

    def _read_on(self, place: Place, end: int) -> None:
        values, start = self._values[place.partition], self._next[place.partition]
        if start >= end:
            return
        for record in self._reading.records(place, start, end):
            if record.key is not None and record.value is None:
                values.pop(record.key, None)
            elif record.key is not None and record.value is not None:
                values[record.key] = record.value
            self._next[place.partition] = record.offset + 1
        self._next[place.partition] = end

    def get(self, partition: int, key: bytes) -> bytes | None:
        """A key's value as it was last seen."""
        with self._lock:
            return self._values[partition].get(key) if 0 <= partition < self.partitions else None

    def scan(self, partition: int, prefix: bytes) -> list[tuple[bytes, bytes]]:
        """(key, value) of the keys that begin so, in their order."""
        with self._lock:
            return sorted(item for item in self._values[partition].items() if item[0].startswith(prefix))
