"""verify: folds the whole log again, and compares the result with everything stored.

1. Every record (share.py): offsets have no gaps, recorded_at never decreases, its partition is that of its key, its
   bytes are an observation, and its id is the observation's. Every content that it names is in the store and matches
   its name, or has expired.
2. The indexes of the records (the backend's own check), and the markers: each names a point of this log.
3. A full fold (refold.py), which stops on its way at every sealed epoch: manifests, records and entities of snapshots
   are what the log folds to there (snapshots.py).
4. At its end every stored entity equals its refolded one (values, dedup state and hash), no entity is missing or
   surplus, and the log's counts are right. If other processes hold the tables, they do this step and step 2.
5. Every chain of changes (changes.py), up to the emitted offset: on Kafka the workers may lag.
6. Records that refold did not write, and damaged ones that are set aside, are counted, by topic: readers skip them, so
   they are not mismatches.
Each mismatch names entity, field and place; damaged storage is a mismatch too, and does not end the check. In a
partition with an unreadable batch of observations nothing after that batch is checked.

If there is a native kernel, it folds, and it checks records, index entries, checkpoints and changes first. It only
confirms what is right; Python checks the rest. Python also checks everything of some entities (table/confirming.py).

Several processes may do steps 1 and 3 to 5, each for a share of the partitions (processes.py). This process does one
share, the rest of the check, and the shares of processes that failed.

`ConcurrentCheck` runs a request to other processes in a separate thread, while the checks here continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Generic, TypeVar

from refold.avro.errors import InputError
from refold.streams.cut import Cut, read_cut
from refold.streams.digest import root_over
from refold.streams.log.port import LogReader, Mismatch
from refold.streams.rebuild.partition import Progress
from refold.streams.snapshots.spill import MEMORY_BYTES
from refold.streams.verify.processes import ShareProcesses, shares_of
from refold.streams.verify.report import MISMATCHES_MAX, VerifyReport
from refold.streams.verify.share import ShareReport, VerifyLimits, check_share
from refold.streams.verify.snapshots import check_removed
from refold.streams.verify.stored_records import HELD_BYTES


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
    log: LogReader, cut: Cut, progress: Progress = lambda more, total: None, held_bytes: int = HELD_BYTES, *,
    parallel: bool | None = False,
) -> VerifyReport:  # fmt: skip
    """Check everything below a cut.

    Args:
        log: A consistent view of a log (`LogReader.frozen`).
        cut: Its end.
        progress: Gets (records done since its last call, all records).
        held_bytes: The records of a partition that take more memory than this are read again for each check.
        parallel: Whether to use child processes; None for whatever is faster.

    Returns:
        The mismatches, and how much was checked.
    """
    verdict = VerifyReport(cut)
    aside = ConcurrentCheck(log.check_elsewhere)
    own, *others = shares_of(log, cut, parallel)
    limits = VerifyLimits(held_bytes, MEMORY_BYTES // (1 + len(others)))

    def done(records: int) -> None:
        progress(records, cut.records)

    with ShareProcesses(log, cut, others, limits, done) as processes:

        def read(records: int) -> None:
            done(records)
            processes.look()

        verdict.add(check_markers(log, cut))
        verdict.add(check_removed(log))
        verdict.add(log.check_indexes(cut.offsets))
        reports = [check_share(log, cut, own, limits, read)]
        finished, failed = processes.finish()
    reports += finished
    reports += [check_share(log, cut, share, limits, done) for share in failed]
    _join(verdict, reports)
    rows = log.record_rows(lambda entity: False)
    distinct = [report.distinct for report in reports if report.distinct is not None]
    if rows is not None and len(distinct) == len(reports):
        verdict.add(rows.entries(sum(distinct)))
    verdict.foreign = log.foreign(last=None)
    verdict.set_aside, verdict.passed_over = log.set_aside(), log.passed_over()
    elsewhere = aside.answer()
    verdict.add(iter(elsewhere.mismatches))
    verdict.unchecked += elsewhere.unchecked
    return verdict


def _join(verdict: VerifyReport, reports: list[ShareReport]) -> None:
    """Add the reports of all shares. What several of them report, for they read the same table, is added once."""
    digests: dict[int, bytes] = {}
    for report in reports:
        verdict.entities += report.entities
        verdict.observations += report.observations
        digests.update((slot, bytes.fromhex(digest)) for slot, digest in report.digests.items())
    mismatches = dict.fromkeys(verdict.mismatches + [each for report in reports for each in report.mismatches])
    verdict.mismatches = list(mismatches)[:MISMATCHES_MAX]
    if all(report.is_whole for report in reports):
        verdict.root = root_over(digests, verdict.entities).hex()
