"""Key rings of a single process and of a single machine."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.agents.keys.files import FileKeyRing
from refold.agents.keys.ring import KeyRing, MemoryKeyRing
from refold.avro.errors import CorruptionError, StorageError
from refold_tests.child import Child
from refold_tests.key_rings import RingContract

MAKING = """
import sys
from pathlib import Path
from refold.agents.keys.files import FileKeyRing

ring = FileKeyRing(Path(sys.argv[1]))
print("made", flush=True)
for number in range(10**6):
    key = ring.create(f"run:{number}")
    print(number, key.hex(), flush=True)
    if number % 2:
        ring.destroy(f"run:{number}")
        print("destroyed", number, flush=True)
"""


class TestMemory(RingContract):
    @pytest.fixture
    def opened(self) -> Callable[[], KeyRing]:
        ring = MemoryKeyRing()
        return lambda: ring


class TestFiles(RingContract):
    @pytest.fixture
    def opened(self, tmp_path: Path) -> Callable[[], KeyRing]:
        return lambda: FileKeyRing(tmp_path / "deep" / "keys")


def test_only_their_user_can_read_key_files(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    ring = FileKeyRing(folder)
    ring.create("run:a")
    ring.create("run:b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()] == [0o600, 0o600]


def test_key_name_cannot_escape_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    ring = FileKeyRing(folder)
    for name in ("../../outside", "/etc/outside", "a/b", "..", "\0"):
        ring.create(name)
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]
    assert all(len(each.name) == 64 and each.is_file() for each in folder.iterdir())


def test_no_file_keeps_a_destroyed_key(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    ring = FileKeyRing(folder)
    key = ring.create("run:a")
    assert key.hex().encode() in b"".join(each.read_bytes() for each in folder.iterdir())
    ring.destroy("run:a")
    assert key.hex().encode() not in b"".join(each.read_bytes() for each in folder.iterdir())


def test_damaged_key_file_is_named_and_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    ring = FileKeyRing(folder)
    ring.create("run:a")
    (path,) = folder.iterdir()
    whole = path.read_text()
    for odd in (
        "",
        "{}",
        whole[:-9],
        whole.replace("run:a", "run:b"),
        whole.replace('"key": "', '"key": "00'),
        "[" * 9_999,
    ):
        path.write_text(odd)
        for ask in (ring.get, ring.create):
            with pytest.raises(CorruptionError, match=path.name):
                ask("run:a")
    path.write_text(whole)
    assert ring.get("run:a") == ring.create("run:a")


def test_unwritable_folder_names_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("in the way")
    with pytest.raises(StorageError, match="the key ring cannot be written"):
        FileKeyRing(tmp_path / "keys").create("run:a")


@pytest.mark.faults
def test_killed_process_leaves_its_acknowledged_keys(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    """kill -9 anywhere: a key that was reported as created exists; one that was reported as destroyed does not, and no
    copy of it does."""
    for each in range(fault_rounds):
        folder = tmp_path / str(each)
        process = child(MAKING, folder)
        said = [process.line() for _ in range(1 + (seed + each * 7) % 23)]
        process.kill()
        told = {line.split()[0]: bytes.fromhex(line.split()[1]) for line in said[1:] if not line.startswith("des")}
        ended = {line.split()[1] for line in said if line.startswith("des")}
        ring = FileKeyRing(folder)
        for number, key in told.items():
            found = ring.get(f"run:{number}")
            assert found == key or (found is None and int(number) % 2), (number, seed)
            assert found is None or number not in ended, (number, seed)
            ring.destroy(f"run:{number}")
        left = b"".join(path.read_bytes() for path in folder.iterdir()) if folder.is_dir() else b""
        assert not any(key.hex().encode() in left for key in told.values()), seed
