"""What every log must do, whatever stores it: subclass `LogConformance` and say how a log is opened.

Tests write through one handle and read through another; they may be the same one.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pytest

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, SchemaError, StorageError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.entity import unpack
from refold.streams.changes import Change
from refold.streams.feed import ChangeReader
from refold.streams.log.port import LogPort, Marked, Record
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.histories import random_history
from refold_tests.reference import reference_hash, reference_slot, reference_state
from refold_tests.things import NAMES, OTHER, THING, A, defined, document, reference_definition, said

PARTITIONS = 4


class Handles(NamedTuple):
    """One log: where it is written, where it is read."""

    write: LogPort
    read: LogPort


class Opened(ABC):
    """A log of PARTITIONS partitions in a folder of its own, opened and closed as often as a test wants."""

    clock: FileClock

    @abstractmethod
    def __call__(self) -> AbstractContextManager[Handles]:
        """The log open until the end of the block; made when it is not there."""


def put(log: LogPort, observations: Iterable[Observation], definition: TypeDefinition = THING) -> None:
    """Append under a definition (of OTHER's type: under that), registered if it is not."""
    for each in observations:
        chosen = OTHER if each.type == OTHER.name else definition
        version = log.registry.find(chosen)
        if version is None:
            log.register(chosen)
            version = log.registry.find(chosen)
            assert version is not None
        log.append(each, identify(each), version.codec.encode_observation(each))


def mixed(seed: int) -> list[Observation]:
    """A random history, and among it plain observations of entities with awkward names."""
    rng = random.Random(seed)
    observations = random_history(seed, 150)
    for number in range(100):
        observations.insert(rng.randrange(len(observations)), said(rng.choice(NAMES), number))
    return observations


def written(handles: Handles, observations: Iterable[Observation]) -> None:
    """Append, flush, and let the reader see it."""
    put(handles.write, observations)
    handles.write.flush()
    handles.read.refresh()


def everything(log: LogPort) -> dict[int, list[Record]]:
    """All records by partition."""
    return {partition: list(log.read(partition, 0, end)) for partition, end in log.ends().items()}


def changes_of(log: LogPort) -> dict[str, list[Change]]:
    """All changes by entity."""
    reader = ChangeReader(log)
    found: dict[str, list[Change]] = defaultdict(list)
    for partition in range(log.partitions):
        for record in log.read_changes(partition, 0):
            change = reader.decode(record.data)
            found[change.entity].append(change)
    return found


def assert_folded(log: LogPort, observations: Sequence[Observation], definition: TypeDefinition = THING) -> None:
    """The table and the chains of changes are those of the observations, as the naive fold has them."""
    reference = reference_definition(definition)
    states = {name: unpack(name, packed) for name, packed in log.stored_entities()}
    assert states.keys() == {each.entity for each in observations}
    chains = changes_of(log)
    for name, entity in states.items():
        expected = reference_state(reference, name, list(enumerate(observations)))
        assert entity.version == expected["version"]
        assert entity.state_hash == reference_hash(expected)
        assert_chain(chains[name])
        assert (chains[name][-1].to_version, chains[name][-1].hash_after) == (
            entity.version,
            entity.state_hash,
        )


def assert_chain(changes: Sequence[Change]) -> None:
    """Versions without gaps from 0, hashes that meet."""
    assert (changes[0].from_version, changes[0].hash_before) == (0, None)
    for before, after in pairwise(changes):
        assert (after.from_version, after.hash_before) == (before.to_version, before.hash_after)
    for each in changes:
        versions = [step.version for step in each.steps]
        assert versions == list(range(each.from_version + 1, each.to_version + 1))
        assert all(step.offset < each.through for step in each.steps)


class LogConformance:
    """Subclass it as a test class, with a fixture `opened` that gives an `Opened`."""

    # Records: order, place and time

    def test_a_new_log_is_empty(self, opened: Opened) -> None:
        with opened() as (_, log):
            assert log.ends() == dict.fromkeys(range(PARTITIONS), 0)
            assert log.partitions == PARTITIONS
            assert everything(log) == {partition: [] for partition in range(PARTITIONS)}
            assert changes_of(log) == {}
            assert list(log.stored_entities()) == []
            assert list(log.markers()) == []
            assert log.find(bytes(32)) is None
            assert log.record_at(0, 0) is None
            assert log.first_after(0, 0) == 0
            assert len(log.registry) == 0
            assert len(log.log_id) == 16

    def test_records_stand_in_the_order_they_were_appended(self, opened: Opened, seed: int) -> None:
        observations = mixed(seed)
        with opened() as handles:
            for start in range(0, len(observations), 70):
                written(handles, observations[start : start + 70])
            log = handles.read
            expected: dict[int, list[Observation]] = {partition: [] for partition in range(PARTITIONS)}
            for each in observations:
                expected[reference_slot(each.entity) % PARTITIONS].append(each)
            assert log.ends() == {partition: len(each) for partition, each in expected.items()}
            for partition, records in everything(log).items():
                assert [each.offset for each in records] == list(range(len(records)))
                assert {each.partition for each in records} <= {partition}
                assert [each.id for each in records] == [identify(each) for each in expected[partition]]
                assert [each.entity for each in records] == [each.entity for each in expected[partition]]
                assert [log.registry.decode(each.data) for each in records] == expected[partition]
            assert all(
                log.partition_of(each.entity) == reference_slot(each.entity) % PARTITIONS for each in observations
            )

    def test_a_range_is_read_from_its_start_to_before_its_end(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, number) for number in range(6)])
            log, partition = handles.read, handles.read.partition_of(A)
            for start in range(8):
                for end in range(8):
                    found = [each.offset for each in log.read(partition, start, end)]
                    assert found == list(range(start, min(end, 6)))
            assert [getattr(log.record_at(partition, offset), "offset", None) for offset in range(8)] == [
                *range(6),
                None,
                None,
            ]

    def test_a_read_under_way_is_not_disturbed_by_writes(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, number) for number in range(600)])
            log, partition = handles.read, handles.read.partition_of(A)
            read, own, changes = (
                log.read(partition, 0, 600),
                log.entity_records(A, 600),
                log.read_changes(partition, 0),
            )
            assert (next(read).offset, next(own).offset, next(changes).offset) == (0, 0, 0)
            written(handles, [said(A, number) for number in range(600, 1200)])
            assert [each.offset for each in read] == list(range(1, 600))
            assert [each.offset for each in own] == list(range(1, 600))
            assert sum(1 for _ in changes) + 1 < sum(1 for _ in log.read_changes(partition, 0))

    def test_recorded_at_never_falls_in_a_partition(self, opened: Opened) -> None:
        with opened() as handles:
            for number, now in enumerate((BEGIN_MS, BEGIN_MS - 5_000, BEGIN_MS + 1, BEGIN_MS - 1)):
                opened.clock.set(now)
                written(handles, [said(name, number) for name in NAMES])
            for records in everything(handles.read).values():
                times = [each.recorded_at for each in records]
                assert times == sorted(times)
                assert set(times) <= {BEGIN_MS, BEGIN_MS + 1}

    def test_recorded_at_never_falls_across_openings(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, 0)])
        opened.clock.set(BEGIN_MS - 60_000)
        with opened() as handles:
            written(handles, [said(A, 1)])
            assert [each.recorded_at for each in handles.read.entity_records(A, 2)] == [BEGIN_MS] * 2

    def test_first_after_a_time(self, opened: Opened) -> None:
        with opened() as handles:
            # Ties, and gaps between times: 0, 0, 0, 1, 1, 3.
            for number, later in enumerate((0, 0, 0, 1, 1, 3)):
                opened.clock.set(BEGIN_MS + later)
                written(handles, [said(A, number)])
            log, partition = handles.read, handles.read.partition_of(A)
            found = [log.first_after(partition, BEGIN_MS + later) for later in range(-1, 5)]
            assert found == [0, 3, 5, 5, 6, 6]

    # One entity, one id

    def test_an_entitys_records_are_its_own_in_order(self, opened: Opened, seed: int) -> None:
        observations = mixed(seed)
        with opened() as handles:
            written(handles, observations)
            log = handles.read
            every = [record for records in everything(log).values() for record in records]
            for name in NAMES:
                own = [record for record in every if record.entity == name]
                assert own
                for end in {0, 1, own[len(own) // 2].offset, own[-1].offset, own[-1].offset + 1}:
                    below = {record.id: record for record in reversed(own) if record.offset < end}
                    found = list(log.entity_records(name, end))
                    # Repeats may stand among them, each behind the first of its id.
                    firsts = list({record.id: record for record in reversed(found)}.values())[::-1]
                    assert sorted(firsts, key=lambda record: record.offset) == sorted(
                        below.values(), key=lambda record: record.offset
                    )
                    assert [record.offset for record in found] == sorted({record.offset for record in found})
            assert list(log.entity_records(f"{A}none", 10)) == []

    def test_an_observation_is_found_by_its_id(self, opened: Opened, seed: int) -> None:
        observations = mixed(seed)
        with opened() as handles:
            written(handles, observations)
            firsts = {
                record.id: record for records in everything(handles.read).values() for record in reversed(records)
            }
            assert firsts.keys() == {identify(each) for each in observations}
            assert all(handles.read.find(each) == record for each, record in firsts.items())
            some = next(iter(firsts))
            assert handles.read.find(some[:8] + bytes(24)) is None
            assert handles.read.find(b"\xff" * 32) is None

    def test_a_repeat_is_recorded_and_not_folded(self, opened: Opened) -> None:
        once, other = said(A, 0, total=1), said(A, 1, total=1)
        with opened() as handles:
            written(handles, [once, once, other])
            written(handles, [other, once])
        with opened() as handles:
            written(handles, [once])
            assert sum(handles.read.ends().values()) == 6
            assert_folded(handles.read, [once, other])

    # The fold beside the records

    def test_tables_and_changes_follow_the_records(self, opened: Opened, seed: int) -> None:
        rng = random.Random(seed)
        observations = [*random_history(seed, 300), *random_history(seed + 1, 100)]
        done = 0
        with opened() as handles:
            while done < len(observations):
                size = rng.choice((1, 5, 60))
                written(handles, observations[done : done + size])
                done += size
            assert_folded(handles.read, observations)
        with opened() as handles:
            assert_folded(handles.read, observations)

    def test_what_was_flushed_is_read_by_who_wrote_it(self, opened: Opened) -> None:
        with opened() as (log, _):
            for number in range(3):
                put(log, [said(A, number)])
                log.flush()
                assert log.ends()[log.partition_of(A)] == number + 1
                assert len(list(log.entity_records(A, 9))) == number + 1
                assert log.find(identify(said(A, number))) is not None
                log.mark(Marked(f"m{number}", "cut:x", number), replace=False)
                assert len(list(log.markers())) == number + 1

    def test_a_log_opened_again_is_the_same(self, opened: Opened, seed: int) -> None:
        observations = mixed(seed)
        with opened() as handles:
            written(handles, observations)
            log = handles.read
            before = (log.log_id, log.partitions, log.ends(), everything(log), changes_of(log))
            digest = log.registry.digest()
        with opened() as (_, log):
            assert (log.log_id, log.partitions, log.ends(), everything(log), changes_of(log)) == before
            assert log.registry.digest() == digest

    def test_what_was_appended_is_there_after_close_without_flush(self, opened: Opened) -> None:
        with opened() as (log, _):
            put(log, [said(A, number) for number in range(1_500)])
        with opened() as (_, log):
            assert sum(log.ends().values()) == 1_500

    # Markers

    def test_markers_name_cuts(self, opened: Opened) -> None:
        first, second = Marked("b", "cut:1", 5), Marked("a", "cut:2", 5)
        with opened() as handles:
            written(handles, [said(A, 0)])
            handles.write.mark(Marked("later", "cut:3", 9), replace=False)
            handles.write.mark(first, replace=False)
            handles.write.mark(second, replace=False)
            handles.read.refresh()
            assert list(handles.read.markers()) == [second, first, Marked("later", "cut:3", 9)]
            with pytest.raises(InputError, match="the marker 'b' exists"):
                handles.write.mark(Marked("b", "cut:9", 6), replace=False)
            handles.write.mark(Marked("b", "cut:4", 6), replace=True)
            handles.write.mark(Marked("new ä", "cut:5", 7), replace=True)
        with opened() as (_, log):
            assert [each.cut for each in log.markers()] == ["cut:2", "cut:4", "cut:5", "cut:3"]

    def test_marking_again_alike_is_no_error(self, opened: Opened) -> None:
        """Whoever asked an owner that ended before it answered asks again."""
        with opened() as (log, _):
            written(Handles(log, log), [said(A, 0)])
            for _ in range(2):
                log.mark(Marked("m", "cut:1", 5), replace=False)
            with pytest.raises(InputError, match="exists"):
                log.mark(Marked("m", "cut:1", 6), replace=False)

    # Types

    def test_a_definition_is_registered_once(self, opened: Opened) -> None:
        with opened() as handles:
            for _ in range(2):
                handles.write.register(THING)
            handles.read.refresh()
            assert [each.definition.fingerprint for each in handles.read.registry] == [THING.fingerprint]
            assert [each.registered_at for each in handles.read.registry] == [BEGIN_MS]
        with opened() as (log, _):
            log.register(THING)
            assert len(log.registry) == 1

    def test_what_evolution_forbids_is_refused_and_changes_nothing(self, opened: Opened) -> None:
        forbidden = defined(document(last={"type": "double", "refold.reducer": "latest"}))
        with opened() as handles:
            written(handles, [said(A, 0)])
            with pytest.raises(SchemaError, match=r"last: long to double loses digits"):
                handles.write.register(forbidden)
            assert len(handles.write.registry) == 1
            written(handles, [said(A, 1)])
        with opened() as (_, log):
            assert len(log.registry) == 1
            assert_folded(log, [said(A, 0), said(A, 1)])

    def test_registration_times_never_fall(self, opened: Opened) -> None:
        """A cut by time takes the definitions registered by then, so the first one may not be the latest."""
        more = defined(document(more={"type": "string", "refold.reducer": "latest"}))
        with opened() as handles:
            handles.write.register(THING)
            opened.clock.set(BEGIN_MS - 1_000)
            handles.write.register(OTHER)
            written(handles, [said(A, 0)])
            opened.clock.set(BEGIN_MS - 500)
            handles.write.register(more)
            handles.read.refresh()
            log = handles.read
            times = [each.registered_at for each in log.registry]
            assert times == sorted(times)
            record = log.record_at(log.partition_of(A), 0)
            assert record is not None
            assert record.recorded_at >= times[0]

    def test_a_new_definition_folds_its_entities_again(self, opened: Opened, seed: int) -> None:
        observations = [*random_history(seed, 200), said(A, 0, last=9), said(A, 1, last=3)]
        changed = defined(document(last={"type": "long", "refold.reducer": "max"}))
        later = [replace(each, priority=9) for each in random_history(seed + 1, 100)]
        with opened() as handles:
            written(handles, observations)
            handles.write.register(changed)
            handles.read.refresh()
            assert_folded(handles.read, observations, changed)
            written(handles, later)
            assert_folded(handles.read, [*observations, *later], changed)
            chains = changes_of(handles.read)
        assert [change.redefined for change in chains[A]].count(True) == 1
        for name in {each.entity for each in observations}:
            redefined = [change for change in chains[name] if change.redefined]
            own = list(enumerate(observations))
            before = reference_hash(reference_state(reference_definition(THING), name, own))
            after = reference_hash(reference_state(reference_definition(changed), name, own))
            assert [(each.hash_before, each.hash_after) for each in redefined] == (
                [] if before == after else [(before, after)]
            )
            for each in redefined:
                assert each.definition == changed.fingerprint
                assert each.from_version == each.to_version
                assert list(each.steps) == []

    # Contents

    def test_contents_are_kept_by_their_hash(self, opened: Opened) -> None:
        contents = [b"", b"x", bytes(range(256)) * 5_000]
        with opened() as (log, _):
            for content in (*contents, contents[1]):
                log.put_blob(hashlib.sha256(content).digest(), content)
        with opened() as (_, log):
            for content in contents:
                assert log.blob(hashlib.sha256(content).digest()) == content
            assert log.blob(hashlib.sha256(b"other").digest()) is None

    # The end

    def test_close_is_for_ever_and_may_be_repeated(self, opened: Opened) -> None:
        with opened() as handles:
            put(handles.write, [said(A, 0)])
            handles.write.close()
            handles.write.close()
            uses: list[Callable[[], object]] = [
                handles.write.ends,
                handles.write.refresh,
                lambda: list(handles.write.read(0, 0, 1)),
                lambda: handles.write.mark(Marked("m", "cut:1", 1), replace=True),
                lambda: put(handles.write, [said(A, 1)]),
            ]
            for use in uses:
                with pytest.raises(StorageError, match="closed"):
                    use()
        with opened() as (_, log):
            assert sum(log.ends().values()) == 1
