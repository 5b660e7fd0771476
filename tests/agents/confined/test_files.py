"""A confined replay changes only files in its own temporary folder, which is removed afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.confined.files import not_offered
from refold.agents.confined.process import FOLDER
from refold.agents.entry import agent_of
from refold.agents.log import AgentLog
from refold.agents.replay.watch import NetworkDenied
from refold_tests.absent import without
from refold_tests.command import COMMAND, environment, refold_command
from refold_tests.processes import is_gone
from refold_tests.refusing import WITHOUT_LANDLOCK
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside

CODE = """
import contextlib, ctypes, os, pathlib, signal, tempfile


def through_libc(folder):
    libc = ctypes.CDLL(None)
    made = libc.open(f"{folder}/made".encode(), os.O_WRONLY | os.O_CREAT, 0o600)
    libc.write(made, b"x", 1)
    libc.unlink(f"{folder}/kept".encode())
    libc.rename(f"{folder}/inner/deep".encode(), f"{folder}/deep".encode())
    libc.truncate(f"{folder}/kept".encode(), 0)


def below_a_folder(folder):
    place = os.open(folder, os.O_RDONLY)
    os.unlink("kept", dir_fd=place)


def by_a_link(folder):
    os.symlink(f"{folder}/kept", f"{tempfile.gettempdir()}/link")
    open(f"{tempfile.gettempdir()}/link", "w").write("x")


WAYS = {
    "open": lambda folder: open(f"{folder}/made", "w").write("x"),
    "append": lambda folder: open(f"{folder}/kept", "a").write("x"),
    "os.open": lambda folder: os.open(f"{folder}/made", os.O_CREAT | os.O_WRONLY),
    "remove": lambda folder: os.remove(f"{folder}/kept"),
    "remove below a folder": below_a_folder,
    "rename": lambda folder: os.rename(f"{folder}/kept", f"{folder}/other"),
    "rename into the temporary folder": lambda folder: os.rename(f"{folder}/kept", f"{tempfile.gettempdir()}/other"),
    "mkdir": lambda folder: os.mkdir(f"{folder}/made"),
    "rmdir": lambda folder: os.rmdir(f"{folder}/empty"),
    "truncate": lambda folder: os.truncate(f"{folder}/kept", 0),
    "chmod": lambda folder: os.chmod(f"{folder}/kept", 0o777),
    "link": lambda folder: os.link(f"{folder}/kept", f"{folder}/made"),
    "symlink": lambda folder: os.symlink("kept", f"{folder}/made"),
    "by a link": by_a_link,
    "touch": lambda folder: pathlib.Path(folder, "made").touch(),
    "through libc": through_libc,
}


def agent(run):
    with run.step("look"):
        if os.environ.get("WRITING"):
            with contextlib.suppress(BaseException):
                WAYS[run.input["way"]](run.input["folder"])
    return "done"


def at_home(run):
    with run.step("look"):
        with tempfile.NamedTemporaryFile("w+") as file, tempfile.TemporaryDirectory() as folder:
            file.write("x")
            inner = pathlib.Path(folder, "inner")
            inner.mkdir()
            (inner / "a").write_text("x")
            (inner / "a").rename(inner / "b")
            (inner / "b").chmod(0o600)
        pathlib.Path(tempfile.gettempdir(), "left").write_text("x")
        pathlib.Path("/dev/null").write_text("x")
        run.state["read"] = pathlib.Path(__file__).read_text()[:7]
    return "done"


def signalling(run):
    with run.step("look"):
        if os.environ.get("WRITING"):
            ctypes.CDLL(None).kill(os.getppid(), signal.SIGUSR1)
            os.kill(os.getpid(), 0)
    return "done"


def sharing(run):
    with run.step("look"):
        if os.environ.get("WRITING"):
            ctypes.CDLL(None).shmget(7, 100, 0o1666)
    return "done"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the agent's file and others."""
    if why := not_offered():
        without(f"needs a kernel that holds files: {why}")
    (tmp_path / "agent.py").write_text(CODE)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "deep").write_text("deep")
    (tmp_path / "empty").mkdir()
    (tmp_path / "kept").write_text("kept")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def log(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('log') / 'log'}") as log:
        yield log


def _ways() -> list[str]:
    found: dict[str, object] = {}
    exec(CODE, found)
    ways = found["WAYS"]
    assert isinstance(ways, dict)
    return sorted(ways)


