"""verify: folds the whole log again, and compares the result with everything stored.

1. Every record (run.py): offsets have no gaps, recorded_at never decreases, its partition is that of its key, its bytes
   are an observation, and its id is the observation's. Every content that it names is in the store and matches its
   name, or has expired.
2. The indexes of the records (the backend's own check), and the markers: each names a point of this log.
3. A full replay (refold.py), which stops on its way at every sealed epoch: manifests, records and entities of snapshots
   are what the log folds to there (snapshots.py).
4. At its end every stored entity equals its replayed one (values, dedup state and hash), no entity is missing or
   surplus, and the log's counts are right. If other processes hold the tables, they do this step and step 2.
5. Every chain of changes (changes.py), up to the emitted offset: on Kafka the workers may lag.
6. Records that refold did not write, and damaged ones that are set aside, are counted, by topic: readers skip them, so
   they are not mismatches.
Each mismatch names entity, field and place; damaged storage is a mismatch too, and does not end the check. In a
partition with an unreadable batch of observations nothing after that batch is checked.

If there is a native kernel, it folds, and it checks records, index entries, checkpoints and changes first. It only
confirms what is right; Python checks the rest. Python also checks everything of some entities (table/confirming.py).

`ConcurrentCheck` runs a request to other processes in a separate thread, while the checks here continue.

`check_records` and `check_markers` check each record and marker by itself.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from threading import Thread
from typing import Generic, TypeVar

from refold.avro.blob import references
from refold.avro.errors import DamagedRecord, InputError, RefoldError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.avro.quarantine import OBSERVATIONS
from refold.reducers.entity import stored_hash
from refold.streams.cut import Cut, read_cut
from refold.streams.log.port import FoldPosition, LogReader, Mismatch, Record, RecordRows, is_hole
from refold.streams.rebuild.partition import Progress
from refold.streams.rebuild.result import Rebuilt
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.confirming import Choose, Confirmation, RecordConfirmer, some_entities
from refold.streams.verify.changes import check_changes
from refold.streams.verify.refold import Refold
from refold.streams.verify.report import VerifyReport
from refold.streams.verify.snapshots import check_epochs, check_removed
from refold.streams.verify.stored_records import HELD_BYTES, RecordSpool, StoredRecords, in_batches
from refold.streams.verify.table import check_table

AT_ONCE = 1000


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
    for some in in_batches(records, AT_ONCE):
        confirmation = confirmer.confirm(some, with_rows=indexes is not None)
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
    """The check of a log's indexes, with the records of all partitions. If a part of it fails, the rest is left out."""

    def __init__(self, rows: RecordRows) -> None:
        self._rows: RecordRows | None = rows

    def check(self, some: Sequence[Record], confirmation: Confirmation) -> Iterator[Mismatch]:
        """Yield the mismatches of the next records."""
        try:
            if self._rows is not None:
                yield from self._rows.check(some, confirmation)
        except StorageError as error:
            self.abandon()
            yield Mismatch("storage", str(error))

    def abandon(self) -> None:
        """Check no more."""
        self._rows = None

    def end(self) -> Iterator[Mismatch]:
        """Yield the entries without a record."""
        if self._rows is not None:
            yield from self._rows.end()


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


def check_markers(log: LogReader, cut: Cut) -> Iterator[Mismatch]:
    for marked in log.markers():
        try:
            named = read_cut(marked.cut)
        except InputError as error:
            yield Mismatch(f"markers @{marked.name}", str(error))
            continue
        below = named.log_id == cut.log_id and named.offsets.keys() == cut.offsets.keys()
        if not below or any(offset > cut.offsets[partition] for partition, offset in named.offsets.items()):
            yield Mismatch(f"markers @{marked.name}", "its cut is no point of this log")


def _content(log: LogReader, digest: bytes) -> bytes | None:
    with contextlib.suppress(StorageError):  # reported when the content itself is checked
        return log.blobs.get(digest)
    return None


Answer = TypeVar("Answer")


