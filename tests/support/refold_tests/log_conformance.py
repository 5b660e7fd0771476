"""The contract of every log, whatever stores it: subclass `LogConformance` and define how a log is opened.

`FoldedLogConformance` adds the contract of a log that is open together with the fold that follows it. Tests write
through one handle and read through another; both may be the same.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable

import pytest

from refold.avro.blob import EXPIRED
from refold.avro.errors import InputError, SchemaError, StorageError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.streams.blobs.store import RemovalResult
from refold.streams.log.port import LogPort, Marked
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.clock import BEGIN_MS
from refold_tests.cuts import cut_text
from refold_tests.histories import random_history
from refold_tests.log_handles import (
    PARTITIONS,
    Handles,
    Opened,
    assert_folded,
    assert_rebuilt,
    changes_of,
    everything,
    mixed,
    put,
    written,
)
from refold_tests.reference import reference_hash, reference_slot, reference_state
from refold_tests.sample_types import NAMES, OTHER, THING, A, defined, document, reference_definition, said
from refold_tests.snapshot_conformance import check_snapshots_of_a_log


def await_changes(log: LogPort, partition: int, more_than: int) -> None:
    """Return once a partition shows more than this many changes: another process may fold them."""
    deadline = time.monotonic() + 60
    while sum(1 for _ in log.read_changes(partition, 0)) <= more_than:
        assert time.monotonic() < deadline
        time.sleep(0.02)
        log.refresh()


class LogConformance:
    """Subclass it as a test class, with a fixture `opened` that returns an `Opened`."""

    # Records: order, position and time

    def test_new_log_is_empty(self, opened: Opened) -> None:
        with opened() as (_, log):
            assert log.ends() == dict.fromkeys(range(PARTITIONS), 0)
            assert log.partitions == PARTITIONS
            assert everything(log) == {partition: [] for partition in range(PARTITIONS)}
            assert changes_of(log) == {}
            assert_rebuilt(log, [])
            assert list(log.markers()) == []
            assert log.find(bytes(32)) is None
            assert log.record_at(0, 0) is None
            assert log.first_after(0, 0) == 0
            assert log.recorded_below(0, 0) == 0
            assert [*log.registry] == []
            assert len(log.log_id) == 16

    def test_records_keep_their_append_order(self, opened: Opened, seed: int) -> None:
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

    def test_range_is_read_from_its_start_to_before_its_end(self, opened: Opened) -> None:
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

    def test_read_in_progress_is_unaffected_by_writes(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, number) for number in range(600)])
            log, partition = handles.read, handles.read.partition_of(A)
            read, own = log.read(partition, 0, 600), log.entity_records(A, 600)
            assert (next(read).offset, next(own).offset) == (0, 0)
            written(handles, [said(A, number) for number in range(600, 1200)])
            assert [each.offset for each in read] == list(range(1, 600))
            assert [each.offset for each in own] == list(range(1, 600))

    def test_times_are_known_at_every_offset(self, opened: Opened) -> None:
        """Also if reading begins in the middle, and through every method."""
        with opened() as handles:
            for start in range(0, 60, 20):
                written(handles, [said(A, number) for number in range(start, start + 20)])
            partition = handles.read.partition_of(A)
            times = [each.recorded_at for each in handles.read.read(partition, 0, 60)]
            assert times == sorted(times)
        for start in range(0, 60, 7):
            with opened() as (_, log):
                assert [each.recorded_at for each in log.read(partition, start, 60)] == times[start:]
                record = log.record_at(partition, start)
                assert record is not None
                assert record.recorded_at == times[start]
                assert log.recorded_below(partition, start) == (times[start - 1] if start else 0)
                for time_ms in (times[start] - 1, times[start]):
                    expected = next((at for at, each in enumerate(times) if each > time_ms), 60)
                    assert log.first_after(partition, time_ms) == expected

    # One entity, one id

    def test_records_of_an_entity_are_its_own_in_order(self, opened: Opened, seed: int) -> None:
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
                    # There may be repeats, each after the first record of its id.
                    firsts = list({record.id: record for record in reversed(found)}.values())[::-1]
                    assert sorted(firsts, key=lambda record: record.offset) == sorted(
                        below.values(), key=lambda record: record.offset
                    )
                    assert [record.offset for record in found] == sorted({record.offset for record in found})
                start, first = own[len(own) // 2].offset, {record.id: record for record in reversed(own)}
                tail = list(log.entity_records(name, own[-1].offset + 1, start))
                assert all(record.offset >= start for record in tail)
                assert {record.id for record in first.values() if record.offset >= start} <= {each.id for each in tail}
            assert list(log.entity_records(f"{A}none", 10)) == []

    def test_observation_is_found_by_its_id(self, opened: Opened, seed: int) -> None:
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

    def test_repeat_is_recorded_and_not_folded(self, opened: Opened) -> None:
        once, other = said(A, 0, total=1), said(A, 1, total=1)
        with opened() as handles:
            written(handles, [once, once, other])
            written(handles, [other, once])
        with opened() as handles:
            written(handles, [once])
            assert sum(handles.read.ends().values()) == 6
            assert_rebuilt(handles.read, [once, other])

    def test_writer_reads_its_flushed_records(self, opened: Opened) -> None:
        with opened() as (log, _):
            for number in range(3):
                put(log, [said(A, number)])
                log.flush()
                assert log.ends()[log.partition_of(A)] == number + 1
                assert len(list(log.entity_records(A, 9))) == number + 1
                assert log.find(identify(said(A, number))) is not None
                log.mark(Marked(f"m{number}", cut_text(log), number), replace=False)
                assert len(list(log.markers())) == number + 1

    def test_reopened_log_is_the_same(self, opened: Opened, seed: int) -> None:
        observations = mixed(seed)
        with opened() as handles:
            written(handles, observations)
            log = handles.read
            log.refresh()
            before = (log.log_id, log.partitions, log.ends(), everything(log), changes_of(log))
            digest = log.registry.digest()
        with opened() as (_, log):
            assert (log.log_id, log.partitions, log.ends(), everything(log), changes_of(log)) == before
            assert log.registry.digest() == digest

    def test_appended_records_survive_close_without_flush(self, opened: Opened) -> None:
        with opened() as (log, _):
            put(log, [said(A, number) for number in range(1_500)])
        with opened() as (_, log):
            assert sum(log.ends().values()) == 1_500

    # Markers

    def test_markers_name_cuts(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, 0)])
            cuts = [cut_text(handles.read, number) for number in range(6)]
            first, second, later = Marked("b", cuts[1], 5), Marked("a", cuts[2], 5), Marked("later", cuts[3], 9)
            for each in (later, first, second):
                handles.write.mark(each, replace=False)
            handles.read.refresh()
            assert list(handles.read.markers()) == [second, first, later]
            with pytest.raises(InputError, match="the marker 'b' exists"):
                handles.write.mark(Marked("b", cuts[0], 6), replace=False)
            handles.write.mark(Marked("b", cuts[4], 6), replace=True)
            handles.write.mark(Marked("new ä", cuts[5], 7), replace=True)
        with opened() as (_, log):
            assert [each.cut for each in log.markers()] == [cuts[2], cuts[4], cuts[5], cuts[3]]

    def test_setting_the_same_marker_again_is_no_error(self, opened: Opened) -> None:
        """A caller whose owner ended before it answered asks again."""
        with opened() as (log, _):
            written(Handles(log, log), [said(A, 0)])
            cut = cut_text(log)
            for _ in range(2):
                log.mark(Marked("m", cut, 5), replace=False)
            with pytest.raises(InputError, match="exists"):
                log.mark(Marked("m", cut, 6), replace=False)

    # Types

    def test_definition_is_registered_once(self, opened: Opened) -> None:
        with opened() as handles:
            for _ in range(2):
                handles.write.register(THING)
            handles.read.refresh()
            assert [each.definition.fingerprint for each in handles.read.registry] == [THING.fingerprint]
            assert opened.clock is None or [each.registered_at for each in handles.read.registry] == [BEGIN_MS]
        with opened() as (log, _):
            log.register(THING)
            assert len([*log.registry]) == 1

    def test_registration_and_recording_share_one_clock(self, opened: Opened) -> None:
        """A cut by time includes the definitions that were registered by then."""
        more = defined(document(more={"type": "string", "refold.reducer": "latest"}))
        with opened() as handles:
            for definition in (THING, OTHER):
                handles.write.register(definition)
            written(handles, [said(A, 0)])
            handles.write.register(more)
            handles.read.refresh()
            log = handles.read
            times = [each.registered_at for each in log.registry]
            record = log.record_at(log.partition_of(A), 0)
            assert record is not None
            assert times == sorted(times)
            assert times[1] <= record.recorded_at <= times[2]
            before = [log.registry.schemas_offset_at(time - 1) for time in times]
            # Workers register too: which versions of types with code are in effect.
            assert before == (sorted(before) if opened.has_workers else [times.index(time) for time in times])

    def test_incompatible_definition_is_refused_and_changes_nothing(self, opened: Opened) -> None:
        forbidden = defined(document(last={"type": "double", "refold.reducer": "latest"}))
        with opened() as handles:
            written(handles, [said(A, 0)])
            with pytest.raises(SchemaError, match=r"last: long to double loses digits"):
                handles.write.register(forbidden)
            assert len([*handles.write.registry]) == 1
            written(handles, [said(A, 1)])
        with opened() as (_, log):
            assert len([*log.registry]) == 1
            assert_rebuilt(log, [said(A, 0), said(A, 1)])

    def test_new_definition_refolds_its_entities(self, opened: Opened, seed: int) -> None:
        observations = [*random_history(seed, 100), said(A, 0, last=9), said(A, 1, last=3)]
        changed = defined(document(last={"type": "long", "refold.reducer": "max"}))
        later = [each._replace(priority=9) for each in random_history(seed + 1, 50)]
        with opened() as handles:
            written(handles, observations)
            before = Points(handles.read, 0).end()
            handles.write.register(changed)
            handles.read.refresh()
            assert_rebuilt(handles.read, observations, changed)
            written(handles, later)
            assert_rebuilt(handles.read, [*observations, *later], changed)
            rebuilt = rebuild(handles.read, before, parallel=False)
            assert rebuilt.observations == len({identify(each) for each in observations})

    # Contents

    def test_contents_are_stored_by_their_hash(self, opened: Opened) -> None:
        contents = [b"", b"x", bytes(range(256)) * 5_000]
        with opened() as (log, _):
            for content in (*contents, contents[1]):
                log.blobs.put(hashlib.sha256(content).digest(), content)
        with opened() as (_, log):
            for content in contents:
                assert log.blobs.get(hashlib.sha256(content).digest()) == content
            assert log.blobs.get(hashlib.sha256(b"other").digest()) is None

    def test_expired_contents_are_gone_and_known_to_be(self, opened: Opened) -> None:
        contents = {hashlib.sha256(each).digest(): each for each in (b"", b"old", b"kept", b"new" * 999, b"never put")}
        empty, old, kept, new, never = contents
        with opened() as (log, reader):
            for digest in (empty, old, kept, new):
                log.blobs.put(digest, contents[digest])
            since_ms = time.time_ns() // 1_000_000 + 3_600_000
            assert log.blobs.remove([new], 0) == RemovalResult(0, 0, 1)  # put again in the meantime
            for again in range(2):
                assert log.blobs.remove([old, empty, never], since_ms) == (
                    RemovalResult(0, 0, 0) if again else RemovalResult(2, 3, 0)
                )
            log.blobs.put(never, EXPIRED)  # as an import reports it
            log.blobs.put(kept, EXPIRED)
            for each in (log, reader):
                assert {name for name in contents if each.blobs.has_expired(name)} == {empty, old, never}
        with opened() as (log, reader):
            assert [reader.blobs.get(each) for each in contents] == [None, None, b"kept", contents[new], None]
            assert [reader.blobs.size(each) for each in contents] == [None, None, 4, 2997, None]
            assert [reader.blobs.has_expired(each) for each in contents] == [True, True, False, False, True]
            log.blobs.put(old, b"old")
            assert reader.blobs.get(old) == b"old"

    # The end

    def test_close_is_final_and_idempotent(self, opened: Opened) -> None:
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


class FoldedLogConformance(LogConformance):
    """For a log whose handles are open together with the fold that follows it, and whose `flush` waits for that
    fold.
    """

    def test_read_of_changes_in_progress_is_unaffected_by_writes(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, number) for number in range(600)])
            log, partition = handles.read, handles.read.partition_of(A)
            await_changes(log, partition, 0)
            changes = log.read_changes(partition, 0)
            first = next(changes)
            written(handles, [said(A, number) for number in range(600, 1200)])
            rest = list(changes)
            await_changes(log, partition, len(rest) + 1)
            assert [first, *rest] == list(log.read_changes(partition, 0))[: len(rest) + 1]
            assert len(rest) + 1 < sum(1 for _ in log.read_changes(partition, 0))

    def test_repeat_is_not_folded(self, opened: Opened) -> None:
        once, other = said(A, 0, total=1), said(A, 1, total=1)
        with opened() as handles:
            written(handles, [once, once, other])
            written(handles, [other, once])
        with opened() as handles:
            written(handles, [once])
            assert_folded(handles.read, [once, other])

    def test_new_log_has_no_entities(self, opened: Opened) -> None:
        with opened() as (_, log):
            assert list(log.stored_entities()) == []

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

    def test_incompatible_definition_is_not_used_to_fold(self, opened: Opened) -> None:
        forbidden = defined(document(last={"type": "double", "refold.reducer": "latest"}))
        with opened() as handles:
            written(handles, [said(A, 0)])
            with pytest.raises(SchemaError):
                handles.write.register(forbidden)
            written(handles, [said(A, 1)])
        with opened() as (_, log):
            assert_folded(log, [said(A, 0), said(A, 1)])

    def test_new_definition_folds_its_entities_again(self, opened: Opened, seed: int) -> None:
        observations = [*random_history(seed, 200), said(A, 0, last=9), said(A, 1, last=3)]
        changed = defined(document(last={"type": "long", "refold.reducer": "max"}))
        later = [each._replace(priority=9) for each in random_history(seed + 1, 100)]
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

    # Snapshots

    def test_snapshots_hold_the_tables_at_their_points(self, opened: Opened) -> None:
        def write(log: LogPort, number: int) -> None:
            put(log, [said(f"{A}{each}", number * 100 + each) for each in range(number, 40)])
            log.flush()

        check_snapshots_of_a_log(opened, write)


class ClockedConformance:
    """For a log that takes its times from a clock that tests set, in addition to the other suites."""

    def test_recorded_at_never_falls_in_a_partition(self, opened: Opened) -> None:
        with opened() as handles:
            for number, later in enumerate((0, -5_000, 1, -1)):
                opened.set_clock(later)
                written(handles, [said(name, number) for name in NAMES])
            for records in everything(handles.read).values():
                times = [each.recorded_at for each in records]
                assert times == sorted(times)
                assert set(times) <= {BEGIN_MS, BEGIN_MS + 1}

    def test_recorded_at_never_falls_across_openings(self, opened: Opened) -> None:
        with opened() as handles:
            written(handles, [said(A, 0)])
        opened.set_clock(-60_000)
        with opened() as handles:
            written(handles, [said(A, 1)])
            assert [each.recorded_at for each in handles.read.entity_records(A, 2)] == [BEGIN_MS] * 2

    def test_first_after_a_time(self, opened: Opened) -> None:
        with opened() as handles:
            # Ties, and gaps between times: 0, 0, 0, 1, 1, 3.
            for number, later in enumerate((0, 0, 0, 1, 1, 3)):
                opened.set_clock(later)
                written(handles, [said(A, number)])
            log, partition = handles.read, handles.read.partition_of(A)
            found = [log.first_after(partition, BEGIN_MS + later) for later in range(-1, 5)]
            assert found == [0, 3, 5, 5, 6, 6]

    def test_registration_times_never_fall(self, opened: Opened) -> None:
        """A cut by time includes the definitions that were registered by then, so the first one may not be the
        latest.
        """
        more = defined(document(more={"type": "string", "refold.reducer": "latest"}))
        with opened() as handles:
            handles.write.register(THING)
            opened.set_clock(-1_000)
            handles.write.register(OTHER)
            written(handles, [said(A, 0)])
            opened.set_clock(-500)
            handles.write.register(more)
            handles.read.refresh()
            log = handles.read
            times = [each.registered_at for each in log.registry]
            assert times == sorted(times)
            record = log.record_at(log.partition_of(A), 0)
            assert record is not None
            assert record.recorded_at >= times[0]
