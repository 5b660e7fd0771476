"""One entity at a past point: from a checkpoint or from nothing, its hash equals that of the naive reference fold."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from refold.avro.definition import TypeDefinition
from refold.avro.errors import CorruptionError, NotAnswerable
from refold.avro.observation import Observation, Source
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.file.log import FileLog
from refold.streams.log.port import Checkpoint, LogPort
from refold.streams.table import keys
from refold.streams.table.checkpoints import FIRST, PER_VERSION_BYTES, STEP, checkpoint_of, checkpoint_value, is_due
from refold_tests import offsets_below
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.damaged import Damaged
from refold_tests.histories import EVERYTHING, TYPE, Regime, random_history
from refold_tests.offsets_below import DEFINITION, Offsets
from refold_tests.opening import open_log, take
from refold_tests.reference import Definition, reference_hash, reference_state, reference_true_at
from refold_tests.sample_types import BEGIN, PICKY, THING, A, defined, document, reference_definition, said

pytestmark = pytest.mark.outside

ONE = f"{TYPE}/0"
LENGTH = 220

CALM = Regime(
    entities=1, sources=4, tick_chance=0.9, past_chance=0.0, late_chance=0.05, late_max=30, copy_chance=0.1,
    clear_chance=0.02, retract_chance=0.02, unknown_chance=0.1, link_chance=0.1, priority_chance=0.05,
)  # fmt: skip
REGIMES = {
    "calm": CALM,
    "in order": replace(CALM, late_chance=0.0, clear_chance=0.0, retract_chance=0.0),
    "late": replace(CALM, late_chance=0.4, late_max=300, past_chance=0.1),
    "retracting": replace(CALM, retract_chance=0.3, late_chance=0.3),
    "never seen": replace(CALM, retract_chance=0.5, unknown_chance=0.9),
    "clearing": replace(CALM, clear_chance=0.3, late_chance=0.2),
    "many sources": replace(CALM, sources=60, copy_chance=0.4),
}
DIRECT = [name for name in EVERYTHING if name not in {"log", "folded"}]
"""The fields that fold in any order."""


class Used:
    """The checkpoints that a log returned, and how often an entity was folded from nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.offsets: list[int] = []
        self.from_nothing = 0
        kept: Callable[..., Checkpoint | None] = FileLog.checkpoint
        folded: Callable[..., Entity] = Fold.from_nothing

        def checkpoint(*given: Any) -> Checkpoint | None:
            found = kept(*given)
            self.offsets += [] if found is None else [found.offset]
            return found

        def from_nothing(*given: Any) -> Entity:
            self.from_nothing += 1
            return folded(*given)

        patch.setattr(FileLog, "checkpoint", checkpoint)
        patch.setattr(Fold, "from_nothing", from_nothing)

    def reset(self) -> None:
        self.offsets.clear()
        self.from_nothing = 0


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> Used:
    return Used(monkeypatch)


def logged(log: Log, observations: list[Observation], seed: int) -> None:
    """Record in flushes of random size, some of which contain several checkpoints."""
    offsets_below.logged(log, observations, seed, range(1, 41))


def records(log: Log) -> Offsets:
    """The records of the one entity's partition."""
    return offsets_below.records(log)[log.port.partition_of(ONE)]


def cut_at(log: Log, end: int, name: str = ONE) -> Cut:
    return log.point(f"offset:{log.port.partition_of(name)}={end}").cut


def assert_known(log: Log, cut: Cut, below: Offsets, definition: Definition) -> None:
    expected = reference_state(definition, ONE, below)
    found = log.state(ONE, cut)
    assert (found.version, found.state_hash) == (expected["version"], reference_hash(expected).hex())


def assert_true(log: Log, cut: Cut, below: Offsets, definition: Definition) -> None:
    assert cut.observed_until is not None
    expected = reference_true_at(definition, ONE, below, cut.observed_until)
    if expected is None:
        with pytest.raises(NotAnswerable):
            log.state(ONE, cut)
        return
    found = log.state(ONE, cut)
    assert (found.version, found.state_hash) == (expected["version"], reference_hash(expected).hex())