class ConcurrentCheck(Generic[Answer]):
    """Starts the request at once. If the check is abandoned, the answer is not waited for."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answers: list[Answer] = []
        self._problem: Exception | None = None
        self._thread = Thread(target=self._run, name="refold-verify", daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        """Wait for the answer; raises the error of the request."""
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as problem:  # raised again by `answer`
            self._problem = problem


def verify(
    log: LogReader, cut: Cut, progress: Progress = lambda more, total: None, held_bytes: int = HELD_BYTES
) -> VerifyReport:
    """Check everything below a cut.

    Args:
        log: A consistent view of a log (`LogReader.still`).
        cut: Its end.
        progress: Gets (records done since its last call, all records).
        held_bytes: The records of a partition that take more memory than this are read again for each check.

    Returns:
        The mismatches, and how much was checked.
    """
    verdict = VerifyReport(cut)
    checks = some_entities(cut.records)
    aside = ConcurrentCheck(log.check_elsewhere)
    verdict.add(check_markers(log, cut))
    verdict.add(check_removed(log))
    verdict.add(log.check_indexes(cut.offsets))
    rows = log.record_rows(checks)
    indexes = None if rows is None else _Indexes(rows)
    store, folded = ChunkStore(), log.folded()
    replayed: dict[int, Refold] = {}
    for partition in sorted(cut.offsets):
        refold = Refold(log, partition, store, lambda more: progress(more, cut.records), checks)
        if _check_partition(log, cut, partition, folded[partition], refold, verdict, checks, indexes, held_bytes):
            replayed[partition] = refold
            verdict.entities += refold.entities
            verdict.observations += refold.observations
    if indexes is not None:
        verdict.add(indexes.end())
    if len(replayed) == len(cut.offsets):
        verdict.root = Rebuilt({partition: refold.part() for partition, refold in replayed.items()}).root().hex()
    if log.has_tables:
        layers = {partition: refold.layers for partition, refold in replayed.items()}
        verdict.add(check_table(log.stored_entities(), log.partitions, layers))
        verdict.add(check_totals(log.totals, replayed))
    verdict.foreign = log.foreign(last=None)
    verdict.set_aside, verdict.passed_over = log.set_aside(), log.passed_over()
    elsewhere = aside.answer()
    verdict.add(iter(elsewhere.mismatches))
    verdict.unchecked += elsewhere.unchecked
    return verdict


def _check_partition(
    log: LogReader, cut: Cut, partition: int, folded: FoldPosition, refold: Refold, verdict: VerifyReport,
    checks: Choose, indexes: _Indexes | None, held_bytes: int,
) -> bool:  # fmt: skip
    """Steps 1, 3 and 5 for one partition; whether it could be folded to the cut."""
    firsts: dict[str, array[int]] = {}
    with closing(RecordSpool()) as spool:
        stored = StoredRecords(log, partition, None if log.is_indexed else spool, held_bytes)
        end = cut.offsets[partition]
        try:
            verdict.add(check_records(log, partition, stored.all(end), end, firsts, checks, indexes))
        except DamagedRecord as error:  # a batch that cannot be read: nothing after it is checked
            if indexes is not None:
                indexes.abandon()
            verdict.mismatches.append(Mismatch(f"observations {partition}={error.offset}", str(error)))
            return False
        hashes = None
        if indexes is not None and not stored.is_read:  # the records could not be read to their end
            indexes.abandon()
        refold.read_from(stored.between)
        try:
            verdict.add(check_epochs(log, partition, cut, refold))
            refold.to(folded.offset, folded.schemas)
            hashes = {name: stored_hash(packed) for name, packed in refold.layers.rows()}
            refold.to(end, cut.schemas)
            refold.require_all()
            is_whole = True
        except RefoldError as error:
            verdict.mismatches.append(Mismatch("replay", str(error)))
            is_whole = False
        verdict.add(refold.misfolded())
        verdict.add(check_changes(log, partition, folded.offset, firsts, hashes, stored, checks))
    return is_whole


def check_totals(totals: Callable[[int], tuple[int, int]], replayed: Mapping[int, Refold]) -> Iterator[Mismatch]:
    """Check the stored counts of entities and observations of each partition (LogPort.totals)."""
    for partition, refold in replayed.items():
        if (found := totals(partition)) != (expected := (refold.entities, refold.observations)):
            counts = "{} entities and {} observations".format
            yield Mismatch(f"totals {partition}", f"the log counts {counts(*found)}; it folds to {counts(*expected)}")
