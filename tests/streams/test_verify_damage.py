"""verify finds any changed row from which rebuilds start, and no answer changes because of it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.file.snapshots import FileSnapshotStore
from refold.streams.rocks.families import Family
from refold.streams.snapshots.manifest import Manifest, OffsetSpan
from refold.streams.snapshots.store import Tombstone
from refold.streams.table import keys
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.damaged import Damaged, with_changed_end
from refold_tests.epochs import CLOSING, SMALL_EPOCHS, close_many, grow, manifests
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, A, said
from refold_tests.varied_logs import cuts_below

pytestmark = pytest.mark.outside

ROUNDS = 25
CUTS = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """A log with epochs of every kind, pins, tombs and checkpoints."""
    path = tmp_path_factory.mktemp("whole")
    with open_log(path, types=(CLOSING, OTHER), settings=SMALL_EPOCHS) as log:
        close_many(log, 60)
        FileClock(path / "clock").set(BEGIN_MS + 1)
        grow(log, random.Random(11), 8)
        take(log, [said(A, number, last=number, log=[number]) for number in range(70)], CLOSING)
        log.snapshot(pin=True)
        grow(log, random.Random(12), 2)
        damage = Damaged(log)
        store = FileSnapshotStore(damage.database, log.port.partitions)
        removed = manifests(log)[2]
        store.add_tombstone(Tombstone(removed.epoch, 1, removed.encoded))
        assert damage.found() == set()
        yield damage


def named(log: Log) -> set[bytes]:
    """Return the keys of the snapshot records that a manifest names: others are unused."""
    return {
        keys.position_key(each.epoch.partition, offset)
        for each in manifests(log)
        for span in each.spans
        for offset in range(span.start, span.end)
    }


def answers(log: Log, cut: Cut, *, full: bool) -> tuple[str, int, int, dict[str, str]]:
    view = log.rebuild(cut, full=full)
    hashes = {name: view[name].state_hash for name in view}
    assert {name: digest.hex() for name, digest in view.entity_hashes().items()} == hashes
    return view.root, view.observations, len(view), hashes


def changed(rng: random.Random, family: Family, key: bytes, value: bytes) -> tuple[bytes, bytes | None, str]:
    """(key, value, what was done): a bit turned in one of them, or, of what is always missed, the row cut or gone."""
    kind = rng.choice(("turn", "turn", "turn", "cut", "longer", "remove"))
    if kind == "remove" and family == "snapshots":
        return key, None, kind
    if kind == "cut" and value:
        return key, value[: rng.randrange(len(value))], kind
    if kind == "longer":
        return key, value + bytes([rng.randrange(256)]), kind
    at, bit = rng.randrange(len(value) + len(key)), 1 << rng.randrange(8)
    if at < len(value):
        return key, value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :], f"bit {bit} at {at}"
    at -= len(value)
    return key[:at] + bytes([key[at] ^ bit]) + key[at + 1 :], value, f"bit {bit} at {at} of the key"


@pytest.mark.parametrize("family", ["snapshots", "manifests", "checkpoints"])
def test_changed_row_is_found_and_no_answer_is_silently_wrong(whole: Damaged, seed: int, family: Family) -> None:
    rng = random.Random(f"{seed}{family}")
    print(f"seed {seed}")
    log = whole.log
    known = named(log)
    rows = [row for row in whole.rows(family) if family != "snapshots" or row[0] in known]
    assert rows
    for _ in range(ROUNDS):
        key, value = rng.choice(rows)
        other, new, done = changed(rng, family, key, value)
        with whole.undone(family):
            whole.put(family, key, None)
            whole.put(family, other, new)
            assert not log.verify().ok, (key, done)
            for cut in [log.point().cut, *cuts_below(log.point().cut, rng, CUTS)]:
                assert answers(log, cut, full=False) == answers(log, cut, full=True), (key, done, cut.offsets)
            assert log.state(A).state_hash == log.rebuild(full=True)[A].state_hash
    assert log.verify().mismatches == []


def kinds(log: Log) -> dict[str, tuple[Manifest, OffsetSpan]]:
    """The newest span of each kind that the last epoch of a partition reads."""
    every = [log.port.snapshots.manifest(log.port.snapshots.epochs(partition)[-1]) for partition in range(2)]
    last = max(every, key=lambda each: (len(each.ranges), len(each.cold)))
    assert not last.is_base
    return {
        "base": (last, last.ranges[0]),
        "delta": (last, last.ranges[-1]),
        "cold": (last, last.cold[0].span),
        "late": (last, last.cold[-1].span._replace(start=last.cold[-1].span.end - 1)),
        "index": (last, last.index[0]),
        "buckets": (last, last.buckets[0]),
    }


@pytest.mark.parametrize("kind", ["base", "delta", "cold", "late", "index", "buckets"])
@pytest.mark.parametrize("lost", [False, True])
def test_answer_started_from_a_damaged_span_says_so(whole: Damaged, kind: str, lost: bool) -> None:
    """Every record of a span, so that any query reads it; closed entities are looked up late."""
    log = whole.log
    manifest, span = kinds(log)[kind]
    cut = log.point().cut
    right = answers(log, cut, full=True)
    with whole.undone("snapshots"):
        for offset in range(span.start, span.end):
            key = keys.position_key(manifest.epoch.partition, offset)
            value = whole.database.get("snapshots", key)
            assert value is not None
            whole.put("snapshots", key, None if lost else with_changed_end(value))
        view = log.rebuild(cut)
        by_name = {name: view[name].state_hash for name in right[3]}
        assert (view.root, view.observations, len(view), by_name) == right
        assert list(view) == sorted(right[3])
        assert list(log.rebuild(cut)) == sorted(right[3])  # iterated before anything is looked up
        assert dict(view.entity_hashes()) == {name: bytes.fromhex(found) for name, found in right[3].items()}
        assert view.differing(log.rebuild(cut, full=True)) == []
        fallbacks = view.source["fallbacks"]
        assert isinstance(fallbacks, list)
        assert any(str(manifest.epoch) in each for each in fallbacks)
        taken = log.rebuild(cut, types=[CLOSING.name])
        assert {name: taken[name].state_hash for name in taken} == {
            name: found for name, found in right[3].items() if name.startswith(f"{CLOSING.name}/")
        }


def test_epochs_are_sealed_again_after_damage(tmp_path: Path, seed: int) -> None:
    """An epoch sealed on top of damage is not damaged, except for closed entities that are not read again."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    with open_log(tmp_path, types=(CLOSING, OTHER), settings=SMALL_EPOCHS) as log:
        grow(log, rng, 5)
        damage = Damaged(log)
        for partition in range(2):
            last = log.port.snapshots.epochs(partition)[-1]
            damage.change("manifests", last.key, with_changed_end)
        grow(log, rng, 3)
        for partition in range(2):
            assert log.port.snapshots.manifest(log.port.snapshots.epochs(partition)[-1]).entities
        assert all(place.startswith("manifests ") for place, _, _ in damage.found())
        assert log.rebuild().root == log.rebuild(full=True).root
