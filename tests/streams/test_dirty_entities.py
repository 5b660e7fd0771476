"""The fold's data on its latest records: everything requested, or nothing."""

from __future__ import annotations

import random

from refold.streams.snapshots.dirty_entities import NAMES_MAX, URGENT_BYTES, DirtyEntities

STATE_BYTES = 8
PARTITIONS = 3


def test_range_is_returned_whole_or_not_at_all(seed: int) -> None:
    """Each entity once, with the state after its last record, or without a state."""
    rng = random.Random(seed)
    told = DirtyEntities(60 * STATE_BYTES, names_max=150)
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
            told.add(partition, start, end, records[start:end])
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


def test_later_entries_do_not_belong_to_the_moment() -> None:
    told = DirtyEntities(1_000)
    told.add(0, 0, 2, [(b"t/x", b"first")])
    told.add(0, 2, 3, [(b"t/x", b"later"), (b"t/y", b"new")])
    assert told.between(0, 0, 2) == {b"t/x": b"first"}
    assert told.between(0, 2, 3) == {b"t/x": b"later", b"t/y": b"new"}


def test_partitions_are_separate() -> None:
    told = DirtyEntities(1_000)
    told.add(0, 0, 2, [(b"t/x", b"0")])
    told.add(1, 0, 2, [(b"t/y", b"1")])
    told.end(1)
    assert told.between(1, 0, 2) is None
    assert told.between(0, 0, 2) == {b"t/x": b"0"}


def test_sealing_becomes_urgent_before_states_would_be_dropped() -> None:
    told = DirtyEntities(100)
    for number in range(8):
        assert not told.is_urgent(0)
        told.add(number % 2, number, number + 2, [(b"t/%d" % number, bytes(10))])
    assert told.is_urgent(0), "what is kept of all partitions counts"
    assert all((told.between(0, 0, 8) or {b"": b""}).values()), "none is gone yet"
    assert not told.is_urgent(0)
    told.end(1)
    for number in range(8):
        assert not told.is_urgent(0)
        told.add(1, number, number + 1, [(b"t/%d" % number, bytes(10))])
    assert told.is_urgent(0)


def test_partition_with_many_entries_becomes_urgent_alone() -> None:
    told = DirtyEntities()
    told.add(1, 0, 1, [(b"t/x", bytes(URGENT_BYTES))])
    assert not told.is_urgent(1)
    told.add(1, 1, 2, [(b"t/y", b"1")])
    assert [told.is_urgent(partition) for partition in range(3)] == [False, True, False]
    told.between(1, 0, 2)
    assert not told.is_urgent(1)


def test_entries_dropped_for_missing_records_are_not_urgent() -> None:
    told = DirtyEntities(100)
    told.add(0, 0, 1, [(b"t/x", bytes(80))])
    told.add(0, 5, 6, [(b"t/y", bytes(10))])
    assert not told.is_urgent(0)


def test_entries_below_a_sealed_epoch_are_dropped() -> None:
    told = DirtyEntities(100)
    told.add(0, 0, 5, [(b"t/x", bytes(80))])
    told.add(0, 5, 6, [(b"t/y", b"1")])
    told.sealed(0, 5)
    assert not told.is_urgent(0)
    assert told.between(0, 5, 6) == {b"t/y": b"1"}


def test_largest_partition_is_evicted_first() -> None:
    """A partition that is never queried does not use the memory of those that are folded."""
    told = DirtyEntities(100)
    told.add(0, 0, 1, [(b"t/a", bytes(50))])
    told.add(0, 1, 2, [(b"t/b", bytes(40))])
    for number in range(4):
        told.add(1, number, number + 1, [(b"t/%d" % number, bytes(12))])
    assert all((told.between(1, 0, 4) or {b"": b""}).values())
    assert told.between(0, 0, 2) == {b"t/a": b"", b"t/b": bytes(40)}


def test_memory_is_bounded() -> None:
    told = DirtyEntities(10)
    for number in range(5):
        told.add(0, number, number + 1, [(b"t/x", b"s")] * NAMES_MAX)
    assert told.between(0, 0, 4) is None
    assert told.between(0, 4, 5) == {b"t/x": b""}
    assert told.between(0, 5, 5) is None
    told.add(0, 5, 6, [(b"t/x", b"s")])
    assert told.between(0, 5, 6) == {b"t/x": b"s"}
