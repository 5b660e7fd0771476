"""A confined replay has a /dev/shm of its own: it cannot reach what other processes have there, and semaphores work.

If the kernel refuses that, the replay reports it, and only native code can reach the shared one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.confined.files import not_offered
from refold.agents.confined.shared_memory import SHARED, not_ownable
from refold.agents.entry import agent_of
from refold.agents.log import AgentLog
from refold.agents.replay.run import Replayed
from refold.agents.replay.watch import NetworkDenied
from refold_tests.absent import without
from refold_tests.command import environment, refold_command
from refold_tests.refusing import WITHOUT_NAMESPACES

pytestmark = pytest.mark.outside

CODE = """
import contextlib, ctypes, multiprocessing, os
from multiprocessing.pool import ThreadPool
from pathlib import Path

LIBC = ctypes.CDLL(None)


def by_python(folder):
    with contextlib.suppress(OSError):
        Path(folder, "pipe").write_bytes(b"x")
    with contextlib.suppress(OSError):
        Path(folder, "kept").write_text("changed")


def by_libc(folder):
    for name in (b"pipe", b"kept"):
        opened = LIBC.open(os.fsencode(folder) + b"/" + name, os.O_WRONLY | os.O_NONBLOCK)
        LIBC.write(opened, b"x", 1)
    LIBC.unlink(os.fsencode(folder) + b"/kept")


def agent(run):
    with run.step("tell"):
        if os.environ.get("TELLS"):
            {"python": by_python, "libc": by_libc}[os.environ["TELLS"]](run.input)
    with run.step("semaphores"):
        with multiprocessing.Lock(), ThreadPool(2) as pool:
            run.state["found"] = pool.map(abs, [-1, 2])
        if os.environ.get("TELLS") == "python":
            Path(f"{run.input}-left").write_text("x")
    return "done"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with the agent's file."""
    if why := not_offered():
        without(f"needs a kernel that holds files: {why}")
    (tmp_path / "agent.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder in shared memory, with a file and a named pipe that is open at both ends."""
    if not Path(SHARED).is_dir():
        without(f"needs {SHARED}")
    with tempfile.TemporaryDirectory(dir=SHARED, prefix="refold-test-") as made:
        os.mkfifo(f"{made}/pipe")
        Path(made, "kept").write_text("kept")
        yield Path(made)


@pytest.fixture
def log(folder: Path, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    """Yield a log with a run of the agent, during which the agent wrote to nobody."""
    with refold.open(f"file:{tmp_path_factory.mktemp('log') / 'log'}") as log:
        log.run("a", input=str(shared), id="r", entry="agent.py:agent").drive(agent_of("agent.py:agent", folder))
        yield log


class Pipe:
    """Both ends of the pipe, so that a writer finds a reader and does not wait."""

    def __init__(self, shared: Path) -> None:
        self._opened = os.open(shared / "pipe", os.O_RDWR | os.O_NONBLOCK)

    def told(self) -> bytes:
        """Return what was written to it so far."""
        try:
            return os.read(self._opened, 10)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        os.close(self._opened)


@pytest.fixture
def pipe(shared: Path) -> Iterator[Pipe]:
    pipe = Pipe(shared)
    yield pipe
    pipe.close()


def replayed(log: AgentLog) -> Replayed | None:
    """Replay the run; return None if the guard denied something."""
    try:
        return log.replay("r", confined=True)
    except NetworkDenied:
        return None


def test_semaphores_work(log: AgentLog) -> None:
    found = log.replay("r", confined=True)
    assert found.is_same
    assert found.unheld == not_ownable()


@pytest.mark.parametrize("way", ["python", "libc"])
def test_shared_memory_of_other_processes_is_unreachable(
    way: str, log: AgentLog, shared: Path, pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELLS", way)
    found = replayed(log)
    if way == "libc" and found is not None and found.unheld:
        assert found.unheld == not_ownable()
        return
    assert pipe.told() == b""
    assert (shared / "kept").read_text() == "kept"
    assert not Path(f"{shared}-left").exists()
    assert not_ownable() or (found is not None and not found.unheld)


def test_kernel_that_refuses_is_reported(
    log: AgentLog, shared: Path, pipe: Pipe, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.close()
    words = ["run", "replay", "r", "--confined", "--json", "--log", log.port.url]

    def refused(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-c", WITHOUT_NAMESPACES, *words],
            cwd=folder, env=environment(more=more), capture_output=True, text=True, check=False,
        )  # fmt: skip

    done = refused()
    why = f"{SHARED} is shared with other processes, for a mount namespace was refused: Operation not permitted"
    assert done.returncode == 0, done.stderr
    assert f"warning: --confined holds sockets and processes here, but {why}" in done.stderr
    assert f'"unheld": "{why}"' in done.stdout
    denied = refused(TELLS="python")
    assert denied.returncode == 1
    assert f"tried to change the file {shared}/pipe" in denied.stdout + denied.stderr
    assert (pipe.told(), (shared / "kept").read_text()) == (b"", "kept")


def test_code_in_shared_memory_stays_readable_and_is_reported(log: AgentLog, shared: Path) -> None:
    (shared / "agent.py").write_text(CODE)
    log.close()
    done = refold_command("run", "replay", "r", "--confined", "--json", "--log", log.port.url, folder=shared)
    assert done.status == 0, done.err
    assert done.json["unheld"].startswith(f"{SHARED} is shared with other processes, for code is in it: {shared}")


def test_temporary_folder_in_shared_memory_is_private(
    log: AgentLog, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    assert log.replay("r", confined=True).is_same
    assert sorted(each.name for each in shared.iterdir()) == ["kept", "pipe"]


def test_no_capability_is_gained() -> None:
    """A new user namespace has all capabilities; the process gives them up."""
    code = (
        "import ctypes, re, sys\n"
        "from refold.agents.confined import shared_memory\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "libc.prctl(38, 1, 0, 0, 0)\n"
        "try:\n"
        "    shared_memory._separate(libc, shared_memory._MOUNTS | shared_memory._USERS)\n"
        "except OSError:\n"
        "    sys.exit('refused')\n"
        "print(re.findall(r'Cap(?:Prm|Eff):\\s*(\\w+)', open('/proc/self/status').read()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode and done.stderr.strip() == "refused":
        return  # without a namespace there is no capability to check
    assert done.stdout == "['0000000000000000', '0000000000000000']\n", done.stderr
