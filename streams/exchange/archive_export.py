"""Writes a log as an archive (archive_form.py): everything recorded up to one moment, in the order of recording.

Only some records of each partition are in memory at a time, so memory does not grow with the log. A content is written
before the first observation that names it. It is written again only if `contents_remembered` others came in between.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from typing import IO

from refold.avro.blob import references
from refold.avro.definition import document_text
from refold.avro.errors import CorruptionError, DamagedRecord, InputError, UndecodableError, UnknownWireId
from refold.avro.observation import Observation
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Hole, TypeVersion
from refold.streams.cut import Cut
from refold.streams.exchange.archive_check import ArchiveCheck
from refold.streams.exchange.archive_form import FORMAT, SYNC_BYTES, Content, Definition, End, Header, Item, write_items
from refold.streams.exchange.contents import content_or_expired
from refold.streams.log.port import LogReader, Record, is_hole

RECORDS_HELD = 2048
CONTENTS_REMEMBERED = 100_000

Progress = Callable[[int], None]
"""Called with the number of records read since the last call."""


def write_archive(
    file: IO[bytes], log: LogReader, cut: Cut, now_ms: int, progress: Progress = lambda read: None, *,
    records_held: int = RECORDS_HELD, contents_remembered: int = CONTENTS_REMEMBERED,
) -> End:  # fmt: skip
    """Archive a consistent view of a log (`LogReader.still`).

    Args:
        file: where the archive is written.
        log: the log.
        cut: the view's end.
        now_ms: the current time, in milliseconds; the archive answers no later time.
        progress: called as records are read.
        records_held: about how many records of all partitions are in memory; at least 8 of each partition.
        contents_remembered: how many contents are not written again.

    Returns:
        The counts of the archived items.

    Raises:
        CorruptionError: the log is damaged.
    """
    archived_at = now_ms if log.archived_at is None else min(now_ms, log.archived_at)
    header = Header(FORMAT, str(cut), archived_at, log.forked_from)
    sync_marker = hashlib.sha256(f"{header}".encode()).digest()[:SYNC_BYTES]
    return write_items(
        file, _Outgoing(log, cut, progress, records_held, contents_remembered).items(header), sync_marker
    )


class _Outgoing:
    """The items of one archive."""

    def __init__(
        self, log: LogReader, cut: Cut, progress: Progress, records_held: int, contents_remembered: int
    ) -> None:
        self._records_held = records_held
        self._contents_remembered = contents_remembered
        self._log = log
        self._cut = cut
        self._progress = progress
        self._check = ArchiveCheck()
        self._remembered: dict[bytes, None] = {}

    def items(self, header: Header) -> Iterator[Item]:
        """Yield all items, each checked by the rules that the archive's reader checks."""
        self._take(header)
        yield header
        definitions = deque(place for place in self._log.registry.entries() if place.offset < self._cut.schemas)
        for record in self._records():
            while definitions and (definitions[0].registered_at <= record.recorded_at or self._lacks(record)):
                yield self._definition(definitions.popleft())
            observation = self._take(record)
            if observation is not None:
                yield from self._contents(record, observation)
            yield record
            self._progress(1)
        while definitions:
            yield self._definition(definitions.popleft())
        rest: list[Item] = [*self._log.deadletters(), *self._log.markers()]
        for item in rest:
            self._take(item)
            yield item
        self._check.finish()

    def _lacks(self, record: Record) -> bool:
        """Return whether a record's definition has not been written yet, because the clock of the broker that timed it
        is ahead."""
        if is_hole(record):
            return False
        try:
            self._check.registry.decode(record.data)
        except UnknownWireId:
            return True
        except UndecodableError as error:
            raise self._damaged(record, error) from error
        return False

    def _damaged(self, record: Record, error: UndecodableError) -> DamagedRecord:
        rulings = self._log.registry.rulings
        return rulings.damaged(OBSERVATIONS, record.partition, record.offset, record.entity, str(error))

    def _take(self, item: Item) -> Observation | None:
        try:
            return self._check.take(item)
        except InputError as error:
            if isinstance(item, Record) and isinstance(error.__cause__, UndecodableError):
                raise self._damaged(item, error.__cause__) from error
            raise CorruptionError(f"{self._log.url}: {error}; run refold verify") from error

    def _records(self) -> Iterator[Record]:
        """Yield the records of all partitions by recorded_at, which never decreases within a partition."""
        at_once = max(8, self._records_held // len(self._cut.offsets))
        parts = [self._partition(partition, end, at_once) for partition, end in self._cut.offsets.items()]
        return merge(*parts, key=lambda record: (record.recorded_at, record.partition))

    def _partition(self, partition: int, end: int, at_once: int) -> Iterator[Record]:
        for start in range(0, end, at_once):
            for record in self._log.read_with_holes(partition, start, min(start + at_once, end)):
                yield (
                    record._replace(data=self._log.registry.with_derived_id(record.data))
                    if not is_hole(record)
                    else record
                )

    def _definition(self, place: TypeVersion | Hole) -> Definition:
        registry = self._log.registry
        is_in = isinstance(place, TypeVersion) and registry.is_in_effect(place, self._cut.schemas)
        text = document_text(place.definition) if is_in and isinstance(place, TypeVersion) else ""
        item = Definition(place.offset, place.registered_at, text)
        self._take(item)
        return item

    def _contents(self, record: Record, observation: Observation) -> Iterator[Content]:
        for blob in references(observation.patch.values(), self._log.blobs.get):
            if blob.hash in self._remembered:
                continue
            content = content_or_expired(self._log, blob.hash)
            if content is None:
                raise CorruptionError(
                    f"observations {record.partition}={record.offset}: the content {blob.hash.hex()} of "
                    f"{observation.entity} is not in the store; put it back into blobs/, then archive again"
                )
            self._remembered[blob.hash] = None
            if len(self._remembered) > self._contents_remembered:
                del self._remembered[next(iter(self._remembered))]
            item = Content(blob.hash, content)
            self._take(item)
            yield item
