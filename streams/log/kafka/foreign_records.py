"""Counts the records in a log's topics that refold did not write, which every reader skips.

docs/FORMAT.md ("Records of others") defines for each topic which records are refold's. Each reader applies the rule of
its topic and reports the other records here. Readers may read a record again, so offsets are stored, up to COUNTED_MAX
for each topic; beyond that the count is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock

from refold.avro.errors import CorruptionError
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.range_reader import LogReaders, RawRecord
from refold.streams.log.port import Foreign, Position

COUNTED_MAX = 100_000


class ForeignRecords:
    """Counts the foreign records that one process read. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._met: dict[str, set[Position]] = {}
        self._first: dict[str, Position] = {}

    def count_skipped(self, place: KafkaPartition, offset: int) -> None:
        """Report a skipped record."""
        with self._lock:
            met, at = self._met.setdefault(place.topic, set()), Position(place.partition, offset)
            if len(met) < COUNTED_MAX:
                met.add(at)
                self._first[place.topic] = min(at, self._first.get(place.topic, at))

    def found(
        self, rules: Mapping[str, Callable[[RawRecord], bool]], partitions: int, offsets: Offsets, reading: LogReaders,
        last: int | None,
    ) -> list[Foreign]:  # fmt: skip
        """Apply the rules to each partition's last offsets, and return the counts by topic.

        Args:
            last: The number of offsets; None: all.
        """
        if last != 0:  # 0: make no request
            places = [KafkaPartition(topic, each) for topic in rules for each in range(partitions)]
            for place, end in offsets.ends(places).items():
                # Records after an unreadable batch are not counted; a reader that needs the batch raises an error.
                with suppress(CorruptionError):
                    for raw in reading.records(place, 0 if last is None else max(0, end - last), end):
                        if not rules[place.topic](raw):
                            self.count_skipped(place, raw.offset)
        with self._lock:
            return [Foreign(topic, len(met), self._first[topic]) for topic, met in sorted(self._met.items())]
