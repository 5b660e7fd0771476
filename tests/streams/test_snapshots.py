"""Rebuilds from snapshots against full replays and the naive fold: at any cut, byte for byte."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.avro.errors import CorruptionError, UnknownEntity
from refold.avro.ids import identify
from refold.reducers.entity import stored_hash
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.rebuild.memory import RebuildMemory
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rebuild.result import Rebuilt
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.snapshotter import pause_s
from refold.streams.view import StateView
from refold_tests.clock import FileClock
from refold_tests.damaged import Damaged
from refold_tests.epochs import manifests
from refold_tests.full_replay import assert_full_replay, epochs_used
from refold_tests.histories import random_history
from refold_tests.kafka_topics import TIMEOUT_S
from refold_tests.opening import PARTITIONS, open_log, take
from refold_tests.reference import reference_root, reference_true_at
from refold_tests.sample_types import A, said
from refold_tests.varied_logs import Past, hashes_of, mixed_history, random_cut, records_of, reference_at
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside


class Small(NamedTuple):
    """So small limits that a short log spills, merges, files away and sets aside."""

    memory_bytes: int
    memory: RebuildMemory

    def sealing(self, **settings: Any) -> SnapshotSettings:
        """Return settings with which sealing merges too."""
        return SnapshotSettings(put_bytes=self.memory.put_bytes, **settings)

    def view(self, log: Log, cut: Cut, *, full: bool = False) -> StateView:
        return StateView(log.port, cut, rebuild(log.port, cut, full=full, **self._asdict()))


def assert_same(log: Log, cut: Cut, small: Small | None = None) -> Rebuilt:
    """A rebuild from whatever epoch is nearest is the full replay, and each entity is to be had alone; returns it."""
    limits = {} if small is None else small._asdict()
    found = assert_full_replay(log.port, cut, **limits)
    assert all(found.get(log.port.partition_of(name), name) == packed for name, packed in found.rows())
    return found


def assert_is_table(log: Log, small: Small) -> None:
    """At the end of the log it equals the owner's table, byte for byte."""
    assert dict(rebuild(log.port, log.point().cut, **small._asdict()).rows()) == dict(log.port.stored_entities())


@pytest.fixture
def small(seed: int) -> Small:
    rng = random.Random(seed)
    memory = RebuildMemory(
        put_bytes=rng.choice((1, 2_000)), objects=rng.choice((1, 3)), postponed_records=rng.choice((1, 50))
    )
    return Small(rng.choice((0, 3_000)), memory)


@pytest.mark.parametrize("number", range(10))
def test_rebuild_equals_the_full_replay_at_any_cut(tmp_path: Path, seed: int, number: int, small: Small) -> None:
    """Histories of several types, sealed and redefined at random moments."""
    rng = random.Random(seed + number)
    with open_log(tmp_path, partitions=rng.choice((1, 2, 4)), settings=small.sealing(changed_min=4)) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.run(mixed_history(seed + number, 250, rng.choice((2, 12, 40))), snapshots=0.4, redefined=0.05)
        past.snapshot()
        every = records_of(log)
        used: Counter[bool] = Counter()
        for count in range(25):
            cut = random_cut(log, rng, every)
            found = assert_same(log, cut, small)
            used[bool(epochs_used(found))] += 1
            if count < 3:
                hashes = hashes_of(reference_at(log, cut, every))
                assert {name: stored_hash(packed) for name, packed in found.rows()} == hashes
                assert found.root() == reference_root(hashes)
        assert used[True] > 10
        assert_is_table(log, small)
        for each in manifests(log):
            offsets = {**dict.fromkeys(range(log.port.partitions), 0), each.epoch.partition: each.epoch.offset}
            cut = Cut(log.port.log_id, offsets, each.epoch.schemas, log.port.registry.digest(each.epoch.schemas))
            found = assert_same(log, cut, small)
            assert (found.root(), found.entities, found.observations) == (each.root, each.entities, each.observations)
            assert found.source()["replayed"] == 0


