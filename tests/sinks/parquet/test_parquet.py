"""The Parquet sink, in a folder and in S3: whatever happens, what CURRENT names is a rebuild at its cut."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import duckdb
import msgspec
import pyarrow.parquet as pq
import pytest

from refold.avro.definition import TypeDefinition
from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.sinks.feed import Lag
from refold.sinks.parquet.columns import columns_of
from refold.sinks.parquet.sink import (
    COMMITS,
    MANIFESTS,
    CommitManifest,
    CommittedFile,
    ParquetSink,
    decoded,
    encoded,
    open_sink,
)
from refold.sinks.port import SinkBusy, SinkRefused
from refold.sinks.run import SinkReport, SinkWatch, keep_snapshots
from refold.streams.objects.folder import FolderObjects
from refold.streams.objects.port import Objects
from refold.streams.objects.remote import RemoteObjects
from refold.streams.point import Points
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.view import StateView
from refold_tests.child import Child
from refold_tests.devices import small_device
from refold_tests.histories import random_history
from refold_tests.parquet_store import Place, assert_equal, inode, newest
from refold_tests.s3 import door, reach, started_s3
from refold_tests.sample_types import NAMES, OTHER, THING, A, defined, document, said
from refold_tests.sink_logs import FileSinkLog, SinkLog

DEFINITIONS: dict[str, TypeDefinition] = {THING.name: THING, OTHER.name: OTHER}
FOLLOWER = """
import sys
from threading import Event
from refold.sinks.registry import open_sink
from refold.sinks.run import keep_snapshots
from refold.streams.open import open_port

log, sink = open_port(sys.argv[1], read_only=True), open_sink("parquet", sys.argv[2])
print("runs", flush=True)
keep_snapshots(log, sink, follow=True, every_s=0.0, stop=Event())
"""


@pytest.fixture
def followed(file_log: SinkLog) -> SinkLog:
    return file_log


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "folder":
        folder = tmp_path / "a lake"
        return Place(FolderObjects(folder), folder.as_uri(), DEFINITIONS)
    url = f"s3://{request.getfixturevalue('bucket')}/lake"
    return Place(RemoteObjects(url), url, DEFINITIONS)


@pytest.fixture
def folder(tmp_path: Path) -> Place:
    return Place(FolderObjects(tmp_path / "lake"), (tmp_path / "lake").as_uri(), DEFINITIONS)


def bring_up(followed: SinkLog, place: Place, grace_s: float = 0) -> SinkReport:
    with followed.reader() as log:
        sink = ParquetSink(place.objects, grace_s)
        return keep_snapshots(log, sink, follow=False, every_s=1, stop=threading.Event())


def assert_rebuilt(followed: SinkLog, place: Place, *, at_end: bool = True) -> None:
    with followed.reader() as log:
        assert_equal(log, place, at_end=at_end)


def view_of(followed: SinkLog) -> StateView:
    log = followed.log
    log.refresh()
    cut = Points(log, 0).end()
    return StateView(log, cut, rebuild(log, cut, parallel=False))


def queried(sql: str) -> list[tuple[Any, ...]]:
    """DuckDB's answer."""
    with duckdb.connect() as connection:
        return connection.execute(sql).fetchall()


def test_store_equals_the_log_after_every_write(followed: SinkLog, place: Place, seed: int) -> None:
    """Late ones, repeats, retractions, clears and links among them; a definition, and an empty log at first."""
    bring_up(followed, place)
    assert_rebuilt(followed, place)
    observations = random_history(seed, 200)
    while observations:
        followed.write(observations[:70])
        del observations[:70]
        bring_up(followed, place)
        assert_rebuilt(followed, place)
    changed = defined(document(last={"type": "long", "refold.reducer": "max"}))
    followed.register(changed)
    followed.write([said(A, 7, last=5)], changed)
    bring_up(followed, place)
    place.definitions = {**DEFINITIONS, changed.name: changed}
    assert_rebuilt(followed, place)
    assert bring_up(followed, place).loads == 0


