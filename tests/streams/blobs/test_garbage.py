"""Unreferenced contents: what is found and removed, and what stays, also if processes are killed."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError, InputError, StorageError
from refold.streams.blobs.garbage import Garbage, collect
from refold.streams.client import Log
from refold_tests.child import Child
from refold_tests.command import refold_command
from refold_tests.s3 import door, reach

LARGE = 300_000
PUTTING = """
import sys
import refold

log = refold.open(sys.argv[1])
print("begin", flush=True)
for number in range(int(sys.argv[2]), 1 << 30):
    log.observe("document/a", {"fields": {"text": f"{number} " * 200_000}})
    log.flush()
    print(number, flush=True)
"""
COLLECTING = """
import sys, time
import refold
from refold.streams.blobs.garbage import collect

log = refold.open(sys.argv[1])
print("begin", flush=True)
print(collect(log.port, int(time.time() * 1000) + 60_000, grace_s=0, dry_run=False).unnamed, flush=True)
"""


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.s3)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    where = f"&blobs=s3://{request.getfixturevalue('bucket')}/p" if request.param == "s3" else ""
    return f"file:{tmp_path / 'log'}?partitions=2{where}"


def collected(log: Log, *, dry_run: bool = False, grace_s: float = 0, at_once: int = 1_000_000) -> Garbage:
    """As if a minute later: a store's times are in whole seconds."""
    now_ms = time.time_ns() // 1_000_000 + 60_000
    return collect(log.port, now_ms, grace_s=grace_s, dry_run=dry_run, candidates_max=at_once)


def test_unreferenced_contents_are_removed_and_all_others_kept(url: str) -> None:
    with refold.open(url) as log:
        log.observe("document/a", {"fields": {"text": "x" * LARGE}})
        inner = log.put_blob(b"held by a content alone", "text/plain")
        tree = {"hash": inner.hash, "size": inner.size, "media_type": inner.media_type}
        outer = log.put_blob(encode([tree]), "application/cbor")
        log.observe("document/b", {"fields": {"of": outer}})
        log.flush()
        left = log.put_blob(b"left behind", "text/plain")
        found = collected(log, dry_run=True)
        assert (found.contents, found.unnamed, found.unnamed_bytes, found.removed) == (4, 1, 11, 0)
        assert collected(log, grace_s=3600).young == 4
        found = collected(log, at_once=1)
        assert (found.unnamed, found.removed, found.left) == (1, 1, 0)
        assert log.port.blobs.get(left.hash) is None
        assert not log.port.blobs.has_expired(left.hash)
        assert log.port.blobs.get(inner.hash) == b"held by a content alone"
        assert log.verify().ok


def test_lost_content_that_may_hold_references_stops_the_collection(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        outer = log.put_blob(encode([1]), "application/cbor")
        log.observe("document/b", {"fields": {"of": outer}})
        log.flush()
        log.put_blob(b"left behind", "text/plain")
        (tmp_path / "log" / "blobs" / outer.hash.hex()[:2] / outer.hash.hex()).unlink()
        with pytest.raises(CorruptionError, match=outer.hash.hex()):
            collected(log)
        assert log.port.blobs.get(hashlib.sha256(b"left behind").digest()) is not None


def test_store_of_an_embedded_log_is_kept_with_it(tmp_path: Path, bucket: str) -> None:
    plain = f"file:{tmp_path / 'log'}"
    with refold.open(f"{plain}?blobs=s3://{bucket}/p") as log:
        log.observe("document/a", {"fields": {"text": "x" * LARGE}})
    assert not (tmp_path / "log" / "blobs").is_dir() or not [*(tmp_path / "log" / "blobs").rglob("*.*")]
    with refold.open(plain) as log:
        assert log.verify().ok
        assert len([*log.port.blobs.stored()]) == 1
    with pytest.raises(InputError, match=f"s3://{bucket}/p"):
        refold.open(f"{plain}?blobs=file:///elsewhere")
    with refold.open(f"file:{tmp_path / 'other'}") as log:
        log.observe("document/a", {"fields": {"text": "x" * LARGE}})
    with pytest.raises(InputError, match="this log's contents are in"):
        refold.open(f"file:{tmp_path / 'other'}?blobs=s3://{bucket}/q")


def test_unavailable_store_removes_and_decides_nothing(
    tmp_path: Path, bucket: str, s3_endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with door(s3_endpoint) as before:
        reach(monkeypatch, before.endpoint)
        with refold.open(f"file:{tmp_path / 'log'}?blobs=s3://{bucket}/p") as log:
            log.observe("document/a", {"fields": {"text": "x" * LARGE}})
            log.flush()
            before.refuse = lambda method, path: 503
            with pytest.raises(StorageError, match="the store gave no answer"):
                log.observe("document/a", {"fields": {"text": "y" * LARGE}})
            with pytest.raises(StorageError, match="the store gave no answer"):
                collected(log)
            log.observe("document/a", {"fields": {"small": 1}})
            before.open()
            log.observe("document/a", {"fields": {"text": "y" * LARGE}})
            log.flush()
            assert log.verify().ok
            assert log.rebuild()["document/a"].version == 3


@pytest.mark.faults
def test_process_killed_between_put_and_append_leaves_garbage_but_nothing_dangling(
    url: str, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    draw = random.Random(seed)
    last = -1
    for round_ in range(max(2, fault_rounds // 3)):
        process = child(PUTTING, url, last + 2)
        assert process.line() == "begin"
        for _ in range(draw.randrange(1, 4)):
            last = int(process.line())
        time.sleep(draw.random() * 0.1)
        process.kill()
        collector = child(COLLECTING, url)
        assert collector.line() == "begin"
        time.sleep(draw.random() * 0.2)
        collector.kill()
        with refold.open(url) as log:
            assert log.verify().ok, (round_, seed)
            assert log.rebuild()["document/a"].fields["fields"] is not None
    with refold.open(url) as log:
        collected(log)
        assert log.verify().ok, seed
        assert collected(log, dry_run=True).unnamed == 0


def test_command_removes_only_on_request(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        log.observe("document/a", {"fields": {"text": "x" * LARGE}})
        left = log.put_blob(b"left behind", "text/plain")
    assert "1 content, 11 bytes that nothing refers to" in refold_command("blobs", "--grace", 0, log=url).out
    assert "stored in the last 24 hours: not examined" in refold_command("blobs", log=url).out
    done = refold_command("blobs", "--apply", "--grace", 0, "--json", log=url).json
    assert (done["removed"], done["removed_bytes"]) == (1, 11)
    assert refold_command("blob", left.hash.hex(), log=url).status == 2
    assert "give one of them" in refold_command("blobs", "--apply", "--dry-run", log=url).refused()