def test_rebuild_uses_deltas_bases_and_cold_spans(tmp_path: Path) -> None:
    """Check that such a history reaches these paths at all: with one seed, and constant definitions."""
    rng = random.Random(1)
    with open_log(tmp_path, settings=SnapshotSettings(changed_min=4)) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.run(mixed_history(5, 400, 40), snapshots=0.5)
        past.snapshot()
        kinds = manifests(log)
        assert {each.is_base for each in kinds} == {True, False}
        assert {each.type_name for one in kinds for each in one.cold} == {"job", "task", "duty"}
        assert len({each.month for one in kinds for each in one.cold}) > 2
        begun = {epoch.offset for each in kinds if not each.is_base and each.cold for epoch in [each.epoch]}
        met: Counter[str] = Counter()
        every = records_of(log)
        for _ in range(30):
            found = assert_same(log, random_cut(log, rng, every))
            met["reopened"] += bool(found.source()["reopened"])
            met["cold delta"] += not begun.isdisjoint(epochs_used(found).values())
        assert min(met["reopened"], met["cold delta"]) > 3


@pytest.mark.parametrize("number", range(3))
def test_epochs_sealed_in_the_background(tmp_path: Path, seed: int, number: int, small: Small) -> None:
    """At any time at which the thread runs, while the fold continues."""
    rng = random.Random(seed + number)
    settings = small.sealing(epoch_records=5, cpu_share=math.inf, changed_min=4)
    with open_log(tmp_path, settings=settings) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        history = mixed_history(seed + number, 300)
        for start in range(0, len(history), 100):
            past.run(history[start : start + 100], snapshots=0.0, redefined=0.02)
            assert_same(log, log.point().cut, small)
        past.snapshot()  # waits for what is under way
        assert len(manifests(log)) > 2 * PARTITIONS
        every = records_of(log)
        for _ in range(20):
            assert_same(log, random_cut(log, rng, every), small)
        assert_is_table(log, small)


def test_thread_pauses_and_blocks_nobody(tmp_path: Path) -> None:
    """A thread that rests for ever after its first round: a request gets its snapshot, and closing ends it."""
    with open_log(tmp_path, settings=SnapshotSettings(epoch_records=5, cpu_share=1e-9)) as log:
        take(log, [said(A, number) for number in range(50)])
        await_true(lambda: bool(manifests(log)), within_s=TIMEOUT_S)
        take(log, [said(A, number) for number in range(50, 200)])
        assert len(manifests(log)) == 1
        log.snapshot()
        assert len(manifests(log)) == 2
        assert_same(log, log.point().cut)


def test_pause_limits_the_share_of_sealing() -> None:
    assert pause_s(used_s=0.2, took_s=1.0, share=0.2) == 0.0
    assert pause_s(used_s=0.4, took_s=0.5, share=0.2) == pytest.approx(1.5)
    assert pause_s(used_s=0.0, took_s=3.0, share=0.2) == 0.0


def test_late_observation_from_before_the_snapshot(tmp_path: Path, seed: int) -> None:
    """Each entity's second half of observations was made before its first."""
    rng = random.Random(seed)
    history = [each for each in random_history(seed, 200) if each.kind == "assert"]
    early = [said(f"{A}{number % 5}", number) for number in range(60)]
    with open_log(tmp_path) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.take([said(f"{A}{number % 5}", 1_000 + number) for number in range(60)])
        past.snapshot()
        past.run([*early, *history], snapshots=0.1)
        every = records_of(log)
        reopened = 0
        for count in range(20):
            cut = random_cut(log, rng, every)
            found = assert_same(log, cut)
            reopened += bool(found.source()["reopened"])
            if count < 5:
                assert found.root() == reference_root(hashes_of(reference_at(log, cut, every)))
        assert reopened


def test_true_at_a_time_does_not_depend_on_snapshots(tmp_path: Path, seed: int, small: Small) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path, settings=small.sealing()) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.run(mixed_history(seed, 120), snapshots=0.5, redefined=0.03)
        every = records_of(log)
        times = sorted({each.observed_at for records in every.values() for each in records})
        for _ in range(6):
            time = rng.choice(times)
            cut = random_cut(log, rng, every).until(time)
            expected = reference_at(log, cut, every, partial(_true_at, time))
            view = small.view(log, cut)
            assert view.entity_hashes() == hashes_of(expected)
            assert view.root == reference_root(hashes_of(expected)).hex()
            assert view.source["snapshot_epochs"] == {}


