"""Reads `.changes` from a point: up to the end, or following new changes.

Changes of one partition are in order and their `through` never decreases, so the first one after a cut is found by
binary search. A change that spans the cut is trimmed to the steps after it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from refold.avro.codec import framed_id
from refold.avro.errors import CorruptionError, UndecodableError
from refold.avro.observation import type_of
from refold.avro.quarantine import CHANGES
from refold.reducers.state import hash_state
from refold.streams.change_codec import ChangeCodec, change_codec_of
from refold.streams.changes import Change
from refold.streams.cut import Cut
from refold.streams.history import fold_observed, observed_below
from refold.streams.log.port import ChangeRecord, LogReader
from refold.streams.table.folds import Folds


class ChangeReader:
    """Decodes changes of every type version of a log."""

    def __init__(self, log: LogReader) -> None:
        self._log = log
        self._codecs: dict[int, ChangeCodec] = {}
        self._known = 0

    def read(self, record: ChangeRecord) -> Change:
        """Decode the change in a record.

        Raises:
            DamagedRecord: A worker's record has no valid change. The error names its position.
        """
        try:
            return self.decode(record.data)
        except (UndecodableError, CorruptionError) as error:
            raise self._log.registry.rulings.damaged(
                CHANGES, record.partition, record.offset, "", f"{error}; refold rebuild needs no change, and refold "
                "verify names every damaged one"
            ) from error  # fmt: skip

    def decode(self, data: bytes) -> Change:
        """Decode a change from framed bytes.

        Raises:
            CorruptionError: The log has no schema with the change's id.
        """
        schema = framed_id(data)
        if schema not in self._codecs:
            versions = list(self._log.registry)
            for version in versions[self._known :]:
                self._codecs[version.changes.wire_id] = change_codec_of(version)
            self._known = len(versions)
        if schema not in self._codecs:
            raise CorruptionError(f"a change names schema {schema}, which this log does not hold; run refold verify")
        return self._codecs[schema].decode(data)


def changes_from(log: LogReader, cut: Cut | None, *, live: bool, poll_s: float) -> Iterator[Change]:
    """Yield the changes after a cut, in order within each partition.

    Args:
        log: The log.
        cut: The cut; None for the first change.
        live: Whether to wait for further changes; otherwise it ends at the present end.
        poll_s: How often to look for further ones, in seconds.
    """
    reader = ChangeReader(log)
    log.refresh()
    ends = {p: log.changes_end(p) for p in range(log.partitions)}
    positions = {p: 0 if cut is None else first_past(log, reader, p, cut.offsets[p]) for p in range(log.partitions)}
    while True:
        idle = True
        for partition, start in positions.items():
            for record in log.read_changes(partition, start):
                if not live and record.offset >= ends[partition]:
                    break  # made meanwhile, perhaps by the caller's own writes
                positions[partition] = record.offset + 1
                idle = False
                change = _trimmed(log, reader.read(record), partition, cut)
                if change is not None:
                    yield change
        if idle:
            if not live:
                return
            time.sleep(poll_s)
        if live:
            log.refresh()


def first_past(log: LogReader, reader: ChangeReader, partition: int, offset: int) -> int:
    """Find the first change that reaches an offset of `.observations`.

    Args:
        log: The log.
        reader: Decodes its changes.
        partition: The partition.
        offset: The offset of `.observations`.

    Returns:
        The offset in `.changes` of the first change whose `through` is at or above the given offset. One with an equal
        `through` may be a later redefinition.
    """
    low, high = 0, log.changes_end(partition)
    while low < high:
        middle = (low + high) // 2
        record = next(log.read_changes(partition, middle), None)  # perhaps a later one: not every offset has a change
        if record is None or reader.read(record).through >= offset:
            high = middle
        else:
            low = record.offset + 1
    return low


def _trimmed(log: LogReader, change: Change, partition: int, cut: Cut | None) -> Change | None:
    """The part of a change after the cut, if any."""
    if cut is None:
        return change
    if change.redefined:
        versions = log.registry.versions(type_of(change.entity))
        offsets = [each.offset for each in versions if each.definition.fingerprint == change.definition]
        return change if change.through > cut.offsets[partition] or max(offsets) >= cut.schemas else None
    steps = [step for step in change.steps if step.offset >= cut.offsets[partition]]
    if not steps:
        return None
    if len(steps) == len(change.steps):
        return change
    fold = Folds(log.registry, cut.schemas).of_entity(change.entity).fold
    before = fold_observed(fold, change.entity, observed_below(log, change.entity, cut), None)
    return change._replace(from_version=steps[0].version - 1, hash_before=hash_state(fold, before), steps=steps)
