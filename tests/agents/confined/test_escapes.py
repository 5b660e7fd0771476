"""Every known way out of a replay: under the guard, and confined (docs/REPLAY.md lists them in a table)."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import selectors
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold.agents.recorder.run import Run
from refold.agents.replay.run import Replayed
from refold_tests import escapes
from refold_tests.absent import without
from refold_tests.command import environment

pytestmark = pytest.mark.outside

HELPER = r"""
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
int reach(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int made = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(made, (struct sockaddr *)&to, sizeof to) == 0) send(made, "x", 1, 0);
    return close(made);
}
static void *run(void *port) { reach(*(int *)port); return NULL; }
void reach_from_a_thread(int port) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, run, &port) == 0) pthread_join(thread, NULL);
}
void reach_by_a_process(int port) {
    char line[200];
    snprintf(line, sizeof line, "exec 3<>/dev/tcp/127.0.0.1/%d && echo x >&3", port);
    execl("/bin/bash", "bash", "-c", line, NULL);
}
"""


class Counting:
    """A server on loopback that counts what arrives: connections, and bytes on them.

    One thread reads everything that has arrived before it reports. So whoever sees that a byte was counted also sees
    every byte that was sent before it, on any connection.
    """

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._counted = threading.Condition()
        self._connections = self._ended = self._bytes = 0
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            ready = [key.fileobj for key, _ in self._selector.select()]
            with self._counted:
                for each in ready:
                    assert isinstance(each, socket.socket)
                    if each is self._listening:
                        is_open = self._accept()
                    else:
                        self._read(each)
                self._counted.notify_all()
        for key in [*self._selector.get_map().values()]:
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def _accept(self) -> bool:
        """Accept every waiting connection; return whether there may be more."""
        try:
            while True:
                connection, _ = self._listening.accept()
                connection.setblocking(False)
                self._selector.register(connection, selectors.EVENT_READ)
                self._connections += 1
        except BlockingIOError:
            return True
        except OSError:
            return False

    def _read(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(1 << 16):
                self._bytes += len(data)
        except BlockingIOError:
            return
        except OSError:
            pass
        self._selector.unregister(connection)
        connection.close()
        self._ended += 1

    def arrived(self) -> tuple[int, int]:
        """Return connections and bytes so far. It opens one more connection, after all others, and waits for it."""
        with self._counted:
            before = self._bytes
        with socket.create_connection(("127.0.0.1", self.port)) as last:
            last.sendall(b"!" * 7)
            with self._counted:
                assert self._counted.wait_for(lambda: self._bytes >= before + 7, 30)
                found = (self._connections - 1, self._bytes - 7)
        with self._counted:
            assert self._counted.wait_for(lambda: self._ended > 0, 30)
            self._connections -= 1
            self._bytes -= 7
        return found

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()


@pytest.fixture
def server() -> Iterator[Counting]:
    server = Counting()
    yield server
    server.close()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Build a shared library that connects in C."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        without("needs a C compiler")
    folder = tmp_path_factory.mktemp("helper")
    (folder / "helper.c").write_text(HELPER)
    made = folder / "helper.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", made, folder / "helper.c"], check=True)
    return str(made)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        yield log


def came_of(log: AgentLog, monkeypatch: pytest.MonkeyPatch, *, confined: bool) -> Replayed | Departure:
    monkeypatch.setenv(escapes.ESCAPING, "1")
    try:
        return log.replay("r", escapes.agent, confined=confined)
    except Departure as departure:
        return departure


def is_same(found: Replayed | Departure) -> bool:
    return isinstance(found, Replayed) and found.is_same


@pytest.mark.parametrize("way", sorted(escapes.WAYS))
def test_guard_stops_the_escape_or_the_replay_is_not_the_same(
    way: str, log: AgentLog, server: Counting, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(escapes.LIBRARY, library)
    log.run("a", input={"way": way, "port": server.port}, id="r").drive(escapes.agent)
    assert log.replay("r", escapes.agent).is_same
    escapes.prepare(server.port, with_processes=way.startswith(("Pool", "ProcessPool")))
    try:
        before = server.arrived()
        found = came_of(log, monkeypatch, confined=False)
        for ending in escapes.left_behind:
            ending.set()
        for thread in threading.enumerate():
            if thread.name == "late":
                thread.join(30)
        assert server.arrived() == before or not is_same(found)
        assert not is_same(found)
        if isinstance(found, Replayed):
            assert any(each.source_line and each.what for each in found.escapes), found.escapes
    finally:
        escapes.left_behind.clear()
        escapes.clear()


@pytest.mark.parametrize("way", sorted({**escapes.WAYS, **escapes.BEYOND_PYTHON}))
@pytest.mark.usefixtures("forked_children")
def test_confined_escape_reaches_nothing(
    way: str, log: AgentLog, server: Counting, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(escapes.LIBRARY, library)
    log.run("a", input={"way": way, "port": server.port}, id="r").drive(escapes.agent)
    found = came_of(log, monkeypatch, confined=True)
    assert server.arrived() == (0, 0)
    # A thread that was left behind may not have acted yet when its process ended.
    assert not is_same(found) or way == "a thread left behind"


WORKER = """
import socket, sys
with open(sys.argv[2], "rb", buffering=0) as told:
    while told.read(1):
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).sendall(b"x")
"""
TOLD = "REFOLD_TEST_TOLD"


def tells_a_worker(run: Run) -> str:
    """Submit work to an existing process that is not a Python pool: through a descriptor, or through a named pipe."""
    with run.step("tell"), contextlib.suppress(BaseException):
        pipe = os.environ[TOLD]
        if pipe.isdigit():
            os.write(int(pipe), b"x")
        else:
            Path(pipe).write_bytes(b"x")
    return "done"


@pytest.mark.parametrize("way", ["a descriptor", "a named pipe"])
def test_confined_code_cannot_reach_an_earlier_worker(
    way: str, log: AgentLog, server: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    command = [sys.executable, "-S", "-c", WORKER, str(server.port), str(pipe)]
    with subprocess.Popen(command) as worker:
        told = os.open(pipe, os.O_WRONLY)
        os.set_inheritable(told, True)
        monkeypatch.setenv(TOLD, str(told) if way == "a descriptor" else str(pipe))
        try:
            log.run("a", id="r").drive(tells_a_worker)
            with contextlib.suppress(Departure):
                log.replay("r", tells_a_worker, confined=True)
        finally:
            os.close(told)
        assert worker.wait() == 0
    assert server.arrived() == (1, 1), "what it was told while the run was recorded"


@pytest.mark.parametrize("name", sorted(escapes.LATER))
def test_callback_left_after_the_replay_stays_guarded(
    name: str, log: AgentLog, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.run("a", input={"way": f"{name}, later", "port": server.port}, id="r").drive(escapes.agent)
    _, set_off, take_back = escapes.LATER[name]
    try:
        found = came_of(log, monkeypatch, confined=False)
        assert isinstance(found, Replayed)
        before = len(found.escapes)
        set_off()
    finally:
        take_back()
    assert server.arrived() == (0, 0)
    assert name == "atexit" or (len(found.escapes) > before and not found.is_same)


ENDING = """
import sys, refold
from refold_tests import escapes
with refold.open(sys.argv[1]) as log:
    print(log.replay("r", escapes.agent).is_same)
