"""Reading needs only the right to read: on a read-only mount, and for another user."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.avro.errors import StorageError
from refold.streams.rocks.database import READER_PREFIX as PREFIX
from refold.streams.rocks.database import Database
from refold.streams.rocks.layout import SyncedNote
from refold.streams.temporary import sweep
from refold_tests.absent import without
from refold_tests.command import Done, environment, refold_command
from refold_tests.permissions import WITHOUT_OVERRIDE

AGENT = """
def agent(run):
    with run.step("s"):
        run.state["limit"] = run.read("tool_config/acme").fields["rate_limit"]
"""
WRITER = """
import os, signal, sys, refold
from agent import agent
log = refold.open(f"file:{sys.argv[1]}")
log.observe("tool_config/acme", {"rate_limit": 50})
log.mark("before")
log.observe("tool_config/acme", {"rate_limit": 70})
log.run("a", id="r", entry="agent.py:agent").drive(agent)
log.snapshot()
log.flush()
os.kill(os.getpid(), signal.SIGKILL)  # nothing has left the write-ahead log
"""
READING = [
    ["state", "tool_config/acme"], ["history", "tool_config/acme"], ["why", "tool_config/acme.rate_limit"],
    ["diff", "@before", "now"], ["rebuild"], ["verify"], ["runs"], ["run", "show", "r"], ["export", "OUT"],
    ["doctor"], ["markers"], ["types"], ["effects", "list"], ["blobs"],
    ["snapshot", "--list"], ["snapshot", "--collect", "--dry-run"], ["retain"], ["run", "replay", "r"],
    ["run", "replay", "--all", "--alone"], ["run", "replay", "r", "--confined"], ["run", "steps", "r"], ["knew", "a"],
    ["golden", "add", "r"],
]  # fmt: skip
# Of this process alone; a user other than root becomes root in a namespace of users of its own.
MOUNTED = """
import ctypes, os, subprocess, sys
user, group = os.geteuid(), os.getegid()
if ctypes.CDLL(None).unshare(NEWNS | (NEWUSER if user else 0)):
    sys.exit(99)
if user:
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        open(f"/proc/self/{name}", "w").write(line)
for how in (["--make-rprivate", "/"], ["--bind", FOLDER, FOLDER], ["-o", "remount,ro,bind", FOLDER]):
    if subprocess.run(["mount", *how]).returncode:
        sys.exit(99)
