"""Markers in partition 0 of `.manifests`, as every log stores them (streams/log/stored_markers.py), with a header
`refold-replace` if one may replace another.

Setting one, by any number of processes at once:
1. read to the end; if another marker has the name and replace is not set, refuse;
2. write the marker and wait until it is durable: now it has an offset;
3. read past that offset. If replace is not set and another marker of the name was written in between, ours hides it:
   write the other one again, and refuse ours. (Compaction keeps only the last record of a key, so readers cannot let
   the first one win.) If several were written in between, the first counts, or the last one with replace: every process
   that writes it again writes the same.
"""

from __future__ import annotations

from refold.streams.log.kafka.manifests import MARKERS, ManifestMap, is_entry
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.range_reader import Headers, LogReaders, RawRecord
from refold.streams.log.port import Marked
from refold.streams.log.stored_markers import MARKER, marker_exists, marker_key, marker_value, oldest_first

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
        offset = outgoing.write(self._sent(key, value, marked, replace=replace))
        for raw in self._between(start, offset):
            is_marker = raw.key == key and is_entry(MARKERS, key, raw.value)
            if is_marker and (current is None or raw.header(REPLACE) is not None):
                current = raw.value
        if not replace and current not in {None, value}:
            outgoing.write(self._sent(key, current, marked, replace=True))
            self._manifests.refresh([MARKERS])
            raise marker_exists(marked)
        self._manifests.refresh([MARKERS])

    def _sent(self, key: bytes, value: bytes | None, marked: Marked, *, replace: bool) -> OutgoingRecord:
        headers: Headers = [(REPLACE, b"")] if replace else []
        return OutgoingRecord(self._place, key, value, headers, f"the marker {marked.name!r}")

    def _between(self, start: int, offset: int) -> list[RawRecord]:
        """The records before an offset, once the record at the offset is visible."""
        self._offsets.wait_past(
            self._place, offset,
            "an epoch is being sealed, or a process that ended has a transaction open; read the markers again later",
        )  # fmt: skip
        return list(self._reading.records(self._place, start, offset))