def _true_at(time: int, definition: Any, name: str, log: Any) -> Any:
    return reference_true_at(definition, name, log, time)


def test_damaged_table_row_is_named_and_does_not_prevent_later_sealing(tmp_path: Path, seed: int) -> None:
    """Bytes that do not begin like an entity; then the row is restored. Each epoch is a base from the whole table."""
    rng = random.Random(seed)
    with open_log(tmp_path, partitions=1, settings=SnapshotSettings(observations_min=1)) as log:
        damage = Damaged(log)
        for number in range(40):
            take(log, [said(A, number)])
            [(key, right)] = damage.rows("state")
            wrong = right[: number % 7] if number % 2 else right[:2] + bytes([rng.randrange(0x80, 0xCC)]) + right[3:]
            for value in (wrong, right):
                damage.put("state", key, value)
                if value is wrong:
                    with pytest.raises(CorruptionError, match="a stored state does not begin with"):
                        log.snapshot()
            log.snapshot()
        assert len(log.port.snapshots.epochs(0)) >= 40
        assert_same(log, log.point().cut)


# Two owners


def test_same_log_in_other_batches_has_the_same_snapshots(tmp_path: Path, seed: int) -> None:
    """Sealed at the same points, records and manifests are equal byte for byte; one of the owners changes each time."""
    settings = SnapshotSettings(changed_min=4)
    rng = random.Random(seed)
    history = mixed_history(seed, 300, 40)
    points = sorted({*rng.sample(range(len(history)), 12), len(history)})
    stored = []
    for number, at_once in enumerate((1, 40)):
        path = tmp_path / str(number) / "same"
        path.mkdir(parents=True)
        begin = 0
        log = open_log(path, partitions=4, settings=settings)
        for point in points:
            if number:
                log.close()
                log = open_log(path, partitions=4, settings=settings)
            past = Past(log, FileClock(path / "clock"), random.Random(seed))
            for start in range(begin, point, at_once):
                for each in history[start : min(start + at_once, point)]:
                    log.append(each, identify(each), past.current[each.type], {})
                log.flush()
            begin = point
            log.snapshot()
        sealed = manifests(log)
        spans = {(each.epoch.partition, span) for each in sealed for span in each.spans}
        stored.append(
            (
                [each.encoded for each in sealed],
                {(partition, span): list(log.port.snapshots.span(partition, span)) for partition, span in spans},
            )
        )
        log.close()
    assert len(stored[0][1]) > 30
    assert stored[0] == stored[1]


# Views


def test_view_over_snapshots_answers_for_every_entity(tmp_path: Path, seed: int, small: Small) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path, settings=small.sealing()) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.run(mixed_history(seed, 200, 30), snapshots=0.4)
        every = records_of(log)
        for _ in range(6):
            cut = random_cut(log, rng, every)
            view = small.view(log, cut)
            states = reference_at(log, cut, every)
            assert list(view) == sorted(states)
            assert len(view) == len(states)
            assert view.entity_hashes() == hashes_of(states)
            for name, state in states.items():
                assert name in view
                entity = view[name]
                assert entity.tree == state
                assert (entity.entity, entity.version, entity.cut) == (name, state["version"], cut)
                assert entity.state_hash == hashes_of({name: state})[name].hex()
            for name in ("everything/none", "no", "", "/", "\ud800", "job/\ud800"):
                assert name not in view
                with pytest.raises(UnknownEntity, match="it has no observation at"):
                    view[name]
            assert 5 not in view


def test_differences_between_views_are_found(tmp_path: Path, seed: int, small: Small) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path, partitions=4, settings=small.sealing()) as log:
        past = Past(log, FileClock(tmp_path / "clock"), rng)
        past.run(mixed_history(seed, 250, 60), snapshots=0.4, redefined=0.03)
        every = records_of(log)
        cuts = [random_cut(log, rng, every) for _ in range(8)]
        views = [small.view(log, cut, full=rng.random() < 0.3) for cut in cuts]
        for one in views:
            for other in (*views, views[0]):
                before, after = one.entity_hashes(), other.entity_hashes()
                expected = sorted(n for n in before.keys() | after.keys() if before.get(n) != after.get(n))
                assert one.differing(other) == expected
                assert (one.root == other.root) == (not expected)
