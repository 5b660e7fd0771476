"""What one process checks of a log: some of its partitions, and what is stored of their entities (run.py, steps 1, 3
to 5).

`check_records` checks each record by itself.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from refold.avro.blob import references
from refold.avro.errors import DamagedRecord, RefoldError, SchemaError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.avro.quarantine import OBSERVATIONS
from refold.avro.registry import Registry
from refold.reducers.entity import stored_hash
from refold.streams.cut import Cut
from refold.streams.log.port import FoldPosition, LogReader, Mismatch, Record, RecordRows, is_hole
from refold.streams.partitioner import slots_of
from refold.streams.rebuild.range_fold import OnRead
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.confirming import CHECKED_RECORDS, Choose, Confirmation, RecordConfirmer, some_entities
from refold.streams.table.folds import TypeFold
from refold.streams.verify.changes import check_changes
from refold.streams.verify.refold import Refold
from refold.streams.verify.report import add_mismatches
from refold.streams.verify.snapshots import check_epochs
from refold.streams.verify.stored_records import RecordSpool, StoredRecords, in_batches
from refold.streams.verify.table import check_table

BATCH_RECORDS = 1000
# The observations that Python checks, by up to four checks, if there is a native kernel (table/confirming.py).
REMEMBERED_MAX = 5 * CHECKED_RECORDS


@dataclass(frozen=True, slots=True)
class VerifyLimits:
    """How much memory a process uses.

    Attributes:
        held_bytes: The records of a partition that take more are read again for each check.
        entities_bytes: The memory of the entities; the rest is in a temporary file.
    """

    held_bytes: int
    entities_bytes: int


@dataclass(slots=True)
class ShareReport:
    """The result of a share.

    Attributes:
        digests: The digests of the slots that have entities, in hex.
        distinct: The number of first occurrences of observations; None if the indexes were not checked to their end.
        is_whole: Whether every partition could be folded to the cut.
    """

    observations: int = 0
    entities: int = 0
    mismatches: list[Mismatch] = field(default_factory=list)
    digests: dict[int, str] = field(default_factory=dict)
    distinct: int | None = None
    is_whole: bool = True

    def add(self, found: Iterator[Mismatch]) -> None:
        """As `add_mismatches`."""
        add_mismatches(self.mismatches, found)

    def to_json(self) -> dict[str, object]:
        """The report for another process."""
        return asdict(self)


def share_report_of(tree: Mapping[str, Any]) -> ShareReport:
    """The report that another process made (`ShareReport.to_json`)."""
    report = ShareReport(**tree)
    report.mismatches = [Mismatch(*each) for each in report.mismatches]
    report.digests = {int(slot): digest for slot, digest in report.digests.items()}
    return report


def foldable(registry: Registry) -> list[str]:
    """The fingerprints, in hex, of the definitions that this process can fold: it has their custom reducers."""
    found = []
    for version in registry:
        with contextlib.suppress(SchemaError):
            TypeFold(version)
            found.append(version.definition.fingerprint.hex())
    return sorted(found)


def check_share(log: LogReader, cut: Cut, partitions: Sequence[int], limits: VerifyLimits, read: OnRead) -> ShareReport:
    """Check some partitions below a cut.

    Args:
        log: A consistent view of a log (`LogReader.frozen`).
        cut: Its end.
        partitions: The partitions.
        limits: How much memory to use.
        read: Called as records are done.

    Returns:
        The mismatches, and how much was checked.
    """
    with log.registry.remembering(REMEMBERED_MAX):
        return _check_share(log, cut, partitions, limits, read)


def _check_share(
    log: LogReader, cut: Cut, partitions: Sequence[int], limits: VerifyLimits, read: OnRead
) -> ShareReport:
    report = ShareReport()
    checks = some_entities(cut.records)
    indexes = _Indexes(log.record_rows(checks))
    store, folded = ChunkStore(limits.entities_bytes), log.folded()
    refolded: dict[int, Refold] = {}
    for partition in partitions:
        refold = Refold(log, partition, store, read, checks)
        if _check_partition(log, cut, folded[partition], refold, report, checks, indexes, limits.held_bytes):
            refolded[partition] = refold
            report.entities += refold.entities
            report.observations += refold.observations
            digests = refold.digests()
            slots = ((slot, digests.slot(slot)) for slot in slots_of(partition, log.partitions))
            report.digests.update((slot, digest.hex()) for slot, digest in slots if any(digest))
    report.is_whole = len(refolded) == len(partitions)
    if indexes.rows is not None:
        report.distinct = indexes.rows.distinct
        report.add(indexes.rows.checkpoints(partitions))
    if log.has_tables:
        layers = {partition: refold.layers for partition, refold in refolded.items()}
        report.add(check_table(log.stored_entities(), log.partitions, layers))
        report.add(check_totals(log.totals, refolded))
    return report


def _check_partition(
    log: LogReader, cut: Cut, folded: FoldPosition, refold: Refold, report: ShareReport, checks: Choose,
    indexes: _Indexes, held_bytes: int,
) -> bool:  # fmt: skip
    """Steps 1, 3 and 5 for one partition; whether it could be folded to the cut."""
    partition = refold.partition
    firsts: dict[str, array[int]] = {}
    with closing(RecordSpool()) as spool:
        stored = StoredRecords(log, partition, None if log.is_indexed else spool, held_bytes)
        end = cut.offsets[partition]
        try:
            report.add(check_records(log, partition, stored.all(end), end, firsts, checks, indexes))
        except DamagedRecord as error:  # a batch that cannot be read: nothing after it is checked
            indexes.abandon()
            report.mismatches.append(Mismatch(f"observations {partition}={error.offset}", str(error)))
            return False
        hashes = None
        if not stored.is_read:  # the records could not be read to their end
            indexes.abandon()
        refold.read_from(stored.between)
        try:
            report.add(check_epochs(log, partition, cut, refold))
            refold.to(folded.offset, folded.schemas)
            hashes = {name: stored_hash(packed) for name, packed in refold.layers.rows()}
            refold.to(end, cut.schemas)
            refold.require_all()
            is_whole = True
        except RefoldError as error:
            report.mismatches.append(Mismatch("replay", str(error)))
            is_whole = False
        report.add(refold.misfolded())
        report.add(check_changes(log, partition, folded.offset, firsts, hashes, stored, checks))
    return is_whole


def check_records(
    log: LogReader, partition: int, records: Iterable[Record], end: int, firsts: dict[str, array[int]],
    checks: Choose, indexes: _Indexes | None = None,
) -> Iterator[Mismatch]:  # fmt: skip
    """Check the records of one partition.

    Args:
        log: The log.
        partition: The partition's number.
        records: Its records and holes up to its end, from `LogReader.read_with_holes`.
        end: The partition's end.
        firsts: For each entity, the offsets of its records that are not repeats; they are added here.
        checks: Selects the entities that Python checks even if the kernel confirms their records.
        indexes: Their check, if this process has them.

    Returns:
        What is wrong, one at a time.
    """
    expected, last = 0, 0
    known: set[bytes] = set()
    confirmer = RecordConfirmer(log.registry, log.partitions, checks)
    for some in in_batches(records, BATCH_RECORDS):
        confirmation = confirmer.confirm(some, with_rows=indexes is not None and indexes.rows is not None)
        if indexes is not None:
            yield from indexes.check(some, confirmation)
        for record, is_confirmed in zip(some, confirmation.are_confirmed, strict=True):
            _, offset, recorded_at, entity, record_id, _ = record
            if offset != expected:
                yield Mismatch(f"observations {partition}={expected}", f"missing; the next one there is {offset}")
            if recorded_at < last:
                place = f"observations {partition}={offset}"
                yield Mismatch(place, "recorded before the one in front of it", entity)
            expected, last = offset + 1, recorded_at
            if not is_confirmed:
                if is_hole(record):
                    continue
                yield from _check_record(log, record, f"observations {partition}={offset}")
            if record_id not in known:
                known.add(record_id)
                offsets = firsts.get(entity)
                if offsets is None:
                    offsets = firsts[entity] = array("Q")
                offsets.append(offset)
    if expected != end:
        yield Mismatch(f"observations {partition}={expected}", f"missing; the log's next offset there is {end}")


class _Indexes:
    """The check of a log's indexes, with the records of a share. If a part of it fails, the rest is left out."""

    def __init__(self, rows: RecordRows | None) -> None:
        self.rows = rows

    def check(self, some: Sequence[Record], confirmation: Confirmation) -> Iterator[Mismatch]:
        """Yield the mismatches of the next records."""
        try:
            if self.rows is not None:
                yield from self.rows.check(some, confirmation)
        except StorageError as error:
            self.abandon()
            yield Mismatch("storage", str(error))

    def abandon(self) -> None:
        """Check no more."""
        self.rows = None


