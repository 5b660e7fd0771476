"""verify: the whole log folded again, and compared with everything that was stored beside it.

1. Every record (records.py): offsets without gaps, recorded_at never falling, its partition its key's, its bytes an
   observation, its id the id of that; every content it names is in the store and is what its name says, or has expired.
2. The indexes of the records (the backend's own check), and the markers: each names a point of this log.
3. A full replay (refold.py), which stops on its way at every sealed epoch: manifests, records and entities of
   snapshots are what the log folds to there (snapshots.py).
4. At its end every stored entity equals its replayed one, values, residue and hash; none is missing or too many; the
   log's own counts of them are right. Where tables stand elsewhere, those who keep them do this and 2.
5. Every chain of changes (changes.py), up to where changes were made: on Kafka the workers may be behind.
6. Records that refold did not write, and damaged ones that are set aside, are counted, by topic: readers pass over
   them, so they are no mismatches.
Each mismatch names entity, field and place; damaged storage is a mismatch too, not the end of the check. Of a partition
with a batch of observations that cannot be read, nothing after that batch is checked.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing

from refold.avro.errors import DamagedRecord, RefoldError
from refold.reducers.entity import stored_hash
from refold.streams.cut import Cut
from refold.streams.log.port import Folded, LogPort, Mismatch
from refold.streams.rebuild.part import Progress
from refold.streams.rebuild.rebuilt import Rebuilt
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.verify.aside import Aside
from refold.streams.verify.changes import check_changes
from refold.streams.verify.records import check_markers, check_records
from refold.streams.verify.refold import Refold
from refold.streams.verify.snapshots import check_epochs, check_removed
from refold.streams.verify.spool import Spool
from refold.streams.verify.table import check_table
from refold.streams.verify.verdict import Verdict


def verify(log: LogPort, cut: Cut, progress: Progress = lambda more, total: None) -> Verdict:
    """Check everything below a cut at the end of a log that stands still (`LogPort.still`)."""
    verdict = Verdict(cut)
    aside = Aside(log.check_elsewhere)
    verdict.add(check_markers(log, cut))
    verdict.add(check_removed(log))
    if log.has_tables:
        verdict.add(log.check_indexes(cut.offsets))
    store, folded = ChunkStore(), log.folded()
    replayed: dict[int, Refold] = {}
    for partition in sorted(cut.offsets):
        refold = Refold(log, partition, store, lambda more: progress(more, cut.records))
        if _check_partition(log, cut, partition, folded[partition], refold, verdict):
            replayed[partition] = refold
            verdict.entities += refold.entities
            verdict.observations += refold.observations
    if len(replayed) == len(cut.offsets):
        verdict.root = Rebuilt({partition: refold.part() for partition, refold in replayed.items()}).root().hex()
    if log.has_tables:
        layers = {partition: refold.layers for partition, refold in replayed.items()}
        verdict.add(check_table(log.stored_entities(), log.partitions, layers))
        verdict.add(check_totals(log.totals, replayed))
    verdict.foreign = log.foreign(last=None)
    verdict.set_aside = log.set_aside()
    elsewhere = aside.answer()
    verdict.add(iter(elsewhere.mismatches))
    verdict.unchecked += elsewhere.unchecked
    return verdict


def _check_partition(log: LogPort, cut: Cut, partition: int, folded: Folded, refold: Refold, verdict: Verdict) -> bool:
    """Steps 1, 3 and 5 for one partition; whether it could be folded to the cut."""
    firsts: dict[str, array[int]] = {}
    with closing(Spool()) as spool:
        places = log.places(partition, 0, cut.offsets[partition])
        passing = places if log.is_indexed else spool.through(places)
        try:
            verdict.add(check_records(log, partition, passing, cut.offsets[partition], firsts))
        except DamagedRecord as error:  # a batch that cannot be read: what is after it is not looked at
            verdict.mismatches.append(Mismatch(f"observations {partition}={error.offset}", str(error)))
            return False
        hashes = None
        try:
            verdict.add(check_epochs(log, partition, cut, refold))
            refold.to(folded.offset, folded.schemas)
            hashes = {name: stored_hash(packed) for name, packed in refold.layers.rows()}
            refold.to(cut.offsets[partition], cut.schemas)
            refold.require_all()
            is_whole = True
        except RefoldError as error:
            verdict.mismatches.append(Mismatch("replay", str(error)))
            is_whole = False
        record_at = log.record_at if log.is_indexed else spool.at
        verdict.add(check_changes(log, partition, folded.offset, firsts, hashes, record_at))
    return is_whole


def check_totals(totals: Callable[[int], tuple[int, int]], replayed: Mapping[int, Refold]) -> Iterator[Mismatch]:
    """The counts of entities and observations that are kept of each partition (LogPort.totals)."""
    for partition, refold in replayed.items():
        if (found := totals(partition)) != (expected := (refold.entities, refold.observations)):
            counts = "{} entities and {} observations".format
            yield Mismatch(f"totals {partition}", f"the log counts {counts(*found)}; it folds to {counts(*expected)}")
