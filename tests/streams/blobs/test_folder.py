"""The folder of contents: removal during concurrent puts, and by a killed process."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.streams.blobs.folder import EXPIRED, BlobFolder
from refold_tests.child import Child

LATER_MS = time.time_ns() // 1_000_000 + 3_600_000
REMOVING = """
import hashlib, sys
from pathlib import Path
from refold.streams.blobs.folder import BlobFolder

names = [hashlib.sha256(b"%d" % each).digest() for each in range(int(sys.argv[2]))]
print("begin", flush=True)
BlobFolder(Path(sys.argv[1])).remove(names, int(sys.argv[3]))
print("end", flush=True)
"""


def named(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def test_content_put_again_recently_is_kept(tmp_path: Path) -> None:
    """A recorder that finds an existing content relies on it before its observation is in the log."""
    blobs = BlobFolder(tmp_path / "blobs")
    content = b"the same answer"
    blobs.put(named(content), content)
    (path,) = (each for each in (tmp_path / "blobs").rglob("*") if each.is_file())
    os.utime(path, (1, 1))
    before_ms = time.time_ns() // 1_000_000 - 60_000
    blobs.put(named(content), content)
    assert blobs.remove([named(content)], before_ms).left == 1
    os.utime(path, (1, 1))
    assert blobs.remove([named(content)], before_ms).contents == 1
    assert blobs.has_expired(named(content))
    assert blobs.get(named(content)) is None


def test_torn_end_of_the_list_of_expired_is_truncated(tmp_path: Path) -> None:
    blobs = BlobFolder(tmp_path / "blobs")
    for content in (b"a", b"b"):
        blobs.put(named(content), content)
    blobs.remove([named(b"a")], LATER_MS)
    with (tmp_path / "blobs" / EXPIRED).open("ab") as file:
        file.write(b"torn")
    assert [blobs.has_expired(named(each)) for each in (b"a", b"b")] == [True, False]
    blobs.remove([named(b"b")], LATER_MS)
    assert [BlobFolder(tmp_path / "blobs").has_expired(named(each)) for each in (b"a", b"b")] == [True, True]


@pytest.mark.faults
def test_killed_remover_never_leaves_a_content_missing_without_an_expiry_record(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    contents = [b"%d" % each for each in range(300)]
    blobs = BlobFolder(tmp_path / "blobs")
    for round_ in range(fault_rounds):
        for each in contents:
            path = tmp_path / "blobs" / named(each).hex()[:2] / named(each).hex()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(each)
        process = child(REMOVING, tmp_path / "blobs", len(contents), LATER_MS)
        assert process.line() == "begin"
        waited_for = named(contents[(seed + round_ * 61) % len(contents)])
        while blobs.size(waited_for) is not None and process.process.poll() is None:
            pass
        process.kill()
        found = BlobFolder(tmp_path / "blobs")
        for each in contents:
            assert found.get(named(each)) == each or found.has_expired(named(each)), (round_, seed)
    blobs.remove(map(named, contents), LATER_MS)
    assert not any(blobs.get(named(each)) for each in contents)
