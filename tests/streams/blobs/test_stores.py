"""The promises of every store of contents (streams/blobs/store.py): for a folder, S3, memory and a topic."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.avro.blob import EXPIRED
from refold.avro.errors import CorruptionError, InputError
from refold.streams.blobs.objects import REMOVING, BlobObjects
from refold.streams.blobs.store import ContentStore
from refold.streams.blobs.url import open_store, store_url
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.objects.port import Objects
from refold.streams.objects.remote import RemoteObjects
from refold_tests.kafka_contents import forge
from refold_tests.kafka_topics import Broker

Opened = Callable[[str], ContentStore]
LATER_MS = time.time_ns() // 1_000_000 + 3_600_000
CONTENTS = [b"content %d" % each for each in range(70)]
S3_CONTENTS = 10


def named(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.fixture(
    params=["file", "memory", pytest.param("s3", marks=pytest.mark.s3), pytest.param("kafka", marks=pytest.mark.kafka)]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return (tmp_path / "contents").as_uri()
    if request.param == "kafka":
        broker: Broker = request.getfixturevalue("broker")
        with contextlib.closing(KafkaLog(parse_url(f"kafka://{broker.bootstrap}/{broker.prefix}?partitions=2"))) as log:
            return log.url
    place = request.getfixturevalue("bucket") if request.param == "s3" else uuid.uuid4().hex
    return f"{request.param}://{place}/contents"


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens the store at a URL, or that of the log at it."""
    with contextlib.ExitStack() as ending:

        def store(url: str) -> ContentStore:
            if not url.startswith("kafka:"):
                return open_store(url)
            log = ending.enter_context(contextlib.closing(KafkaLog(parse_url(url))))
            return log.blobs

        yield store


def test_content_is_visible_to_everyone_after_put(url: str, opened: Opened) -> None:
    store = opened(url)
    for content in (b"", b"x", b"y" * 300_000):
        store.put(named(content), content)
        store.put(named(content), content)
        other = opened(url)
        assert other.get(named(content)) == content
        assert other.size(named(content)) == len(content)
    assert (store.get(named(b"z")), store.size(named(b"z")), store.has(named(b"z"))) == (None, None, False)


def test_stored_contents_are_listed(url: str, opened: Opened) -> None:
    store = opened(url)
    before_ms = time.time_ns() // 1_000_000 - 2_000
    for content in CONTENTS[:S3_CONTENTS]:
        store.put(named(content), content)
    found = [*store.stored()]
    assert {each.digest: each.size for each in found} == {named(each): len(each) for each in CONTENTS[:S3_CONTENTS]}
    assert all(before_ms < each.put_ms < LATER_MS for each in found)


def test_damaged_content_is_named_and_never_returned(url: str, opened: Opened) -> None:
    store = opened(url)
    store.put(named(b"good"), b"good")
    digits = named(b"good").hex()
    if url.startswith("file:"):
        (Path(url.removeprefix("file://")) / digits[:2] / digits).write_bytes(b"evil")
    elif url.startswith("kafka:"):
        store.remove([named(b"good")], LATER_MS)
        forge(url, named(b"good"), b"evil")
    else:
        RemoteObjects(url).put(f"{digits[:2]}/{digits}", b"evil")
    with pytest.raises(CorruptionError, match=digits):
        store.get(named(b"good"))


def test_expired_is_distinguished_from_lost(url: str, opened: Opened) -> None:
    store = opened(url)
    contents = CONTENTS[:S3_CONTENTS] if url.startswith("s3") else CONTENTS
    for content in contents:
        store.put(named(content), content)
    kept, lost = named(CONTENTS[0]), named(b"never put")
    removed = store.remove([named(each) for each in contents[1:]] + [lost], LATER_MS)
    assert (removed.contents, removed.left) == (len(contents) - 1, 0)
    assert removed.bytes == sum(map(len, contents[1:]))
    other = opened(url)
    assert other.get(kept) == CONTENTS[0]
    assert not other.has_expired(lost)
    assert all(other.get(named(each)) is None and other.has_expired(named(each)) for each in contents[1:])
    store.put(named(CONTENTS[1]), CONTENTS[1])
    assert other.get(named(CONTENTS[1])) == CONTENTS[1]


