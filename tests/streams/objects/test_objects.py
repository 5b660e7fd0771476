"""The promises of every object store (streams/objects/port.py), for a folder, S3 and memory."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import InputError, StorageError, StoreRefused, StoreUnavailable
from refold.streams.objects.folder import FolderObjects
from refold.streams.objects.port import Objects
from refold.streams.objects.remote import RemoteObjects
from refold_tests.s3 import KEY, SECRET, door, reach, started_s3

Opened = Callable[[], Objects]


@pytest.fixture(params=["folder", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    """Opens one store repeatedly."""
    if request.param == "folder":
        return lambda: FolderObjects(tmp_path / "a store")
    place = request.getfixturevalue("bucket") if request.param == "s3" else uuid.uuid4().hex
    return lambda: RemoteObjects(f"{request.param}://{place}/some/prefix")


def test_object_is_whole_or_absent(opened: Opened) -> None:
    store = opened()
    store.put("a/one", b"1")
    store.put("a/one", b"another")
    other = opened()
    assert other.get("a/one") == b"another"
    found = other.stat("a/one")
    assert found is not None
    assert (found.name, found.size) == ("a/one", 7)
    assert (other.get("a/two"), other.stat("a/two"), other.get("b")) == (None, None, None)


def test_folder_lists_its_own(opened: Opened) -> None:
    store = opened()
    for name in ("top", "a/one", "a/two", "a/b/three"):
        store.put(name, name.encode())
    assert {each.name: each.size for each in store.names("a")} == {"a/one": 5, "a/two": 5}
    assert {*store.folders("a")} == {"b"}
    assert {*store.folders("")} == {"a"}
    assert "top" in {each.name for each in store.names("")}
    assert ([*store.names("c")], [*store.folders("c")]) == ([], [])


def test_one_of_many_concurrent_creates_wins(opened: Opened) -> None:
    stores = [opened() for _ in range(6)]
    told: list[bool | None] = [None] * 6

    def create(number: int) -> None:
        told[number] = stores[number].create("the/one", b"%d" % number)

    threads = [threading.Thread(target=create, args=(each,)) for each in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(told, key=bool) == [False] * 5 + [True]
    assert stores[0].get("the/one") == b"%d" % told.index(True)


def test_removed_object_is_gone_and_its_copy_stays(opened: Opened) -> None:
    store = opened()
    store.put("a/b/one", b"1")
    store.copy("a/b/one", "c/two")
    store.delete("a/b/one")
    store.delete("a/b/one")
    assert (store.get("a/b/one"), store.get("c/two")) == (None, b"1")
    assert [*store.folders("")] == ["c"]


def test_folder_is_removed_with_its_content(opened: Opened) -> None:
    store = opened()
    for name in ("a/b/one", "a/b/c/two", "a/bc/three"):
        store.put(name, b"1")
    if isinstance(store, FolderObjects):  # the state after a kill during a removal
        (store.root / "a" / "b" / "empty" / "too").mkdir(parents=True)
    store.remove("a/b")
    store.remove("a/b")
    assert (store.get("a/b/one"), store.get("a/b/c/two"), store.get("a/bc/three")) == (None, None, b"1")
    assert [*store.folders("a")] == ["bc"]
    store.remove("a/bc")
    assert [*store.folders("")] == []


def test_file_is_uploaded_whole(opened: Opened) -> None:
    store = opened()
    with store.scratch() as folder:
        path = folder / "made"
        path.write_bytes(b"x" * 100_000)
        store.put_file("a/file", path)
    assert not folder.exists()
    assert store.get("a/file") == b"x" * 100_000
    assert [*store.folders("")] == ["a"]


# S3 only


def test_missing_object_in_an_invalid_store_is_not_reported_missing(bucket: str) -> None:
    for url in (f"s3://{bucket}/new", f"s3://{bucket}-is-not-there/new"):
        store = RemoteObjects(url)
        for ask in (lambda store=store: store.get("a"), lambda store=store: store.stat("a"),
                    lambda store=store: [*store.names("a")]):  # fmt: skip
            with pytest.raises(StorageError, match="there is no store of refold here"):
                ask()
    with pytest.raises(StorageError, match="there is no such bucket"):
        RemoteObjects(f"s3://{bucket}-is-not-there/new").put("a", b"")


@pytest.mark.parametrize(("status", "kind"), [(403, StoreRefused), (503, StoreUnavailable), (0, StoreUnavailable)])
def test_unavailable_store_raises(
    bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[StorageError]
) -> None:
    with door(s3_endpoint) as before:
        reach(monkeypatch, before.endpoint)
        store = RemoteObjects(f"s3://{bucket}/p")
        store.put("a", b"1")
        before.refuse = lambda method, path: status
        for ask in (lambda: store.get("a"), lambda: store.put("a", b"2"), lambda: store.create("b", b"2"),
                    lambda: [*store.names("")], lambda: store.delete("a")):  # fmt: skip
            with pytest.raises(StorageError) as caught:
                ask()
            assert type(caught.value) is kind
            shown = f"{caught.value!r} {caught.value.__cause__!r} {store!r}"
            assert KEY not in shown
            assert SECRET not in shown
        before.open()
        assert (store.get("a"), store.get("b")) == (b"1", None)


def test_creation_with_a_lost_answer_is_recognized_as_ones_own(
    bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door(s3_endpoint) as before:
        reach(monkeypatch, before.endpoint)
        store = RemoteObjects(f"s3://{bucket}/p")
        store.put("a", b"1")
        before.lose = lambda method, path: method == "PUT"
        assert store.create("b", b"mine")
        before.open()
        assert not store.create("b", b"another's")


@pytest.mark.outside
def test_store_that_lost_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with started_s3() as s3:
        reach(monkeypatch, s3.endpoint)
        store = RemoteObjects("s3://contents/p")
        store.put("a", b"1")
        s3.kill()
        with pytest.raises(StoreUnavailable):
            store.get("a")
        s3.start()
        s3.make()
        with pytest.raises(StorageError, match="there is no store of refold here"):
            store.get("a")


def test_missing_client_library_names_what_to_install() -> None:
    with pytest.raises(InputError, match="install what fsspec needs for nothing://"):
        RemoteObjects("nothing://a").get("b")