@pytest.mark.parametrize("regime", REGIMES)
def test_known_at_every_version(tmp_path: Path, seed: int, regime: str, used: Used) -> None:
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, LENGTH, REGIMES[regime]), seed)
        every = records(log)
        for end in range(1, len(every) + 1):
            used.reset()
            assert_known(log, cut_at(log, end), every[:end], DEFINITION)
            # All records between two checkpoints fold directly.
            is_long = len(list(log.port.arrivals(ONE, end))) >= FIRST
            assert (len(used.offsets), used.from_nothing) == ((1, 0) if is_long else (0, 1))
        assert log.verify().mismatches == []


@pytest.mark.parametrize("regime", REGIMES)
def test_true_at_random_times_under_random_cuts(tmp_path: Path, seed: int, regime: str, used: Used) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, LENGTH, REGIMES[regime]), seed)
        every = records(log)
        asked = 0
        used.reset()
        for end in [len(every), *(rng.randint(1, len(every)) for _ in range(7))]:
            times = sorted({each.observed_at for _, each in every[:end]})
            for time in {times[0] - 1, times[-1], times[-1] + 1, *rng.choices(times, k=12)}:
                assert_true(log, cut_at(log, end).until(time), every[:end], DEFINITION)
                asked += 1
        if regime == "in order":
            assert used.offsets
            assert used.from_nothing < asked / 2


@pytest.mark.parametrize(("retract_chance", "unknown_chance"), [(0.0, 0.0), (0.6, 1.0), (0.02, 0.1), (0.2, 0.1)])
def test_true_at_folds_late_observations_onto_a_checkpoint(
    tmp_path: Path, seed: int, retract_chance: float, unknown_chance: float, used: Used
) -> None:
    """Without in-order fields, without clears, and if no existing observation is retracted (but perhaps with
    more retracted than a dedup state holds), nothing is folded from nothing.
    """
    is_direct = unknown_chance in {0.0, 1.0}
    rng = random.Random(seed)
    regime = replace(
        CALM, late_chance=0.2, late_max=100, clear_chance=0.0, retract_chance=retract_chance,
        unknown_chance=unknown_chance,
    )  # fmt: skip
    narrowed = [
        each._replace(patch={name: value for name, value in each.patch.items() if name in DIRECT} or {"hits": 1})
        if each.link is None
        else each
        for each in random_history(seed, LENGTH, regime)
    ]
    with open_log(tmp_path) as log:
        logged(log, narrowed, seed)
        every = records(log)
        times = sorted({each.observed_at for _, each in every})
        for time in rng.choices(times, k=40):
            end = rng.choice((len(every), rng.randint(1, len(every))))
            used.reset()
            assert_true(log, cut_at(log, end).until(time), every[:end], DEFINITION)
            if is_direct:
                assert used.from_nothing == (0 if used.offsets else 1)
        if is_direct:
            used.reset()
            log.state(ONE, cut_at(log, len(every)).until(times[-1]))
            assert len(used.offsets) == 1


def definitions() -> list[TypeDefinition]:
    """Three versions of the type: other reducers, an additional field, a new custom reducer."""
    long: dict[str, Any] = {"type": "long"}
    own = {**long, "refold.reducer": "custom", "refold.function": "refold_tests.histories:folded"}
    second: dict[str, Any] = {"last": {**long, "refold.reducer": "max"}, "more": {**long, "refold.reducer": "sum"}}
    third: dict[str, Any] = {**second, "hits": own, "start": {"type": "string", "refold.reducer": "latest"}}
    return [THING, defined(document(**second)), defined(document(**third))]


@pytest.mark.parametrize("regime", ["calm", "late"])
def test_each_cut_is_folded_by_its_own_definitions(tmp_path: Path, seed: int, regime: str, used: Used) -> None:
    rng = random.Random(seed)
    clock = FileClock(tmp_path / "clock")
    observations = random_history(seed, LENGTH, REGIMES[regime])
    ends = [0, *sorted(rng.sample(range(40, len(observations)), 2)), len(observations)]
    versions = definitions()
    with open_log(tmp_path) as log:
        for number, version in enumerate(versions):
            clock.set(BEGIN_MS + 10 * number)
            log.register(version)
            if ends[number]:
                used.reset()
                log.state(ONE)  # a definition leaves a checkpoint of what it folded again
                assert (len(used.offsets), used.from_nothing) == (1, 0)
            clock.set(BEGIN_MS + 10 * number + 5)
            take(log, observations[ends[number] : ends[number + 1]], version)
        every = records(log)
        for end in rng.sample(range(1, len(every) + 1), 60):
            natural = cut_at(log, end)
            # With any definitions in a cut, also those from before and after its time.
            for schemas in (1, 2, 3):
                cut = replace(natural, schemas=schemas, types_digest=log.port.registry.digest(schemas))
                definition = reference_definition(versions[schemas - 1])
                used.reset()
                assert_known(log, cut, every[:end], definition)
                is_long = len(list(log.port.arrivals(ONE, end))) >= FIRST
                if schemas == natural.schemas and is_long and regime == "calm":
                    assert used.offsets
                assert_true(log, cut.until(rng.choice(every[:end])[1].observed_at), every[:end], definition)
        assert log.verify().mismatches == []


