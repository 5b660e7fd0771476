"""Refused records are absent, and all others present; damage and a wrong number of partitions are named."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import CorruptionError, InputError, SchemaError, StorageError, UndecodableError
from refold.avro.ids import identify
from refold.avro.registry import Registry
from refold.streams.log.file.client import Client
from refold.streams.log.file.limits import DEFAULT_LIMITS
from refold.streams.log.file.log import FileLog
from refold.streams.log.port import AppendedObservation, Marked
from refold_tests.child import Child
from refold_tests.file_logs import OWNER, FileOpened, Owned, Remote, records_of
from refold_tests.log_handles import PARTITIONS, Handles, assert_folded, put, written
from refold_tests.sample_types import NAMES, OTHER, PICKY, THING, A, said


def test_only_the_observation_that_cannot_be_folded_is_refused(opened: FileOpened) -> None:
    """An observation on which a custom reducer fails does not affect its neighbours, and blocks nothing."""
    good = [said(name, number, start="a") for number, name in enumerate(NAMES[:6])]
    with opened() as handles:
        put(handles.write, [*good[:3], said(f"{A}bad", 99, start="bad"), *good[3:]], PICKY)
        with pytest.raises(SchemaError, match=f"{A}bad: observation [0-9a-f]{{64}} cannot be folded: .*not that"):
            handles.write.flush()
        handles.write.flush()
        put(handles.write, [said(A, 50, start="c")], PICKY)
        handles.write.flush()
        assert sum(handles.read.ends().values()) == len(good) + 1
        assert {name for name, _ in handles.read.stored_entities()} == set(NAMES[:6])


def test_many_that_cannot_be_folded_are_counted(opened: FileOpened) -> None:
    every = [said(f"{A}{number}", number, start="bad" if number % 7 == 3 else "a") for number in range(900)]
    with opened() as handles:
        put(handles.write, every, PICKY)
        with pytest.raises(InputError, match=rf"{A}3: .*not that.*; 128 more observations were refused"):
            handles.write.flush()
        found = {name for name, _ in handles.read.stored_entities()}
        assert found == {each.entity for each in every if each.patch["start"] == "a"}


def test_refusal_is_reported_even_when_the_owner_ends_meanwhile(tmp_path: Path, child: Callable[..., Child]) -> None:
    opened = Remote(tmp_path, child)
    good = [said(A, number, start="a") for number in range(DEFAULT_LIMITS.batch_records)]
    with opened.owned_by_another() as owner, contextlib.closing(opened.file()) as log:
        put(log, good[:2], PICKY)
        log.flush()
        assert isinstance(log, FileLog)
        ask = Client.call

        def end_before_the_flush(client: Client, op: str, payload: object) -> object:
            if op == "flush" and owner.process.poll() is None:
                owner.kill()
            return ask(client, op, payload)

        put(log, [*good[2:5], said(f"{A}bad", 99, start="bad"), *good[5:]], PICKY)
        with pytest.MonkeyPatch.context() as ending:
            ending.setattr(Client, "call", end_before_the_flush)
            with pytest.raises(SchemaError, match=f"{A}bad: observation .*not that"):
                log.flush()
        assert log.database.is_owner
        log.flush()
        assert {each.id for each in records_of(log)} == {identify(each) for each in good}


def test_owner_without_the_code_of_a_custom_reducer_loses_nothing(tmp_path: Path, child: Callable[..., Child]) -> None:
    """An owner does not accept what it cannot fold; the writer keeps it until a process that can is the owner."""
    opened = Remote(tmp_path, child)
    without = OWNER.replace("log = FileLog", "sys.modules['refold_tests.histories'] = None\nlog = FileLog")
    with Owned(tmp_path, child)() as (log, _):
        written(Handles(log, log), [said(A, 0)])
    owner = child(without, opened.path, opened.clock.path, PARTITIONS)
    assert owner.line() == "open"
    with contextlib.closing(opened.file()) as log:
        put(log, [said(A, 1), said(A, 2)])
        for _ in range(2):
            with pytest.raises(
                StorageError, match=f"{A} cannot be folded by this process: .*put its module on PYTHONPATH"
            ):
                log.flush()
        owner.kill()
        log.flush()
        assert_folded(log, [said(A, 0), said(A, 1), said(A, 2)])


def test_only_bytes_of_an_unregistered_schema_are_refused(opened: FileOpened) -> None:
    codec = Registry().add(OTHER).codec
    stranger = said(f"{OTHER.name}/a", 0)
    with opened() as (log, _):
        put(log, [said(A, 0)])
        data, observation_id = codec.encode_identified(stranger)
        log.append(AppendedObservation(stranger.entity, observation_id, data))
        put(log, [said(A, 1)])
        with pytest.raises((UndecodableError, SchemaError)):
            log.flush()
        log.flush()
        assert [each.entity for each in records_of(log)] == [A, A]


def test_id_that_does_not_match_the_content_is_refused_by_the_owner(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
    with Remote(tmp_path, child)() as (log, _):
        put(log, [said(A, 0)])
        codec = log.registry.versions(THING.name)[0].codec
        log.append(AppendedObservation(A, bytes(32), codec.encode_observation(said(A, 1))))
        with pytest.raises(InputError, match="not the id of its content"):
            log.flush()
        log.flush()
        assert [each.id for each in records_of(log)] == [identify(said(A, 0))]


def test_definition_that_cannot_fold_existing_entities_is_refused(opened: FileOpened) -> None:
    observations = [said(A, 0, start="a"), said(f"{A}b", 1, start="bad"), said(f"{A}c", 2, start="c")]
    with opened() as handles:
        written(handles, observations)
        with pytest.raises(SchemaError, match=rf"this version cannot fold {A}b: .*not that"):
            handles.write.register(PICKY)
        observations.append(said(A, 3, last=2))
        written(handles, observations[-1:])
    with opened() as handles:
        assert len(handles.read.registry) == 1
        assert_folded(handles.read, observations)


def test_reader_refuses_to_write(owned: FileOpened) -> None:
    with owned() as (log, _), contextlib.closing(owned.file(read_only=True)) as reader:
        put(log, [said(A, 0)])
        log.flush()
        reader.refresh()
        uses: list[Callable[[], object]] = [
            lambda: put(reader, [said(A, 1)]),
            lambda: reader.register(OTHER),
            lambda: reader.mark(Marked("m", "cut:1", 1), replace=False),
            lambda: reader.blobs.put(bytes(32), b""),
        ]
        for use in uses:
            with pytest.raises(InputError, match="opened for reading"):
                use()
        reader.flush()


def test_damaged_content_is_an_error(owned: FileOpened) -> None:
    digest = hashlib.sha256(b"content").digest()
    with owned() as (log, _):
        log.blobs.put(digest, b"content")
        (owned.path / "blobs" / digest.hex()[:2] / digest.hex()).write_bytes(b"other")
        with pytest.raises(CorruptionError, match="does not match its name"):
            log.blobs.get(digest)


def test_number_of_partitions_is_fixed(owned: FileOpened) -> None:
    with owned():
        pass
    with pytest.raises(InputError, match="this log has 4 partitions, fixed when it was created"):
        FileLog(owned.path, clock_ms=owned.clock, new_id=lambda: b"", partitions=8)
    # What was refused lets go of the log.
    with owned() as (log, _):
        assert isinstance(log, FileLog)
        assert log.database.is_owner
