"""verify by several processes: the same report as by one, whatever happens to the processes."""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.streams import child_process, runtime
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.partitioner import placed
from refold.streams.point import Points
from refold.streams.table import keys
from refold.streams.verify import processes
from refold.streams.verify.processes import RECORDS_MIN, shares_of
from refold.streams.verify.report import VerifyReport
from refold.streams.verify.run import verify
from refold_tests.damaged import Damaged, with_changed_end
from refold_tests.epochs import CLOSING, SMALL_EPOCHS, grow
from refold_tests.histories import random_history
from refold_tests.killing_reducer import CALLS, MORTAL, SPARES
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said
from refold_tests.unfindable_reducer import only_found_here

B = f"{A}b"
PARTITIONS = 4


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each process that was started gave a report."""
    given: list[bool] = []
    finish = processes.ShareProcesses.finish

    def finished(self: processes.ShareProcesses) -> Any:
        found, failed = finish(self)
        given.extend([True] * len(found) + [False] * len(failed))
        return found, failed

    monkeypatch.setattr(processes.ShareProcesses, "finish", finished)
    monkeypatch.setattr(runtime, "cores", lambda: 3)
    return given


def whole(report: VerifyReport) -> tuple[object, ...]:
    """All of a report, with the mismatches in no order."""
    return report.root, report.observations, report.entities, set(report.mismatches), report.unchecked


def spread(count: int) -> list[Any]:
    """Observations of many entities in all partitions."""
    return [said(f"{A}{number % 50}", number, start=f"{number}") for number in range(count)]


def both(log: Log) -> tuple[VerifyReport, VerifyReport]:
    return log.verify(parallel=True), log.verify(parallel=False)


class OfCut:
    """What `shares_of` asks of a log."""

    has_tables = is_indexed = True


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=64), st.sampled_from([None, True, False]))
def test_shares_hold_every_partition_once(ends: list[int], parallel: bool | None) -> None:
    cut = Cut(bytes(16), dict(enumerate(ends)), 0, bytes(32))
    log: Any = OfCut()
    shares = shares_of(log, cut, parallel)
    assert sorted(partition for share in shares for partition in share) == sorted(cut.offsets)
    assert all(shares[1:])
    if parallel is False or (parallel is None and cut.records < RECORDS_MIN):
        assert len(shares) == 1
    if parallel and sum(end > 0 for end in ends) > 1:
        assert len(shares) > 1
    log.has_tables = False
    assert shares_of(log, cut, parallel) == [sorted(cut.offsets)]


@pytest.mark.usefixtures("forked_children")
def test_several_processes_report_the_same_as_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, reports: list[bool]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng = random.Random(seed)
    (tmp_path / "log").mkdir()
    with open_log(tmp_path / "log", partitions=PARTITIONS, settings=SMALL_EPOCHS) as log:
        take(log, random_history(seed, 60), CLOSING)
        grow(log, rng, 6)
        take(log, random_history(seed + 1, 60), CLOSING)
        done: list[tuple[int, int]] = []
        apart = log.verify(lambda more, total: done.append((more, total)), parallel=True)
        alone = log.verify(parallel=False)
        assert reports == [True, True]
        assert alone.ok
        assert whole(apart) == whole(alone)
        assert apart.root == log.rebuild(parallel=False).root
        assert sum(more for more, _ in done) == apart.cut.records == done[-1][1]
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


@pytest.mark.usefixtures("forked_children")
def test_damage_is_named_alike(tmp_path: Path, seed: int, reports: list[bool]) -> None:
    rng = random.Random(seed)
    names = [f"{A}{number}" for number in range(30)]
    with open_log(tmp_path, partitions=PARTITIONS) as log:
        take(log, [said(name, number, last=number) for number in range(4) for name in names])
        damage = Damaged(log)
        record = keys.position_key(rng.randrange(PARTITIONS), rng.randrange(10))
        for name in rng.sample(names, 4):
            damage.change("state", placed(name), lambda value: value + b"\0")
        for family in ("timeline", "arrivals", "ids"):
            damage.put(family, rng.choice(damage.rows(family))[0], None)
        damage.put("arrivals", b"\xff no name", b"")
        damage.put("checkpoints", b"\xff no name\0", b"")
        damage.put("checkpoints", f"{rng.choice(names)}\0".encode(), b"no checkpoint")
        damage.change("changes", rng.choice(damage.rows("changes"))[0], lambda value: with_changed_end(value, 0xFF))
        apart, alone = both(log)
        assert reports == [True, True]
        assert not alone.ok
        assert whole(apart) == whole(alone)
        assert len(apart.mismatches) == len(set(apart.mismatches)) >= 10
        damage.put("observations", record, None)
        damage.put("state", b"\xff\xff\xff\xff no name", b"")  # every process reads it
        apart, alone = both(log)
        assert whole(apart) == whole(alone)
        assert len(apart.mismatches) == len(set(apart.mismatches))


@pytest.mark.faults
@pytest.mark.usefixtures("forked_children")
def test_share_of_a_killed_process_is_checked_by_the_parent(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch, reports: list[bool]
) -> None:
    with open_log(tmp_path, partitions=PARTITIONS) as log:
        take(log, spread(400), MORTAL)
        alone = log.verify(parallel=False)
        monkeypatch.setenv(SPARES, str(os.getpid()))
        monkeypatch.setenv(CALLS, str(random.Random(seed).randint(1, 50)))
        apart = log.verify(parallel=True)
        assert reports == [False, False]
        assert alone.ok
        assert whole(apart) == whole(alone)


@pytest.mark.usefixtures("forked_children")
def test_log_that_is_written_meanwhile_is_checked_by_one_process(tmp_path: Path, reports: list[bool]) -> None:
    with open_log(tmp_path, partitions=PARTITIONS) as log:
        take(log, spread(100))
        with log.port.frozen(is_verified=True) as reader:
            cut = Points(reader, 0).end()
            take(log, [said(B, 0, last=1)])
            report = verify(reader, cut, parallel=True)
        assert reports == [False, False]
        assert report.ok
        assert report.entities == 50


def test_reducer_that_no_child_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[bool]
) -> None:
    with open_log(tmp_path, partitions=PARTITIONS) as log:
        take(log, spread(200), only_found_here(tmp_path, monkeypatch))
        apart, alone = both(log)
        assert reports == [False, False]
        assert alone.ok
        assert whole(apart) == whole(alone)


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_one_process_is_used_without_an_interpreter(
    tmp_path: Path, executable: str, monkeypatch: pytest.MonkeyPatch, reports: list[bool]
) -> None:
    with open_log(tmp_path, partitions=PARTITIONS) as log:
        take(log, spread(100))
        monkeypatch.setattr(sys, "executable", executable)
        apart, alone = both(log)
        assert reports == [False, False]
        assert whole(apart) == whole(alone)


def test_interrupted_check_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[bool]
) -> None:
    started: list[Any] = []
    start = child_process.start

    def remembered(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    def interrupted(log: LogReader, cut: Cut) -> Iterator[Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(child_process, "start", remembered)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "log").mkdir()
    with open_log(tmp_path / "log", partitions=PARTITIONS) as log:
        take(log, spread(100))
        monkeypatch.setattr("refold.streams.verify.run.check_markers", interrupted)
        with pytest.raises(KeyboardInterrupt):
            log.verify(parallel=True)
    assert [each.poll() for each in started] == [-9, -9]
    assert [each.name for each in tmp_path.iterdir()] == ["log"]