def test_content_copied_as_expired_stays_expired(url: str, opened: Opened) -> None:
    store = opened(url)
    store.put(named(b"gone elsewhere"), EXPIRED)
    assert store.get(named(b"gone elsewhere")) is None
    assert store.has_expired(named(b"gone elsewhere"))


def test_garbage_is_removed_without_an_expiry_record(url: str, opened: Opened) -> None:
    store = opened(url)
    store.put(named(b"a"), b"a")
    assert store.remove([named(b"a")], LATER_MS, is_expiry=False).contents == 1
    assert not store.has(named(b"a"))


def test_content_put_since_is_kept(url: str, opened: Opened) -> None:
    store = opened(url)
    store.put(named(b"a"), b"a")
    removed = store.remove([named(b"a")], time.time_ns() // 1_000_000 - 60_000)
    assert (removed.contents, removed.left) == (0, 1)
    assert store.get(named(b"a")) == b"a"


class _Slow(RemoteObjects):
    """Stops before each content that it removes."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def delete(self, name: str) -> None:
        if not name.startswith(REMOVING):
            self.reached.set()
            assert self.go_on.wait(300)
        super().delete(name)


@pytest.mark.parametrize("url", ["memory", pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
def test_content_put_during_its_removal_exists_in_the_end(url: str, opened: Opened) -> None:
    """The remover checked before the put, and deletes after it."""
    opened(url).put(named(b"a"), b"a")
    slow = _Slow(url)
    remover = threading.Thread(target=lambda: BlobObjects(slow).remove([named(b"a")], LATER_MS))
    remover.start()
    assert slow.reached.wait(300)
    waits = threading.Event()

    def wait(seconds: float) -> None:
        waits.set()
        time.sleep(0.01)

    putting = BlobObjects(RemoteObjects(url), wait=wait)
    putter = threading.Thread(target=lambda: putting.put(named(b"a"), b"a"))
    putter.start()
    assert waits.wait(300)
    opened(url).put(named(b"another"), b"another")  # nobody waits who puts something else
    slow.go_on.set()
    for each in (remover, putter):
        each.join()
    assert opened(url).get(named(b"a")) == b"a"
    assert [*RemoteObjects(url).names(REMOVING)] == []


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_leftovers_of_a_killed_remover_block_nobody_for_long(url: str) -> None:
    objects: Objects = RemoteObjects(url)
    objects.put(f"{REMOVING}/left", named(b"b") + named(b"a"))
    clock = [0.0]

    def wait(seconds: float) -> None:
        clock[0] += seconds

    BlobObjects(objects, now_s=lambda: clock[0], wait=wait).put(named(b"a"), b"a")
    assert clock[0] >= 150
    assert [*objects.names(REMOVING)] == []


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("file:///a b", "file:///a%20b"),
        ("file:///a%20b", "file:///a%20b"),
        ("/a b", "file:///a%20b"),
        ("/a%20b", "file:///a%2520b"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("memory://x", "memory://x"),
    ],
)
def test_stores_url_has_one_form(given: str, kept: str) -> None:
    assert store_url(given) == store_url(kept) == kept


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s3://", "s3://BUCKET/PREFIX"),
        ("file:relative", "file:///PATH"),
        ("folder", "file:///PATH"),
        ("s3://key:secret@bucket/x", "AWS_SECRET_ACCESS_KEY"),
        ("s3://bucket/x?secret=hidden", "and no more"),
        ("simplecache::s3://bucket", "file:///PATH"),
    ],
)
def test_invalid_url_is_refused_without_showing_its_secrets(given: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        store_url(given)
    assert "secret@" not in str(caught.value)
    assert "hidden" not in str(caught.value)