def seen(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return every path with mode and content, except what this interpreter compiled."""
    found = {}
    for path in folder.rglob("*"):
        if "__pycache__" not in path.parts:
            found[str(path)] = (path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
    return found


@pytest.mark.parametrize("way", _ways())
def test_no_file_is_changed(way: str, log: AgentLog, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"way": way, "folder": str(folder)}
    log.run("a", input=given, id="r", entry="agent.py:agent").drive(agent_of("agent.py:agent", folder))
    before = seen(folder)
    monkeypatch.setenv("WRITING", "1")
    if way == "through libc":  # only the kernel sees it: it is denied, and the code may continue
        found = log.replay("r", confined=True)
        assert found.hash == found.recorded_hash
    else:
        with pytest.raises(NetworkDenied, match="tried to change the file") as denied:
            log.replay("r", confined=True)
        assert "agent.py:" in denied.value.source_line
    assert seen(folder) == before


def test_own_temporary_folder_is_writable_and_removed(
    log: AgentLog, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.run("a", id="r", entry="agent.py:at_home").drive(agent_of("agent.py:at_home", folder))
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    found = log.replay("r", confined=True)
    assert found.is_same, found.escapes
    assert found.unheld == ""
    assert list(temporary.iterdir()) == []


def test_signal_to_another_process_is_denied(log: AgentLog, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is sent to this process, which it would end."""
    log.run("a", id="r", entry="agent.py:signalling").drive(agent_of("agent.py:signalling", folder))
    monkeypatch.setenv("WRITING", "1")
    assert log.replay("r", confined=True).hash


def test_shared_process_memory_ends_the_replay(log: AgentLog, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.run("a", id="r", entry="agent.py:sharing").drive(agent_of("agent.py:sharing", folder))
    monkeypatch.setenv("WRITING", "1")
    with pytest.raises(NetworkDenied, match="past Python"):
        log.replay("r", confined=True)


def test_kernel_without_file_rules_is_reported(log: AgentLog, folder: Path) -> None:
    agent = agent_of("agent.py:agent", folder)
    log.run("a", input={"way": "open", "folder": str(folder)}, id="r", entry="agent.py:agent").drive(agent)
    log.close()
    words = ["run", "replay", "r", "--confined", "--json", "--log", log.port.url]
    done = subprocess.run(
        [sys.executable, "-P", "-c", WITHOUT_LANDLOCK, *words],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "warning: --confined holds sockets and processes here, but no files: Landlock says" in done.stderr
    assert '"unheld": "Landlock says Function not implemented"' in done.stdout
    assert refold_command(*words, folder=folder).json["unheld"] == ""


WAITING = """
import os, tempfile, time


def agent(run):
    with run.step("only"):
        if os.environ.get("WAITS"):
            os.makedirs(f"{tempfile.gettempdir()}/closed/inner")
            os.chmod(f"{tempfile.gettempdir()}/closed", 0)
            print("waits in", os.getpid(), tempfile.gettempdir(), flush=True)
            time.sleep(600)
"""


def test_folder_of_a_killed_replay_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 of the replay leaves its confined process, whose folder stays; then that process is killed, too."""
    (tmp_path / "waiting.py").write_text(WAITING)
    monkeypatch.chdir(tmp_path)
    with refold.open(f"file:{tmp_path / '.refold'}") as log:
        log.run("a", id="r", entry="waiting.py:agent").drive(agent_of("waiting.py:agent", tmp_path))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    more = {"TMPDIR": str(temporary)}

    def replay_another() -> list[Path]:
        done = refold_command("run", "replay", "r", "--confined", folder=tmp_path, more=more)
        assert done.status == 0, done.err
        return [*temporary.glob(f"{FOLDER}*")]

    command = [*COMMAND, "run", "replay", "r", "--confined"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(more={**more, "WAITS": "1"}), stderr=subprocess.PIPE, text=True
    ) as dying:
        assert dying.stderr is not None
        found = re.fullmatch(r"waits in (\d+) (.+)\n", dying.stderr.readline())
        dying.kill()
        assert found, dying.stderr.read()
    child, (left,) = int(found[1]), temporary.glob(f"{FOLDER}*")
    try:
        assert Path(found[2]).parent == left
        assert replay_another() == [left]
        assert (left / "files").is_dir()
    finally:
        os.kill(child, signal.SIGKILL)
    await_true(lambda: is_gone(child))
    assert replay_another() == []
