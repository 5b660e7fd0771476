"""verify reads the records of a partition several times: from memory, from a spool, or from the log again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from refold.streams.point import Points
from refold.streams.table import keys
from refold.streams.verify.run import verify
from refold.streams.verify.stored_records import HELD_BYTES, RecordSpool, StoredRecords
from refold_tests.damaged import Damaged
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said

COUNT = 40
WAYS = {"memory": (HELD_BYTES, False), "spool": (0, True), "log": (0, False)}


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[Damaged]:
    """A log of one partition; one offset below its end has no record."""
    with open_log(tmp_path, partitions=1) as log:
        take(log, [said(A, number, last=number, log=[number]) for number in range(COUNT)])
        yield Damaged(log)


@pytest.mark.parametrize("way", WAYS)
def test_records_are_those_of_the_log(damaged: Damaged, way: str) -> None:
    held_bytes, is_spooled = WAYS[way]
    every = list(damaged.port.read(0, 0, COUNT))
    assert len(every) == COUNT
    damaged.put("observations", keys.position_key(0, 7), None)
    kept = every[:7] + every[8:]
    with closing(RecordSpool()) as spool:
        stored = StoredRecords(damaged.port, 0, spool if is_spooled else None, held_bytes)
        reading = stored.all(COUNT)
        assert [next(reading) for _ in range(3)] == every[:3]
        assert not stored.is_read
        assert [*every[:3], *reading] == kept
        assert stored.is_read
        assert list(stored.between(0, COUNT)) == kept
        assert list(stored.between(5, 12)) == [*every[5:7], *every[8:12]]
        assert list(stored.between(7, 8)) == []
        assert [stored.at(0, offset) for offset in (0, 7, COUNT - 1, COUNT)] == [every[0], None, every[-1], None]
        # Only the log is read again.
        damaged.put("observations", keys.position_key(0, 9), None)
        assert stored.at(0, 9) == (None if way == "log" else every[9])
        assert (every[9] in list(stored.between(0, COUNT))) == (way != "log")


@pytest.mark.parametrize("held", [0, 5])
def test_records_beyond_the_limit_are_not_held(damaged: Damaged, held: int) -> None:
    """The limit is passed in the middle of the partition; no part of it stays in memory."""
    size = 500 + len(next(damaged.port.read(0, 0, 1)).data)
    stored = StoredRecords(damaged.port, 0, None, held * size)
    first = list(stored.all(COUNT))
    damaged.put("observations", keys.position_key(0, 0), None)
    assert list(stored.between(0, COUNT)) == first[1:]


def wrong_state(damage: Damaged) -> None:
    key, value = damage.rows("state")[0]
    damage.put("state", key, value + b"\0")


def missing_record(damage: Damaged) -> None:
    damage.put("observations", keys.position_key(0, 3), None)


def missing_change(damage: Damaged) -> None:
    damage.put("changes", damage.rows("changes")[0][0], None)


@pytest.mark.parametrize("change", [lambda damage: None, wrong_state, missing_record, missing_change])
def test_verify_finds_the_same_without_memory(damaged: Damaged, change: Callable[[Damaged], None]) -> None:
    change(damaged)
    with damaged.port.frozen(is_verified=True) as port:
        cut = Points(port, 0).end()
        held, again = (verify(port, cut, held_bytes=limit) for limit in (HELD_BYTES, 0))
    assert again == held
    assert (held.root != "") or held.mismatches
    assert bool(held.mismatches) == (change in {wrong_state, missing_record, missing_change})
