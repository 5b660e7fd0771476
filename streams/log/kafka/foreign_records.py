"""Records in a log's topics that refold did not write: every reader passes over them, and they are counted here.

What makes a record refold's own is stated topic by topic in docs/FORMAT.md ("Records of others"). Each reader applies
the rule of its topic and reports here what the rule leaves out. Readers may read a record again, so offsets are
remembered, up to COUNTED_MAX a topic: beyond that the count is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock

from refold.avro.errors import CorruptionError
from refold.streams.log.kafka.offsets import Offsets, TopicPlace
from refold.streams.log.kafka.range_reader import LogReaders, Raw
from refold.streams.log.port import Foreign, Position

COUNTED_MAX = 100_000


class ForeignRecords:
    """Counts the foreign records that one process met. For several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._met: dict[str, set[Position]] = {}
        self._first: dict[str, Position] = {}

    def saw(self, place: TopicPlace, offset: int) -> None:
        """A record was passed over."""
        with self._lock:
            met, at = self._met.setdefault(place.topic, set()), Position(place.partition, offset)
            if len(met) < COUNTED_MAX:
                met.add(at)
                self._first[place.topic] = min(at, self._first.get(place.topic, at))

    def found(
        self, rules: Mapping[str, Callable[[Raw], bool]], partitions: int, offsets: Offsets, reading: LogReaders,
        last: int | None,
    ) -> list[Foreign]:  # fmt: skip
        """How many were met, by topic, once rules by topic were applied to each partition's last offsets.

        last: to so many of them; None: to all.
        """
        if last != 0:  # else no broker is asked
            places = [TopicPlace(topic, each) for topic in rules for each in range(partitions)]
            for place, end in offsets.ends(places).items():
                # After a batch that cannot be read nothing is counted; a reader that needs it says so.
                with suppress(CorruptionError):
                    for raw in reading.records(place, 0 if last is None else max(0, end - last), end):
                        if not rules[place.topic](raw):
                            self.saw(place, raw.offset)
        with self._lock:
            return [Foreign(topic, len(met), self._first[topic]) for topic, met in sorted(self._met.items())]
