"""The log's public interface: what is recorded when, with which definition, and by whom."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from refold.avro.errors import InputError, SchemaError, StorageError, ValidationError
from refold.avro.observation import Link, Source
from refold.streams.log.file.limits import FileLogLimits
from refold.streams.log.file.log import FileLog
from refold_tests.clock import BEGIN_MS
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, THING, A, defined, document, said

MIDNIGHT = dt.datetime(2023, 11, 14, tzinfo=dt.UTC)
NEWER = defined(document(more={"type": "long", "refold.reducer": "latest"}))


def test_observation_is_readable_with_its_source_and_time(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        ids = [
            log.observe(A, {"last": 1}),
            log.observe(A, {"last": 2}, source="agent"),
            log.observe(A, {"last": 3}, source="agent", observed_at="2023-11-14T22:13:20.5Z"),
            log.observe(
                A, {"last": 4}, source=Source("x", "r", seq=9), observed_at=dt.datetime(2023, 11, 14, tzinfo=dt.UTC)
            ),
            log.link(A, "uses", "everything/b", valid_from="2023-11-14T00:00:00Z"),
        ]
        ids.append(log.retract(A, ids[2]))
        log.flush()
        seen = {each.seen.id.hex(): each.seen.observation for each in log.state(A).history}
        assert list(seen) == ids
        sources = [seen[each].source for each in ids]
        assert sources == [
            Source("tests", "run-0", seq=0),
            Source("agent", "run-1", seq=0),
            Source("agent", "run-1", seq=1),
            Source("x", "r", seq=9),
            Source("tests", "run-0", seq=1),
            Source("tests", "run-0", seq=2),
        ]
        times = [seen[each].observed_at - BEGIN_MS * 1000 for each in ids]
        assert times == [0, 0, 500_000, -80_000_000_000, 0, 0]
        assert seen[ids[4]].link == Link("uses", "everything/b", BEGIN_MS * 1000 - 80_000_000_000)
        assert log.state(A).fields["last"] == 1  # of two at one time the greater agent's


def test_refused_observation_uses_no_seq_and_leaves_nothing(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for entity, patch in ((A, {"last": "x"}), (A, {"none": 1}), (A, {}), (f"{A}\n", {"last": 1})):
            with pytest.raises(ValidationError):
                log.observe(entity, patch)
        with pytest.raises(ValidationError, match="5 minutes ahead"):
            log.observe(A, {"last": 1}, observed_at="2024-01-01T00:00:00Z")
        with pytest.raises(InputError, match="time zone"):
            log.observe(A, {"last": 1}, observed_at=dt.datetime(2023, 11, 14))  # noqa: DTZ001  # that it has none is the point
        with pytest.raises(SchemaError, match="unknown type 'nothing'"):
            log.observe("nothing/a", {"last": 1})
        assert sum(log.port.ends().values()) == 0
        log.observe(A, {"last": 1})
        assert [each.seen.observation.source.seq for each in log.state(A).history] == [0]


def test_batch_read_equals_single_reads(tmp_path: Path) -> None:
    with open_log(tmp_path, partitions=8) as log:
        names = [f"{A}-{number}" for number in range(20)]
        for number, name in enumerate(names):
            ids = [log.observe(name, {"last": each}, source="agent") for each in range(number % 4 + 1)]
            if number % 5 == 0:
                log.retract(name, ids[0])
        log.flush()
        cuts = [log.point().cut, log.point("offset:0=3,1=2,4=4").cut, log.point().cut.until(BEGIN_MS * 1000 - 1)]
        for cut in cuts:
            view = log.rebuild(cut)
            found = log.states([*reversed(names), f"{A}-none", names[3]], cut)
            assert list(found) == [name for name in reversed(names) if name in view]
            assert {name: (each.version, each.state_hash, each.fields) for name, each in found.items()} == {
                name: (view[name].version, view[name].state_hash, view[name].fields) for name in view
            }


def test_outdated_process_does_not_restore_an_older_definition(tmp_path: Path) -> None:
    """Another process registered a newer version of a type after this one opened the log with the older file."""
    with open_log(tmp_path) as first, open_log(tmp_path, types=(THING,)) as second:
        take(first, [said(A, 0, more=7)], NEWER)
        second.observe(A, {"last": 3})
        second.flush()
        first.port.refresh()
        assert [each.definition.fingerprint for each in first.port.registry] == [NEWER.fingerprint]
        assert first.state(A).fields == {"last": 3, "more": 7}


def test_users_type_file_is_registered_only_once(tmp_path: Path) -> None:
    with open_log(tmp_path) as first, open_log(tmp_path) as second:
        for number, log in enumerate((first, second, first, second)):
            log.observe(A, {"last": number})
            log.flush()
        second.port.refresh()
        assert len(second.port.registry) == 1


def test_log_is_closed_however_its_block_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="mine"), open_log(tmp_path) as log:  # noqa: PT012  # the block is what is tested
        log.observe(A, {"last": 1})
        raise KeyError("mine")
    with pytest.raises(StorageError, match="closed"):
        log.point()
    with pytest.raises(StorageError, match="closed"):
        log.observe(A, {"last": 2})
    with open_log(tmp_path) as again:
        assert again.state(A).version == 1


def test_reader_answers_and_does_not_write(tmp_path: Path) -> None:
    with open_log(tmp_path) as log, open_log(tmp_path, read_only=True) as reader:
        for number in range(3):
            take(log, [said(A, number)])
            assert reader.state(A).version == number + 1
            assert reader.verify().ok
        for write in (
            lambda: reader.observe(A, {"last": 1}),
            lambda: reader.observe(f"{OTHER.name}/a", {"last": 1}),
            lambda: reader.mark("m"),
            lambda: reader.register(NEWER),
        ):
            with pytest.raises(InputError, match="opened for reading"):
                write()
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="there is no log here"):
        open_log(tmp_path / "none", read_only=True)


def test_wait_for_an_owner_is_bounded(tmp_path: Path) -> None:
    """Without an explicit flush, pending observations are bounded in number and in bytes until they are durable."""
    limits = FileLogLimits(batch_records=1_000, batch_bytes=1_000_000, kept_records=2_000, kept_bytes=5_000_000)
    with open_log(tmp_path) as owner, open_log(tmp_path, limits=limits) as log:
        assert isinstance(log.port, FileLog)
        outbox = log.port.outbox
        kept = []
        for number in range(5_000):
            log.observe(A, {"last": number})
            kept.append(len(outbox))
        assert 1_000 < max(kept) <= 3_000
        sizes = []
        for _ in range(150):
            log.observe(A, {"start": "x" * 100_000})
            sizes.append(outbox.kept_bytes)
        assert 2_000_000 < max(sizes) <= 7_000_000
        log.flush()
        assert (len(outbox), outbox.kept_bytes) == (0, 0)
        assert owner.state(A).version == 5_150