def test_following_sink_waits_for_a_temporarily_failing_log(
    followed: SinkLog, folder: Place, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    followed.write(random_history(seed, 30))
    with followed.reader() as log:
        refresh, failures, stop = log.refresh, [StorageError("not now"), StorageError("nor now")], threading.Event()

        def failing() -> None:
            if failures:
                raise failures.pop()
            stop.set()
            refresh()

        monkeypatch.setattr(log, "refresh", failing)
        sink = ParquetSink(folder.objects, 0)
        report = keep_snapshots(log, sink, follow=True, every_s=0, stop=stop, log_retry_s=0.01)
        assert (report.loads, report.busy, report.last_busy) == (1, 2, "not now")
        failures.append(StorageError("not now"))
        with pytest.raises(StorageError, match="not now"):
            keep_snapshots(log, sink, follow=False, every_s=0, stop=threading.Event())
    assert_rebuilt(followed, folder)


def test_lag_is_reported(followed: SinkLog, folder: Place, seed: int) -> None:
    """Before a commit, after it, and while it waits for the next."""
    told: list[Any] = []
    watch = SinkWatch(wrote=told.append, lags=told.append)
    followed.write([said(A, 1)])
    with followed.reader() as log:
        keep_snapshots(
            log, ParquetSink(folder.objects, 0), follow=False, every_s=1, stop=threading.Event(), watch=watch
        )
        first, caught_up = told
        assert (first.changes, first.entities, caught_up) == (0, 1, Lag(0, None))
        told.clear()
        followed.write([said(A, 2)])
        followed.write([said(A, 3)])
        stop = threading.Event()

        def lags(lag: Lag) -> None:
            told.append(lag)
            if len(told) == 3:
                followed.write([said(A, 4)])
            if len(told) > 3 and lag.changes:
                stop.set()

        watch = SinkWatch(wrote=told.append, lags=lags, lag_every_s=0.01)
        keep_snapshots(log, ParquetSink(folder.objects, 0), follow=True, every_s=3600, stop=stop, watch=watch)
    behind, second, caught_up, last = told[0], told[1], told[2], told[-1]
    assert (behind.changes, second.changes, second.entities, caught_up.changes) == (2, 2, 1, 0)
    assert (behind.oldest_ms is None, caught_up.oldest_ms, last.changes) == (False, None, 1)


def test_log_on_kafka(kafka_log: SinkLog, folder: Place, seed: int) -> None:
    kafka_log.write(random_history(seed, 100))
    bring_up(kafka_log, folder)
    assert_rebuilt(kafka_log, folder)


def test_duckdb_reads_it_by_a_glob(followed: SinkLog, folder: Place, seed: int) -> None:
    followed.write([*random_history(seed, 100), *(said(name, 1000 + each) for each, name in enumerate(NAMES[:6]))])
    bring_up(followed, folder)
    root = cast(FolderObjects, folder.objects).root
    commit = (root / "CURRENT").read_text()
    assert (root / "current").resolve() == root / commit
    found = queried(
        f"select type, count(*), sum(_version), count(distinct partition) from "
        f"read_parquet('{root}/{commit}/**/*.parquet', hive_partitioning=true, union_by_name=true) group by all"
    )
    view = view_of(followed)
    assert {type_name for type_name, *_ in found} == {name.partition("/")[0] for name in view}
    assert sum(each[1] for each in found) == len(view)
    assert sum(each[2] for each in found) == view.observations
    last = queried(f"select last from '{root}/{commit}/type={THING.name}/*/*.parquet' where _entity = '{A}'")
    assert last == [(view[A].fields["last"],)]


def test_exact_cut_is_in_files_and_manifest(followed: SinkLog, folder: Place, seed: int) -> None:
    followed.write(random_history(seed, 60))
    bring_up(followed, folder)
    manifest = newest(folder.objects)
    view = view_of(followed)
    assert (manifest.at(), manifest.root, manifest.entities) == (view.cut, view.root, len(view))
    root = cast(FolderObjects, folder.objects).root
    for each in manifest.files:
        metadata = pq.read_metadata(root / manifest.folder / each.path).metadata
        assert metadata[b"refold.cut"].decode() == str(view.cut)
        assert metadata[b"refold.partition"].decode() == str(each.partition)


def test_unchanged_partition_is_not_rewritten(followed: SinkLog, folder: Place, seed: int) -> None:
    followed.write(random_history(seed, 60))
    bring_up(followed, folder)
    root, before = cast(FolderObjects, folder.objects).root, newest(folder.objects)
    inodes = {each.path: inode(root, before, each.path) for each in before.files}
    followed.write([said(A, 5000)])
    bring_up(followed, folder, grace_s=3600)
    after = newest(folder.objects)
    same = {each.partition for each in after.files if inodes.get(each.path) == inode(root, after, each.path)}
    changed = followed.log.partition_of(A)
    assert changed not in same
    assert same == {each.partition for each in before.files} - {changed}
    assert_rebuilt(followed, folder)


def test_earlier_format_is_rewritten_once_without_new_records(followed: SinkLog, folder: Place, seed: int) -> None:
    followed.write(random_history(seed, 60))
    bring_up(followed, folder)
    root, before = cast(FolderObjects, folder.objects).root, newest(folder.objects)
    inodes = {each.path: inode(root, before, each.path) for each in before.files}
    earlier = encoded(msgspec.structs.replace(before, refold_parquet=1))
    (root / "manifests" / f"{before.number:012d}.json").write_bytes(earlier)
    assert bring_up(followed, folder, grace_s=3600).loads == 1
    after = newest(folder.objects)
    assert (after.refold_parquet, after.number, after.cut) == (2, before.number + 1, before.cut)
    assert not [each for each in after.files if inodes[each.path] == inode(root, after, each.path)]
    assert_rebuilt(followed, folder)
    assert bring_up(followed, folder).loads == 0


def test_text_that_may_be_a_blob_is_text() -> None:
    options = ["null", "string", "refold.Blob"]
    fields: list[dict[str, Any]] = [{"name": "a", "type": options, "refold.reducer": "latest"}]
    (column,) = columns_of(defined({"type": "record", "name": "t", "fields": fields}))
    blob = {"hash": bytes(32), "size": 7, "media_type": "text/plain"}
    found = column.array(['it\'s\n"quoted"', None, "", blob]).to_pylist()
    assert found[:3] == ['it\'s\n"quoted"', None, ""]
    assert json.loads(found[3]).keys() == {"$blob"}


def test_replaced_files_stay_for_the_grace_period_and_are_removed(followed: SinkLog, place: Place, seed: int) -> None:
    for number in range(3):
        followed.write([said(A, number)])
        bring_up(followed, place, grace_s=3600)
    objects = place.objects
    assert len([*objects.names(MANIFESTS)]) == len([*objects.folders(COMMITS)]) == 3
    objects.put(f"{COMMITS}/000000000002-left/type=x/partition=0/part.parquet", b"by one that was overtaken")
    objects.put(f"{COMMITS}/000000000005-begun/type=x/partition=0/part.parquet", b"by one at work")
    followed.write([said(A, 9)])
    bring_up(followed, place, grace_s=0)
    assert {*objects.folders(COMMITS)} == {newest(objects).folder.removeprefix(f"{COMMITS}/"), "000000000005-begun"}
    assert len([*objects.names(MANIFESTS)]) == 1
    assert_rebuilt(followed, place)


def test_work_left_by_a_killed_sink_is_done_at_the_next_open(followed: SinkLog, place: Place, seed: int) -> None:
    """Though nothing is committed any more: what was replaced, half of it removed, and the names of the newest."""
    for number in range(3):
        followed.write([said(A, number)])
        bring_up(followed, place, grace_s=3600)
    objects, committed = place.objects, newest(place.objects)
    older = min(f"{COMMITS}/{each}" for each in objects.folders(COMMITS))
    if isinstance(objects, FolderObjects):
        objects.point("current", older)
        (objects.root / COMMITS / "000000000001-left" / "type=x" / "partition=0").mkdir(parents=True)
    objects.put("CURRENT", older.encode())
    assert bring_up(followed, place).loads == 0
    assert newest(objects) == committed
    assert [f"{COMMITS}/{each}" for each in objects.folders(COMMITS)] == [committed.folder]
    if isinstance(objects, FolderObjects):
        assert (objects.root / "current").resolve() == objects.root / committed.folder
        objects.point("current", older)
        bring_up(followed, place)
        assert (objects.root / "current").resolve() == objects.root / committed.folder
    assert_rebuilt(followed, place)


def test_one_of_two_concurrent_commits_wins(followed: SinkLog, place: Place, seed: int) -> None:
    followed.write(random_history(seed, 50))
    one, other = ParquetSink(place.objects, 0), ParquetSink(place.objects, 0)
    assert one.position() is other.position() is None
    one.commit(view_of(followed))
    followed.write([said(A, 1)])
    with pytest.raises(SinkRefused, match="another process commits to it"):
        other.commit(view_of(followed))
    one.commit(view_of(followed))
    assert_rebuilt(followed, place)


def test_another_logs_state_is_never_replaced(followed: SinkLog, folder: Place, tmp_path: Path, seed: int) -> None:
    followed.write([said(A, 1)])
    bring_up(followed, folder)
    before = newest(folder.objects)
    (tmp_path / "other").mkdir()
    with contextlib.ExitStack() as ending:
        other = FileSinkLog(tmp_path / "other", ending)
        other.write([said(A, 2)])
        with pytest.raises(SinkRefused, match="another"):
            bring_up(other, folder)
        sink = ParquetSink(folder.objects)
        with pytest.raises(SinkRefused, match="give another URL"):
            sink.commit(view_of(other))
    assert newest(folder.objects) == before


def test_url_names_a_store_with_its_grace_period() -> None:
    assert open_sink("file:///lake?grace_s=60").name == "parquet file:///lake"
    for given in ("file:///lake?grace=60", "file:///lake?grace_s=x", "s3://key:secret@bucket", "lake"):
        with pytest.raises(InputError) as caught:
            open_sink(given)
        assert "secret@" not in str(caught.value)


@pytest.mark.faults
def test_killed_at_any_moment_named_files_are_whole(
    followed: SinkLog, place: Place, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    draw = random.Random(seed)
    place.objects.prepare()
    number = 0
    # Each request to the S3 store under test costs more than all else: fewer rounds there.
    for _ in range(fault_rounds if place.url.startswith("file:") else max(2, fault_rounds // 3)):
        process = child(FOLLOWER, followed.url, f"{place.url}?grace_s=0")
        assert process.line() == "runs"
        until_s = time.monotonic() + draw.random() * 1.5
        while time.monotonic() < until_s:
            followed.write([said(draw.choice(NAMES[:6]), number + each) for each in range(20)])
            number += 20
        process.look()
        process.kill()
        if place.objects.get("CURRENT") is not None:
            assert_rebuilt(followed, place, at_end=False)
    bring_up(followed, place)
    assert_rebuilt(followed, place)
    assert [*place.objects.folders(COMMITS)] == [newest(place.objects).folder.removeprefix(f"{COMMITS}/")], seed


def test_readers_by_a_glob_see_one_commit(
    followed: SinkLog, folder: Place, child: Callable[..., Child], seed: int
) -> None:
    """Of each commit's folder, resolved once: as many entities and observations as the cut of its manifest has."""
    root = cast(FolderObjects, folder.objects).root
    followed.write([said(name, each) for each, name in enumerate(NAMES[:6])])
    bring_up(followed, folder, grace_s=3600)
    process = child(FOLLOWER, followed.url, folder.url)
    assert process.line() == "runs"
    seen: set[str] = set()
    number = 100
    deadline = time.monotonic() + 60
    while len(seen) < 4 and time.monotonic() < deadline:
        followed.write([said(draw, number + each) for each, draw in enumerate(NAMES[:6])])
        number += 6
        commit = (root / "current").resolve()
        found = queried(f"select sum(_version) from '{commit}/**/*.parquet'")
        data = (root / "manifests" / f"{commit.name.partition('-')[0]}.json").read_bytes()
        assert found == [(decoded(data, "").at().records,)]
        seen.add(commit.name)
    process.look()
    process.kill()
    assert len(seen) >= 4


def test_full_disk_is_awaited(followed: SinkLog, tmp_path: Path, seed: int) -> None:
    with small_device(tmp_path / "small") as device:
        place = Place(FolderObjects(device / "lake"), "", DEFINITIONS)
        followed.write(random_history(seed, 60))
        bring_up(followed, place)
        filler = device / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        followed.write([said(A, 7000)])
        sink = ParquetSink(place.objects, 0)
        sink.position()
        with pytest.raises(SinkBusy):
            sink.commit(view_of(followed))
        assert_rebuilt(followed, place, at_end=False)
        filler.unlink()
        bring_up(followed, place)
        assert_rebuilt(followed, place)


def test_store_that_refuses_or_is_temporarily_unavailable(
    followed: SinkLog, bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    followed.write(random_history(seed, 60))
    with door(s3_endpoint) as before:
        reach(monkeypatch, before.endpoint)
        objects: Objects = RemoteObjects(f"s3://{bucket}/lake")
        place = Place(objects, "", DEFINITIONS)
        bring_up(followed, place)
        for status, kind in ((503, SinkBusy), (0, SinkBusy), (403, SinkRefused)):
            followed.write([said(A, 8000 + status)])
            sink = ParquetSink(objects, 0)
            assert sink.position() is not None
            written = [0]

            def refuse(method: str, path: str, status: int = status, written: list[int] = written) -> int | None:
                written[0] += method == "PUT"
                return status if written[0] > 1 else None

            before.refuse = refuse
            with pytest.raises(kind):
                sink.commit(view_of(followed))
            before.open()
            assert_rebuilt(followed, place, at_end=False)
            bring_up(followed, place)
            assert_rebuilt(followed, place)


@pytest.mark.outside
def test_store_that_was_killed_and_lost_everything_is_loaded_again(
    followed: SinkLog, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    followed.write(random_history(seed, 60))
    with started_s3() as s3:
        reach(monkeypatch, s3.endpoint)
        place = Place(RemoteObjects("s3://contents/lake"), "", DEFINITIONS)
        bring_up(followed, place)
        s3.kill()
        with pytest.raises(SinkBusy):
            ParquetSink(place.objects).position()
        s3.start()
        s3.make()
        bring_up(followed, Place(RemoteObjects("s3://contents/lake"), "", DEFINITIONS))
        assert_rebuilt(followed, place)


def test_values_of_every_kind_have_their_own_column_types() -> None:
    fields: list[dict[str, Any]] = [
        {"name": "a", "type": "long", "refold.reducer": "latest"},
        {"name": "_b", "type": "double", "refold.reducer": "sum"},
        {"name": "c", "type": "long", "refold.reducer": "sum"},
        {"name": "d", "type": {"type": "long", "logicalType": "timestamp-micros"}, "refold.reducer": "latest"},
        {"name": "e", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
         "refold.reducer": "latest"},
        {"name": "f", "type": {"type": "map", "values": {"type": "string", "logicalType": "refold-json"}},
         "refold.reducer": "map"},
    ]  # fmt: skip
    columns = {each.field: each for each in columns_of(defined({"type": "record", "name": "t", "fields": fields}))}
    values: dict[str, list[Any]] = {
        "a": [1, None, 2**62], "_b": [1.5, None, 2**60], "c": [2**70, None, -1], "d": [0, None, 1],
        "e": [{"unscaled": 1250, "scale": 3}, None, {"unscaled": -5, "scale": 0}],
        "f": [{"x": '{"y":1}', "z": '{"$json":1}'}, None, {}],
    }  # fmt: skip
    found = {name: columns[name].array(given).to_pylist() for name, given in values.items()}
    assert found["a"] == [1, None, 2**62]
    assert found["_b"] == [1.5, None, float(2**60)]
    assert [None if each is None else int(each) for each in found["c"]] == [2**70, None, -1]
    assert [None if each is None else str(each) for each in found["e"]] == ["1.25", None, "-5.00"]
    assert found["f"] == ['{"x":{"y":1},"z":{"$json":{"$json":1}}}', None, "{}"]
    assert columns["_b"].arrow.name.startswith("b_x")
    assert str(columns["d"].arrow.type) == "timestamp[us, tz=UTC]"


@pytest.mark.parametrize("folder", ["../outside", "/tmp/out", "commits/../../outside", "", "commits", "commits/1-x/.."])
def test_manifest_that_names_foreign_files_is_ignored(folder: str) -> None:
    good = f"commits/{7:020}-{'0a' * 8}"
    path = "type=run/partition=0/part.parquet"
    for named, file in ((folder, path), (good, folder), (good, f"{path}/../../../../../outside")):
        kept = CommittedFile(file, "run", 0, 1, 1, "")
        with pytest.raises(CorruptionError, match="names files that no sink writes"):
            decoded(encoded(CommitManifest(1, 7, named, "cut", 1, "", (kept,))), "manifests/7.json")
    decoded(
        encoded(CommitManifest(1, 7, good, "cut", 1, "", (CommittedFile(path, "run", 0, 1, 1, ""),))),
        "manifests/7.json",
    )
