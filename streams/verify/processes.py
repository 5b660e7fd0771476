"""Shares of a log's partitions that child processes verify (child.py), for the caller in run.py.

1. Divide the partitions into shares of about as many records, one for each process. The caller checks the first one,
   which is larger: the others have to start.
2. Start a process for each other share (streams/job_process.py). It opens the log to read, by its URL. It fails if its
   view of the log does not end at the cut, because another process writes, or if it has not the custom reducers that
   this process has.
3. It sends the numbers of further records done, and finally its report.
4. A share whose process failed or died is left to the caller.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from heapq import heapify, heapreplace
from types import TracebackType
from typing import Self

from refold.avro.errors import StorageError
from refold.streams.cut import Cut
from refold.streams.job_process import JobProcess, processes_for
from refold.streams.log.port import LogReader
from refold.streams.temporary import TemporaryFolder
from refold.streams.verify.share import ShareReport, VerifyLimits, foldable, share_report_of

# Starting a process costs about as much as verifying 6,000 records.
RECORDS_MIN = 20_000
_START_RECORDS = 6_000
_MODULE = "refold.streams.verify.child"


def shares_of(log: LogReader, cut: Cut, parallel: bool | None) -> list[list[int]]:
    """Divide the partitions of a log among processes.

    Args:
        log: The log. Only one with tables in this process is divided: of others much time is waiting for brokers.
        cut: Its end.
        parallel: True to use child processes also where they are slower; None for whatever is faster.

    Returns:
        The partitions of each process, of this one first.
    """
    jobs = sum(records > 0 for records in cut.offsets.values())
    may_divide = log.has_tables and log.is_indexed and jobs > 1
    is_worth = cut.records >= RECORDS_MIN
    processes = processes_for(jobs, parallel if may_divide else False, is_worth=is_worth)
    if parallel and may_divide:
        processes = max(processes, 2)
    shares: list[list[int]] = [[] for _ in range(max(processes, 1))]
    start = 0 if parallel else _START_RECORDS
    loads = [(start if number else 0, number) for number in range(len(shares))]
    heapify(loads)
    for partition in sorted(cut.offsets, key=lambda each: (-cut.offsets[each], each)):
        load, number = loads[0]
        shares[number].append(partition)
        heapreplace(loads, (load + cut.offsets[partition], number))
    own, *others = map(sorted, shares)
    return [own, *filter(None, others)]


class ShareProcesses:
    """The processes of some shares, until the end of the block.

    Args:
        log: The log.
        cut: Its end.
        shares: The partitions of each process.
        limits: How much memory each may use.
        done: Called with the numbers of further records that they did.
    """

    def __init__(
        self, log: LogReader, cut: Cut, shares: Sequence[Sequence[int]], limits: VerifyLimits,
        done: Callable[[int], None],
    ) -> None:  # fmt: skip
        self._done = done
        self._reports: list[ShareReport] = []
        self._failed: list[Sequence[int]] = []
        self._ending = ExitStack()
        self._selector = self._ending.enter_context(selectors.DefaultSelector())
        if not shares:
            return
        setup = {
            "url": log.url,
            "config": dict(log.config),
            "cut": str(cut),
            "foldable": foldable(log.registry),
            "limits": asdict(limits),
        }
        with ExitStack() as on_error:
            on_error.push(self._ending)
            folder = str(self._ending.enter_context(TemporaryFolder("refold-verify-")))
            for share in shares:
                try:
                    process = JobProcess(_MODULE, {**setup, "partitions": share}, folder, self._ending)
                except OSError:
                    self._failed.append(share)
                else:
                    self._selector.register(process.out, selectors.EVENT_READ, (process, share))
            on_error.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.close()

    def look(self) -> None:
        """Receive what has arrived."""
        self._receive(0)

    def finish(self) -> tuple[list[ShareReport], list[Sequence[int]]]:
        """Wait for all processes; returns their reports, and the shares of those that failed."""
        while self._selector.get_map():
            self._receive(None)
        return self._reports, self._failed

    def _receive(self, timeout_s: float | None) -> None:
        if not self._selector.get_map():
            return
        for key, _ in self._selector.select(timeout_s):
            process, share = key.data
            try:
                answers = process.receive()
            except StorageError:
                self._failed.append(share)
                self._end(process)
                continue
            for answer in answers:
                if "report" in answer:
                    self._reports.append(share_report_of(answer["report"]))
                    self._end(process)
                else:
                    self._done(answer["read"])

    def _end(self, process: JobProcess) -> None:
        self._selector.unregister(process.out)
        process.end()
