"""Rebuilding at any cut, compared with the naive reference: states, roots, and what does not affect them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import NotAnswerable
from refold.avro.ids import identify
from refold.streams.rebuild.memory import RebuildMemory
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.view import StateView
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import ENTITIES, random_history
from refold_tests.offsets_below import DEFINITION, Offsets, every_cut, logged, names, some_cuts
from refold_tests.opening import open_log, take
from refold_tests.reference import reference_hash, reference_root, reference_state, reference_true_at
from refold_tests.sample_types import NAMES, A, defined, document, said


def assert_is(view: StateView, expected: dict[str, dict[str, Any]]) -> None:
    """Check that the view has exactly these states."""
    hashes = {name: reference_hash(state) for name, state in expected.items()}
    assert view.entity_hashes() == hashes
    assert view.root == reference_root(hashes).hex()
    assert view.observations == sum(state["version"] for state in expected.values())
    assert list(view) == sorted(expected)
    assert len(view) == len(expected)


def states(log: Offsets) -> dict[str, dict[str, Any]]:
    return {name: reference_state(DEFINITION, name, log) for name in names(log)}


@pytest.mark.parametrize("number", range(4))
def test_rebuild_at_every_offset_is_the_fold_of_what_is_below(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 22), seed)
        for cut, expected in every_cut(log):
            view = log.rebuild(cut)
            assert view.cut == cut
            assert_is(view, states(expected))


@pytest.mark.parametrize("number", range(4))
def test_rebuild_of_a_longer_log(tmp_path: Path, seed: int, number: int) -> None:
    with open_log(tmp_path, partitions=8) as log:
        logged(log, random_history(seed + number, 250), seed)
        for cut, expected in some_cuts(log, seed, 8):
            assert_is(log.rebuild(cut), states(expected))
        verdict = log.verify()
        assert verdict.mismatches == []
        assert verdict.root == log.rebuild().root
        assert (verdict.observations, verdict.entities) == (log.rebuild().observations, len(log.rebuild()))


@pytest.mark.parametrize("number", range(3))
def test_true_at_is_the_fold_of_what_was_observed_by_then_under_every_retraction(
    tmp_path: Path, seed: int, number: int
) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed + number, 60), seed)
        for cut, expected in some_cuts(log, seed, 4):
            times = {each.observed_at for _, each in expected}
            for time in [min(times, default=0) - 1, *sorted(times)]:
                found = {name: reference_true_at(DEFINITION, name, expected, time) for name in names(expected)}
                true = {name: state for name, state in found.items() if state is not None}
                assert_is(log.rebuild(cut.until(time)), true)
                for name in names(expected):
                    if name in true:
                        assert log.state(name, cut.until(time)).state_hash == reference_hash(true[name]).hex()
                    else:
                        with pytest.raises(NotAnswerable):
                            log.state(name, cut.until(time))


def test_root_does_not_depend_on_partitions_order_or_repeats(tmp_path: Path, seed: int) -> None:
    observations = random_history(seed, 150)
    shuffled = [*observations, *observations[:50]]
    random.Random(seed).shuffle(shuffled)
    roots = set()
    for partitions, given in ((1, observations), (2, shuffled), (64, observations)):
        (tmp_path / str(partitions)).mkdir()
        with open_log(tmp_path / str(partitions), partitions=partitions) as log:
            logged(log, given, seed)
            roots.add((log.rebuild().root, log.rebuild().observations))
    assert len(roots) == 1


def test_entities_set_aside_and_spilled_are_restored(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    observations = [said(f"{A}{rng.randrange(40)}", rng.randrange(200)) for _ in range(400)]
    with open_log(tmp_path) as log:
        logged(log, observations, seed)
        cut = log.point().cut
        view = StateView(log.port, cut, rebuild(log.port, cut, memory=RebuildMemory(objects=2)))
        assert_is(view, states(list(enumerate(observations))))
        source = view.source
        assert (source["snapshot_epochs"], source["replayed"]) == ({}, 400)
        assert bool(source["scanned"]) == bool(source["reopened"])


def test_rebuild_is_unaffected_by_concurrent_writes(tmp_path: Path, seed: int) -> None:
    observations = random_history(seed, 120)
    with open_log(tmp_path) as log, open_log(tmp_path) as remote, open_log(tmp_path, read_only=True) as reader:
        logged(log, observations[:60], seed)
        cut = log.point().cut
        expected = log.rebuild(cut)
        for start in range(60, len(observations), 20):
            take(remote, observations[start : start + 20])
            for each in (log, remote, reader):
                view = each.rebuild(cut)
                assert (view.root, view.observations) == (expected.root, expected.observations)
        assert len({each.rebuild().root for each in (log, remote, reader)}) == 1
        assert_is(reader.rebuild(), states(list(enumerate(observations))))


def test_each_cut_is_folded_by_the_definitions_below_it(tmp_path: Path) -> None:
    clock = FileClock(tmp_path / "clock")
    greatest = defined(
        document(last={"type": "long", "refold.reducer": "max"}, more={"type": "long", "refold.reducer": "sum"})
    )
    with open_log(tmp_path) as log:
        take(log, [said(A, 0, last=9), said(A, 1, last=3)])
        before = log.point().cut
        clock.set(BEGIN_MS + 10)
        log.register(greatest)
        between = log.point().cut
        clock.set(BEGIN_MS + 20)
        take(log, [said(A, 2, last=5, more=4), said(A, 3, more=1)], greatest)
        values = [
            (log.rebuild(cut)[A].fields, log.state(A, cut).fields)
            for cut in (before, between, None, "2023-11-14T22:13:20Z", "2023-11-14T22:13:20.01Z", "v2", "v3")
            if not isinstance(cut, str) or not cut.startswith("v")
        ]
        fields = [{"last": 3}, {"last": 9}, {"last": 9, "more": 5}, {"last": 3}, {"last": 9}]
        assert values == [(each, each) for each in fields]
        assert [row.new for row in log.history(A) if row.field == "last"] == [9]
        assert [row.new for row in log.history(A, until=before)] == [9, 3]
        assert log.diff(before, between) == []
        assert [(row.field, row.old, row.new) for row in log.diff(before)] == [("more", None, 5)]
        assert log.verify().mismatches == []


def test_unusual_names_are_kept_apart(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    observations = [said(rng.choice(NAMES), number) for number in range(200)]
    observations += [said(name, number) for number, name in enumerate(ENTITIES)]
    with open_log(tmp_path) as log:
        logged(log, observations, seed)
        view = log.rebuild()
        assert set(view) == {each.entity for each in observations}
        for name in view:
            own = list({identify(each): each for each in observations if each.entity == name}.values())
            assert [each.seen.observation for each in view[name].history] == own
            assert log.state(name).state_hash == view[name].state_hash
