"""The fold's data on its latest records: everything requested, or nothing."""

from __future__ import annotations

import random

import pytest

from refold.streams.snapshots import dirty_entities
from refold.streams.snapshots.dirty_entities import PRESSING_BYTES, DirtyEntities

STATE_BYTES = 8
PARTITIONS = 3


def test_all_of_a_range_is_given_or_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entity once, with the state after its last record, or without a state."""
    monkeypatch.setattr(dirty_entities, "NAMES_MAX", 150)
    rng = random.Random(seed)
    told = DirtyEntities(60 * STATE_BYTES)
    every = {
        partition: [(b"t/%d" % rng.randrange(30), rng.randbytes(STATE_BYTES)) for _ in range(1_000)]
        for partition in range(PARTITIONS)
    }
    begun, sealed, at = [0] * PARTITIONS, [0] * PARTITIONS, [0] * PARTITIONS
    met = {"whole": 0, "in part": 0, "not known": 0}
    while min(at) < 1_000:
        partition = rng.choice([each for each in range(PARTITIONS) if at[each] < 1_000])
        records, start = every[partition], at[partition]
        end = at[partition] = min(start + rng.randint(1, 20), 1_000)
        if rng.random() < 0.02:  # another process folded these
            begun[partition] = end
        else:
            told.tell(partition, start, end, records[start:end])
        if rng.random() < 0.2:
            assert told.between(partition, sealed[partition], end + 1) is None
            assert told.between(partition, sealed[partition], end) is None, "what was asked for is let go"
            sealed[partition] = end
        if rng.random() < 0.3:
            since = sealed[partition]
            found = told.between(partition, since, end)
            if found is None:
                met["not known"] += since < end
            else:
                assert since >= begun[partition]
                expected = dict(records[since:end])
                assert expected.keys() <= found.keys() <= dict(records[max(0, since - 20) : end]).keys()
                assert all(found[name] in {state, b""} for name, state in expected.items())
                met["whole" if all(found.values()) else "in part"] += 1
            sealed[partition] = end
    assert all(met.values()), met


def test_what_is_told_later_is_not_of_the_moment() -> None:
    told = DirtyEntities(1_000)
    told.tell(0, 0, 2, [(b"t/x", b"first")])
    told.tell(0, 2, 3, [(b"t/x", b"later"), (b"t/y", b"new")])
    assert told.between(0, 0, 2) == {b"t/x": b"first"}
    assert told.between(0, 2, 3) == {b"t/x": b"later", b"t/y": b"new"}


def test_partitions_are_told_apart() -> None:
    told = DirtyEntities(1_000)
    told.tell(0, 0, 2, [(b"t/x", b"0")])
    told.tell(1, 0, 2, [(b"t/y", b"1")])
    told.end(1)
    assert told.between(1, 0, 2) is None
    assert told.between(0, 0, 2) == {b"t/x": b"0"}


def test_it_presses_when_states_would_be_forgotten_before_they_are_asked_for() -> None:
    told = DirtyEntities(100)
    for number in range(8):
        assert not told.is_pressing(0)
        told.tell(number % 2, number, number + 2, [(b"t/%d" % number, bytes(10))])
    assert told.is_pressing(0), "what is kept of all partitions counts"
    assert all((told.between(0, 0, 8) or {b"": b""}).values()), "none is gone yet"
    assert not told.is_pressing(0)
    told.end(1)
    for number in range(8):
        assert not told.is_pressing(0)
        told.tell(1, number, number + 1, [(b"t/%d" % number, bytes(10))])
    assert told.is_pressing(0)


def test_a_partition_of_which_much_was_told_presses_by_itself() -> None:
    told = DirtyEntities()
    told.tell(1, 0, 1, [(b"t/x", bytes(PRESSING_BYTES))])
    assert not told.is_pressing(1)
    told.tell(1, 1, 2, [(b"t/y", b"1")])
    assert [told.is_pressing(partition) for partition in range(3)] == [False, True, False]
    told.between(1, 0, 2)
    assert not told.is_pressing(1)


def test_what_is_let_go_because_records_are_missing_does_not_press() -> None:
    told = DirtyEntities(100)
    told.tell(0, 0, 1, [(b"t/x", bytes(80))])
    told.tell(0, 5, 6, [(b"t/y", bytes(10))])
    assert not told.is_pressing(0)


def test_what_an_epoch_was_sealed_past_is_let_go() -> None:
    told = DirtyEntities(100)
    told.tell(0, 0, 5, [(b"t/x", bytes(80))])
    told.tell(0, 5, 6, [(b"t/y", b"1")])
    told.sealed(0, 5)
    assert not told.is_pressing(0)
    assert told.between(0, 5, 6) == {b"t/y": b"1"}


def test_who_has_most_pays_for_what_is_too_much() -> None:
    """A partition that is never queried does not use the memory of those that are folded."""
    told = DirtyEntities(100)
    told.tell(0, 0, 1, [(b"t/a", bytes(50))])
    told.tell(0, 1, 2, [(b"t/b", bytes(40))])
    for number in range(4):
        told.tell(1, number, number + 1, [(b"t/%d" % number, bytes(12))])
    assert all((told.between(1, 0, 4) or {b"": b""}).values())
    assert told.between(0, 0, 2) == {b"t/a": b"", b"t/b": bytes(40)}


def test_only_so_much_is_kept() -> None:
    told = DirtyEntities(10)
    for number in range(5):
        told.tell(0, number, number + 1, [(b"t/x", b"s")] * dirty_entities.NAMES_MAX)
    assert told.between(0, 0, 4) is None
    assert told.between(0, 4, 5) == {b"t/x": b""}
    assert told.between(0, 5, 5) is None
    told.tell(0, 5, 6, [(b"t/x", b"s")])
    assert told.between(0, 5, 6) == {b"t/x": b"s"}