def test_log_without_arrivals_and_checkpoints(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port's generic methods, which every log has, return the same as the fast ones."""
    rng = random.Random(seed)
    with open_log(tmp_path) as log:
        logged(log, random_history(seed, 120, CALM), seed)
        every = records(log)
        ends = [(rng.randint(0, len(every)), rng.randint(0, len(every))) for _ in range(10)]
        arrivals = [list(log.port.arrivals(ONE, end, start)) for end, start in ends]
        qs = [each.q for each in log.port.arrivals(ONE, len(every))]
        rng.shuffle(qs)
        found = list(log.port.records_of(ONE, qs))
        for name in ("arrivals", "records_of", "entity_records", "checkpoint"):
            monkeypatch.setattr(FileLog, name, getattr(LogPort, name))
        assert [list(log.port.arrivals(ONE, end, start)) for end, start in ends] == arrivals
        assert list(log.port.records_of(ONE, qs)) == found
        with pytest.raises(CorruptionError, match="lacks the observation"):
            list(log.port.records_of(ONE, [bytes(80)]))
        for end in (1, len(every) // 2, len(every)):
            assert_known(log, cut_at(log, end), every[:end], DEFINITION)
            time = rng.choice(every[:end])[1].observed_at
            assert_true(log, cut_at(log, end).until(time), every[:end], DEFINITION)


def test_assertion_that_fails_a_custom_reducer_may_be_hidden_by_a_clear(tmp_path: Path, used: Used) -> None:
    def cleared(number: int) -> Observation:
        return said(A, number)._replace(patch={}, cleared=("start",))

    texts = [said(A, number, start="x") for number in range(FIRST)]
    # The clear hides the bad one behind it, but neither is held by a checkpoint that was taken before #200.
    late = [said(A, 200, start="z"), cleared(100), said(A, 99, start="bad"), said(A, 101, start="y")]
    with open_log(tmp_path, types=(PICKY,)) as log:
        take(log, [*texts, *late], PICKY)
        now = log.point().cut
        used.reset()
        assert log.state(A, now.until(BEGIN + 150_000_000)).fields == {"start": "y"}
        assert used.offsets == [FIRST - 1]
        assert used.from_nothing == 0
        assert log.state(A, now).fields == {"start": "yz"}
        assert log.verify().mismatches == []


# Damage


class Kept(Damaged):
    """A log with one long entity, and its stored checkpoints, which a test replaces."""

    def __init__(self, log: Log, seed: int) -> None:
        super().__init__(log)
        logged(log, random_history(seed, 200, CALM), seed)
        self.every = records(log)
        self.checkpoints = self.rows("checkpoints")
        assert len(self.checkpoints) > 5

    def found_wrong(self) -> list[tuple[str, str]]:
        """(entity, problem) of every mismatch, all of them of checkpoints."""
        found = self.log.verify().mismatches
        assert {each.place for each in found} <= {"checkpoints"}
        return [(each.entity, each.problem) for each in found]

    def assert_right(self, rng: random.Random) -> None:
        for end in [len(self.every), *rng.sample(range(1, len(self.every)), 15)]:
            assert_known(self.log, cut_at(self.log, end), self.every[:end], DEFINITION)
            time = rng.choice(self.every[:end])[1].observed_at
            assert_true(self.log, cut_at(self.log, end).until(time), self.every[:end], DEFINITION)


def test_flipped_bit_is_named_and_no_state_is_wrong(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path) as log:
        kept = Kept(log, seed)
        damaged = rng.sample(kept.checkpoints, 5)
        for key, value in damaged:
            at = rng.randrange(len(value))
            kept.put("checkpoints", key, value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :])
        kept.put("checkpoints", kept.checkpoints[-1][0], b"")
        kept.assert_right(rng)
        places = sorted({key for key, _ in damaged} | {kept.checkpoints[-1][0]})
        expected = [
            (ONE, f"the checkpoint of {ONE} at offset {keys.checkpoint_place(key)[1]} is damaged: its checksum does "
             "not match; run refold verify") for key in places
        ]  # fmt: skip
        assert kept.found_wrong() == expected


def test_everything_is_folded_from_nothing_without_checkpoints(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        kept = Kept(log, seed)
        for key, _ in kept.checkpoints:
            kept.put("checkpoints", key, None)
        kept.assert_right(random.Random(seed))
        assert kept.found_wrong() == []


def test_checkpoint_of_another_entity_is_named_and_not_used(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        kept = Kept(log, seed)
        (first, value), (second, _) = kept.checkpoints[1], kept.checkpoints[3]
        kept.put("checkpoints", second, value)
        kept.assert_right(random.Random(seed))
        offset = keys.checkpoint_place(second)[1]
        text = f"the checkpoint of {ONE} at offset {offset} belongs to another entity; run refold verify"
        assert first != second
        assert kept.found_wrong() == [(ONE, text)]


def changed(row: tuple[bytes, bytes], **parts: Any) -> bytes:
    return checkpoint_value(replace(checkpoint_of(*row).entity, **parts))


def test_verify_folds_to_every_checkpoint(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        kept = Kept(log, seed)
        partition, prefix = log.port.partition_of(ONE), keys.entity_prefix(ONE)
        row, other = kept.checkpoints[2], kept.checkpoints[4]
        entity = checkpoint_of(*row).entity
        offset, definition = checkpoint_of(*row)[:2]
        further = checkpoint_of(*other).offset
        is_wrong = f"{partition}={offset} is not what the log folds to"
        for parts in (
            {"version": entity.version + 1},
            {"cells": {**entity.cells, "hits": [10**6, b"q"]}},
            {"clears": {**entity.clears, "last": b"q"}},
            {"links": {**entity.links, ("in", "x/y"): [True, None, None, 0, b"q"]}},
            {"dedup_state": replace(entity.dedup_state, greatest=b"\xff")},
            {"dedup_state": replace(entity.dedup_state, pending={bytes(32)} | (entity.dedup_state.pending or set()))},
        ):
            kept.put("checkpoints", row[0], changed(row, **parts))
            assert kept.found_wrong() == [(ONE, is_wrong)], parts
        kept.put("checkpoints", *row)
        end = len(kept.every)
        for key, found in (
            (keys.checkpoint_key(prefix, end, definition), f"{partition}={end} is a checkpoint where nothing arrived"),
            (
                keys.checkpoint_key(prefix, end, definition + 9),
                f"{partition}={end} is by the definition {definition + 9}, which is none of its type",
            ),
        ):
            kept.put("checkpoints", key, changed(row, dedup_state=replace(entity.dedup_state, highest_offset=end)))
            assert kept.found_wrong() == [(ONE, found)]
            kept.put("checkpoints", key, None)
        nobody = keys.checkpoint_key(keys.entity_prefix(f"{TYPE}/nobody"), offset, definition)
        kept.put("checkpoints", nobody, row[1])
        text = f"{log.port.partition_of(f'{TYPE}/nobody')}={offset} is a checkpoint where nothing arrived"
        assert kept.found_wrong() == [(f"{TYPE}/nobody", text)]
        kept.put("checkpoints", nobody, None)
        kept.put("checkpoints", b"short", row[1])
        assert ["cannot be read" in problem for _, problem in kept.found_wrong()] == [True]
        kept.put("checkpoints", b"short", None)
        assert kept.found_wrong() == []
        assert further > offset


def test_verify_names_a_wrong_flag_of_an_arrival(tmp_path: Path, seed: int) -> None:
    with open_log(tmp_path) as log:
        kept = Kept(log, seed)
        key, value = random.Random(seed).choice(kept.rows("arrivals"))
        kept.put("arrivals", key, value[:8] + bytes([value[8] ^ 1]) + value[9:])
        place = f"{log.port.partition_of(ONE)}={int.from_bytes(key[-8:], 'big')}"
        found = [(each.place, each.problem, each.entity) for each in log.verify().mismatches]
        assert found == [("arrivals", f"{place} is not what the log holds", ONE)]


# Kept checkpoints, and reads


def test_checkpoints_of_a_growing_state_take_a_bounded_part_of_the_log() -> None:
    for grows in (0, 10, 1000, 100_000):
        sizes = [500 + grows * version for version in range(50_000)]
        due = [version for version, size in enumerate(sizes) if is_due(version, size)]
        assert sum(sizes[version] for version in due) <= PER_VERSION_BYTES * len(sizes) + 2 * sizes[-1]
        assert all(later <= 2 * version for version, later in pairwise(due))
    assert [version for version in range(100) if is_due(version, 0)] == list(range(FIRST, 100, STEP))


def test_growing_union_is_still_answered_from_checkpoints(tmp_path: Path, used: Used) -> None:
    every = [said(A, number, tags=[f"{number:0100d}"]) for number in range(400)]
    with open_log(tmp_path) as log:
        for done in range(0, len(every), 10):
            take(log, every[done : done + 10])
        assert isinstance(log.port, FileLog)
        sizes = [len(value) for _, value in log.port.database.scan("checkpoints")]
        assert 3 < len(sizes) < (len(every) - FIRST) // STEP
        used.reset()
        assert len(log.state(A, "v390").fields["tags"]) == 390
        assert (len(used.offsets), used.from_nothing) == (1, 0)


def test_state_names_its_holders_without_reading_the_history(tmp_path: Path, seed: int) -> None:
    clock = FileClock(tmp_path / "clock")
    with open_log(tmp_path) as log:
        recorded: dict[str, int] = {}
        for number, each in enumerate(random_history(seed, 150, CALM)):
            clock.set(BEGIN_MS + number)
            recorded.setdefault(log_id(log, each), BEGIN_MS + number)
        log.flush()
        view = log.state(ONE)
        said_by = {each.seen.id.hex(): each.seen.observation for each in log.state(ONE).history}
        for name, held in view.tree["by"].items():
            holders = [view.holder(name)]
            if EVERYTHING[name].reducer in {"union", "append", "map"}:
                elements = [holder for _, _, holder in view.element_holders(name)]
                ids = held.values() if isinstance(held, dict) else held
                assert sorted(each.observation_id for each in elements) == sorted(each.hex() for each in ids)
                holders += elements
            elif not isinstance(held, int):
                assert holders[0].observation_id == held.hex()
            for holder in holders:
                observation = said_by[holder.observation_id]
                assert (holder.observed_at, holder.source) == (observation.observed_at, observation.source)
                assert holder.recorded_at == recorded[holder.observation_id]
        assert "history" not in vars(view)


def test_later_observations_do_not_affect_conflicts_and_sums(tmp_path: Path) -> None:
    def by(agent: str, number: int, **patch: Any) -> Observation:
        return said(A, number, **patch)._replace(source=Source(agent, "run", seq=number))

    every = [by("a", 0, last=1, total=1), by("b", 1, last=2, total=2), by("a", 2, last=5, total=4), by("b", 3, last=6)]
    with open_log(tmp_path) as log:
        take(log, every)
        past = log.state(A, log.point().cut.until(BEGIN + 1_000_000))
        assert (past.fields["last"], past.fields["total"]) == (2, 3)
        assert [(each.agent, each.value) for each in past.conflicts.losers] == [("a", 1)]
        assert len(past.observations_of("total")) == 2
        assert [(each.agent, each.value) for each in log.state(A).conflicts.losers] == [("a", 5)]


@pytest.mark.parametrize(("field", "total"), [("last", 0), ("attrs", 0), ("start", 1)])
def test_one_agent_conflicts_only_with_what_came_first(tmp_path: Path, field: str, total: int) -> None:
    values: dict[str, list[Any]] = {"last": [1, 2], "attrs": [{"k": "x"}, {"k": "y"}], "start": ["x", "y"]}
    with open_log(tmp_path) as log:
        take(log, [said(A, number, **{field: value}) for number, value in enumerate(values[field])])
        view = log.state(A)
        assert view.conflicts.total == total
        assert ("history" in vars(view)) == bool(total)
        take(log, [said(A, 0, **{field: values[field][0]})._replace(source=Source("other", "run"))])
        assert log.state(A).conflicts.total == 1


def log_id(log: Log, observation: Observation) -> str:
    """Record one observation, and return its id."""
    take(log, [observation])
    return next(each.id for each in reversed(list(log.port.entity_records(ONE, 10**6)))).hex()
