"""What is at a path: a log, none, one with a newer format, one under construction."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import InputError
from refold.streams.rocks import layout
from refold.streams.rocks.database import Database
from refold_tests.child import Child
from refold_tests.rows import put


def test_path_that_is_no_log_is_reported_and_untouched(tmp_path: Path) -> None:
    assert not layout.is_log(tmp_path / "nothing")
    with pytest.raises(InputError, match="create it first"):
        Database.open(tmp_path / "nothing")
    with pytest.raises(InputError, match="create it first"):
        Database.read(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()

    (tmp_path / "folder").mkdir()
    assert not layout.is_log(tmp_path / "folder")
    (tmp_path / "folder" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for other in (tmp_path / "folder", tmp_path / "file", tmp_path / "file" / "below"):
        for make in (Database.create, Database.open, Database.read):
            with pytest.raises(InputError):
                make(other)
    assert sorted(tmp_path.rglob("*")) == [
        tmp_path / "file",
        tmp_path / "folder",
        tmp_path / "folder" / "mine.txt",
    ]


def test_newer_format_names_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "log"
    Database.create(path).close()
    assert (path / "FORMAT").read_text() == "refold-file 1\n"
    with pytest.raises(InputError, match="here already"):
        Database.create(path)
    (path / "FORMAT").write_text("refold-file 2\n")
    for make in (Database.create, Database.open, Database.read):
        with pytest.raises(InputError, match=r"file format 2.*newer refold"):
            make(path)
    (path / "FORMAT").write_text("something else\n")
    with pytest.raises(InputError, match="not a refold log"):
        Database.open(path)


@pytest.mark.faults
def test_kill_while_creating_leaves_a_log_or_nothing(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    draw = random.Random(seed)
    # The child dies at its n-th relevant system call; after the last one it finishes.
    code = """
import random, threading
log = None
def die(event, arguments, left=[int(sys.argv[2])]):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "shutil.rmtree") and path in str(arguments[0]):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(die)
threading.Timer(float(sys.argv[3]), os.kill, (os.getpid(), signal.SIGKILL)).start()
Database.create(path)
os.kill(os.getpid(), signal.SIGKILL)
"""
    seen = set()
    for turn in range(fault_rounds):
        path = tmp_path / str(turn)
        for _ in range(draw.randrange(1, 3)):
            child(code, path, draw.randrange(1, 12), draw.uniform(0.0, 0.1)).end()
            if layout.is_log(path):
                break
        seen.add(layout.is_log(path))
        with Database.open(path) if layout.is_log(path) else Database.create(path) as log:
            put(log, {b"k": b"v"})
        with Database.open(path) as log:
            assert log.get("observations", b"k") == b"v"
    assert seen