""".replace("NEWNS", str(0x20000)).replace("NEWUSER", str(0x10000000))
Reader = Callable[..., Done]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log whose owner was killed before it moved anything out of the write-ahead log."""
    folder = tmp_path_factory.mktemp("killed")
    path = folder / "log"
    (folder / "agent.py").write_text(AGENT)
    done = subprocess.run(
        [sys.executable, "-P", "-c", WRITER, path], env=environment(more={"PYTHONPATH": str(folder)}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert any(file.stat().st_size for file in (path / "db").glob("*.log"))
    (path / "owner.sock").unlink(missing_ok=True)  # which cannot be copied
    return path


@pytest.fixture(params=["a read-only mount", "another user"])
def reading(request: pytest.FixtureRequest, killed: Path, tmp_path: Path) -> Reader:
    """Runs `refold` where the log is readable but not writable."""
    path = tmp_path / "held" / "log"
    shutil.copytree(killed, path)
    shutil.copy(killed.parent / "agent.py", tmp_path)
    if request.param == "another user":
        for each in (path, *path.rglob("*")):
            if os.geteuid() == 0:
                os.chown(each, 12345, 12345)
            each.chmod(0o555 if each.is_dir() else 0o444)

    def read(*words: object) -> Done:
        is_mount = request.param != "another user"
        before = MOUNTED.replace("FOLDER", repr(str(path.parent))) if is_mount else WITHOUT_OVERRIDE
        done = refold_command(*words, log=f"file:{path}", folder=tmp_path, before=before)
        if is_mount and done.status == 99:
            without(f"needs a mount namespace: {done.err}")
        return done

    read.path = path  # type: ignore[attr-defined]
    return read


@pytest.mark.outside
def test_read_only_commands_work_even_after_a_crash(reading: Reader, killed: Path, tmp_path: Path) -> None:
    before = _bytes(reading.path)  # type: ignore[attr-defined]
    for words in READING:
        done = reading(*(tmp_path / "out.jsonl" if each == "OUT" else each for each in words))
        assert done.status in ((0, 1) if words[0] == "diff" else (0,)), (words, done.out, done.err)
        assert bool(done.err) is (words[:2] == ["golden", "add"]), (words, done.err)
        if done.err:  # the file is written, and the log cannot say so
            assert "golden/a-r.golden.json" in done.out
            assert str(reading.path / "db") in done.err  # type: ignore[attr-defined]
    assert reading("state", "tool_config/acme", "--json").json["fields"]["rate_limit"]["value"] == 70
    with refold.open(f"file:{killed}", read_only=True) as log:
        assert reading("rebuild", "--json").json["root"] == log.rebuild().root
    assert _bytes(reading.path) == before  # type: ignore[attr-defined]


@pytest.mark.outside
def test_doctor_examines_it(reading: Reader) -> None:
    done = reading("doctor", "--json")
    assert done.status in (0, 1), done.err
    assert "70" not in done.err


@pytest.mark.outside
def test_writing_commands_name_the_path_and_the_missing_right(reading: Reader) -> None:
    for words in (["observe", "tool_config/acme", "rate_limit=1"], ["mark", "x"], ["snapshot"]):
        said = reading(*words).refused()
        assert str(reading.path / "db") in said  # type: ignore[attr-defined]
        assert "read-only" in said
        assert "right to write" in said


@pytest.mark.outside
def test_lost_write_is_still_refused(reading: Reader) -> None:
    path: Path = reading.path  # type: ignore[attr-defined]
    for file in (path / "db").glob("*.log"):
        file.chmod(0o644)
        with file.open("r+b") as wal:
            wal.truncate(file.stat().st_size // 2)
        file.chmod(0o444)
    assert "was acknowledged" in reading("state", "tool_config/acme").refused()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to another user")
@pytest.mark.outside
def test_unreadable_file_is_named(killed: Path, tmp_path: Path) -> None:
    path = tmp_path / "log"
    shutil.copytree(killed, path)
    manifest = next((path / "db").glob("MANIFEST-*"))
    os.chown(manifest, 12345, 12345)
    manifest.chmod(0o600)
    said = refold_command("state", "tool_config/acme", log=f"file:{path}", before=WITHOUT_OVERRIDE).refused()
    assert manifest.name in said
    assert "may not read" in said


@pytest.mark.outside
def test_symlink_named_synced_is_not_followed(killed: Path, tmp_path: Path) -> None:
    path, target = tmp_path / "log", tmp_path / "precious"
    shutil.copytree(killed, path)
    (path / "SYNCED").unlink()
    target.write_bytes(b"precious")
    (path / "SYNCED").symlink_to(target)
    for opened in (Database.read, Database.open):
        with pytest.raises(StorageError, match="symbolic link"):
            opened(path)
    with pytest.raises(StorageError, match="symbolic link"):
        refold.open(f"file:{path}")
    assert target.read_bytes() == b"precious"


@pytest.mark.parametrize("content", [b"precious", None])
def test_symlink_that_replaces_the_sync_note_is_not_written_through(content: bytes | None, tmp_path: Path) -> None:
    """Opening a log reads SYNCED, then opens it to write: both refuse a link."""
    target = tmp_path / "precious"
    if content is not None:
        target.write_bytes(content)
    (tmp_path / "SYNCED").symlink_to(target)
    with pytest.raises(StorageError, match="symbolic link"):
        SyncedNote(tmp_path)
    assert (target.read_bytes() if target.exists() else None) == content


READER = """
import os, signal, sys
from refold.streams.rocks.database import Database
reader = Database.read(sys.argv[1])
print(reader._folder, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.outside
def test_folder_of_a_killed_reader_is_removed_and_no_other(
    killed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = [sys.executable, "-P", "-c", READER, str(killed)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(command, env=environment(), text=True, **pipes) as dying,  # type: ignore[call-overload]
        subprocess.Popen(command, env=environment(), text=True, **pipes) as living,  # type: ignore[call-overload]
    ):
        left, kept = Path(dying.stdout.readline().strip()), Path(living.stdout.readline().strip())
        assert left.parent == kept.parent == tmp_path
        dying.communicate("die\n")
        assert left.is_dir()
        other, making = tmp_path / "elsewhere", Path(tempfile.mkdtemp(prefix=PREFIX, dir=tmp_path))
        other.mkdir()
        (tmp_path / f"{PREFIX}link").symlink_to(other)
        assert refold_command("runs", log=f"file:{killed}").status == 0
        assert not left.exists()
        assert kept.is_dir()
        assert making.is_dir()
        assert other.is_dir()
        os.utime(making, (0, 0))
        sweep(tmp_path, PREFIX)
        assert not making.exists()
        living.communicate("die\n")


def _bytes(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in path.rglob("*") if each.is_file()}