def _check_record(log: LogReader, record: Record, place: str) -> Iterator[Mismatch]:
    command = log.registry.rulings.command(OBSERVATIONS, record.partition, record.offset)
    remedy = f"; {command}" if command else ""
    try:
        observation = log.registry.decode(record.data)
    except UndecodableError as error:
        yield Mismatch(place, f"no observation: {error}{remedy}", record.entity)
        return
    if observation.entity != record.entity or log.partition_of(observation.entity) != record.partition:
        yield Mismatch(place, f"misplaced: it is an observation of {observation.entity}{remedy}", record.entity)
    if identify(observation) != record.id:
        yield Mismatch(place, f"its id is not the id of its content{remedy}", record.entity)
    for blob in references(observation.patch.values(), lambda digest: _content(log, digest)):
        try:
            if log.blobs.get(blob.hash) is None and not log.blobs.has_expired(blob.hash):
                yield Mismatch(f"blobs {blob.hash.hex()}", "missing", record.entity)
        except StorageError as error:
            yield Mismatch(f"blobs {blob.hash.hex()}", str(error), record.entity)


def _content(log: LogReader, digest: bytes) -> bytes | None:
    with contextlib.suppress(StorageError):  # reported when the content itself is checked
        return log.blobs.get(digest)
    return None


def check_totals(totals: Callable[[int], tuple[int, int]], refolded: Mapping[int, Refold]) -> Iterator[Mismatch]:
    """Check the stored counts of entities and observations of each partition (LogPort.totals)."""
    for partition, refold in refolded.items():
        if (found := totals(partition)) != (expected := (refold.entities, refold.observations)):
            counts = "{} entities and {} observations".format
            yield Mismatch(f"totals {partition}", f"the log counts {counts(*found)}; it folds to {counts(*expected)}")
