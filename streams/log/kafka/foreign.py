"""Records in a log's topics that refold did not write: every reader passes over them, and they are counted here.

What makes a record refold's own is stated topic by topic in docs/FORMAT.md ("Records of others"). Each reader applies
the rule of its topic and reports here what the rule leaves out. Readers may read a record again, so offsets are
remembered, up to COUNTED_MAX a topic: beyond that the count is a lower bound.
"""

from __future__ import annotations

from threading import Lock

from refold.streams.log.kafka.offsets import Place
from refold.streams.log.port import Foreign, Position

COUNTED_MAX = 100_000


class ForeignRecords:
    """Counts the foreign records that one process met. For several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._met: dict[str, set[Position]] = {}

    def saw(self, place: Place, offset: int) -> None:
        """A record was passed over."""
        with self._lock:
            met = self._met.setdefault(place.topic, set())
            if len(met) < COUNTED_MAX:
                met.add(Position(place.partition, offset))

    def found(self) -> list[Foreign]:
        """How many were met, by topic."""
        with self._lock:
            return [Foreign(topic, len(met), min(met)) for topic, met in sorted(self._met.items())]