"""


def test_atexit_callback_left_by_a_replay_is_denied(log: AgentLog, server: Counting, tmp_path: Path) -> None:
    log.run("a", input={"way": "atexit, later", "port": server.port}, id="r").drive(escapes.agent)
    log.close()
    done = subprocess.run(
        [sys.executable, "-P", "-c", ENDING, log.port.url],
        env=environment(more={escapes.ESCAPING: "1", "PYTHONPATH": os.pathsep.join(sys.path)}),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert server.arrived() == (0, 0)


def test_registered_function_can_be_unregistered(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import atexit\nfrom refold.agents.replay.guard import NetworkGuard\ndef end(): print('ended')\n"
    code += "with NetworkGuard():\n    atexit.register(end)\n"
    for more, said in (("", "ended\n"), ("atexit.unregister(end)\n", "")):
        subprocess.run([sys.executable, "-P", "-c", code + more], env=environment(), check=True)
        assert capfd.readouterr().out == said


async def _waits(run: Run) -> str:
    with run.step("look"):
        if os.environ.get(escapes.ESCAPING):
            inner = asyncio.to_thread(escapes.reach, run.input["port"])
            await asyncio.get_running_loop().create_task(inner, context=contextvars.Context())
    return "done"


def test_task_with_its_own_context_in_an_earlier_loop_is_noted(
    log: AgentLog, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(log.run("a", input={"port": server.port}, id="r").drive_async(_waits))
    monkeypatch.setenv(escapes.ESCAPING, "1")
    found = asyncio.run(log.replay_async("r", _waits))
    assert found.hash == found.recorded_hash
    assert not found.is_same
    assert [each.is_denied for each in found.escapes] == [False] * len(found.escapes) != []


def test_users_thread_continues_and_is_named(log: AgentLog, server: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent only waits. A thread that it does not know of connects meanwhile."""
    way = {"way": "queue to an older thread", "port": server.port}
    log.run("a", input=way, id="r").drive(escapes.agent)
    escapes.prepare(server.port, with_processes=False)
    try:
        before = server.arrived()
        found = came_of(log, monkeypatch, confined=False)
        assert isinstance(found, Replayed)
        assert found.hash == found.recorded_hash
        assert server.arrived() == (before[0] + 1, before[1] + 1)
        assert {each.thread for each in found.escapes} == {"older"}
        assert any("escapes.py" in each.source_line for each in found.escapes)
        assert "thread older, which the replay did not start" in str(found.escapes[0])
    finally:
        escapes.clear()
