"""A tool that is called in a process which a run's code started is refused, because it could be recorded nowhere."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from os import system as kept_system
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.recorder.writer import RecordingFailed
from refold.agents.replay.watch import NetworkDenied
from refold_tests.child_calls import said, work

pytestmark = pytest.mark.outside

PATHS = os.pathsep.join(sys.path)
PROGRAM = """
import sys
from refold_tests.child_calls import said
print(said(sys.argv[1], {how!r}))
"""


def by_process(method: str) -> Callable[[str], str]:
    def way(to: str) -> str:
        context: Any = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=work, args=(to, queue))
        process.start()
        process.join()
        assert process.exitcode == 0
        found: str = queue.get()
        return found

    return way


def by_program(to: str, how: str = "") -> str:
    command = [sys.executable, "-c", PROGRAM.format(how=how), to]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": PATHS})
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_program_of_a_loop(to: str) -> str:
    async def start() -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM.format(how=""), to, stdout=subprocess.PIPE,
            env={"PYTHONPATH": PATHS},
        )  # fmt: skip
        return (await process.communicate())[0].decode()

    return asyncio.run(start())


WRITES = """
import sys
from pathlib import Path
from refold_tests.child_calls import said
Path(sys.argv[1] + "-said").write_text(said(sys.argv[1]))
"""


def command_of(to: str) -> list[str]:
    return [sys.executable, "-c", WRITES, to]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": PATHS}


def by_system(to: str) -> int:
    return os.system(f"PYTHONPATH={shlex.quote(PATHS)} {shlex.join(command_of(to))}")


def by_system_of_bytes(to: str) -> int:
    return os.system(f"PYTHONPATH={shlex.quote(PATHS)} {shlex.join(command_of(to))}".encode())


def by_kept_system(to: str) -> int:
    return kept_system(f"PYTHONPATH={shlex.quote(PATHS)} {shlex.join(command_of(to))}")


def by_spawnve(to: str) -> int:
    return os.spawnve(os.P_WAIT, sys.executable, command_of(to), environment())


def by_posix_spawn(to: str) -> int:
    return os.waitpid(os.posix_spawn(sys.executable, command_of(to), environment()), 0)[1]


def by_posix_spawnp(to: str) -> int:
    return os.waitpid(os.posix_spawnp(sys.executable, command_of(to), environment()), 0)[1]


def forked(become: Callable[[], object]) -> int:
    """Fork a process that does this; return its exit status."""
    process = os.fork()
    if process == 0:
        try:
            become()
        finally:
            os._exit(7)
    return os.waitpid(process, 0)[1]


def by_execve(to: str) -> int:
    return forked(lambda: os.execve(sys.executable, command_of(to), environment()))


def by_execv(to: str) -> int:
    os.environ["PYTHONPATH"] = PATHS
    try:
        return forked(lambda: os.execv(sys.executable, command_of(to)))
    finally:
        del os.environ["PYTHONPATH"]


def by_execlp(to: str) -> int:
    os.environ["PYTHONPATH"] = PATHS
    try:
        return forked(lambda: os.execlp(sys.executable, *command_of(to)))
    finally:
        del os.environ["PYTHONPATH"]


PROGRAMS = [
    by_system, by_system_of_bytes, by_kept_system, by_spawnve, by_posix_spawn, by_posix_spawnp, by_execve, by_execv,
    by_execlp,
]  # fmt: skip


@pytest.fixture(scope="module")
def older() -> Iterator[ProcessPoolExecutor]:
    """Yield a pool whose process is older than every run."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(int).result() == 0
        yield pool


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_process_is_refused(log: AgentLog, tmp_path: Path, method: str) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in by_process(method)(to)
    assert not Path(to).exists()
    assert log.recording(run.id).steps[0].calls == ()


@pytest.mark.parametrize("way", [by_program, by_program_of_a_loop], ids=lambda way: way.__name__)
def test_subprocess_is_refused(log: AgentLog, tmp_path: Path, way: Callable[[str], str]) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in way(to)
    assert not Path(to).exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("way", PROGRAMS, ids=lambda way: way.__name__)
def test_program_started_by_os_is_refused(log: AgentLog, tmp_path: Path, way: Callable[[str], int]) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert way(to) == 0
    assert f"in a process that the code of run {run.id} started" in Path(f"{to}-said").read_text()
    assert not Path(to).exists()
    assert way(to) == 0  # outside of a run it belongs to no run
    assert Path(f"{to}-said").read_text() == "paid"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("way", [by_system, by_posix_spawn, by_execv], ids=lambda way: way.__name__)
def test_program_started_by_os_is_denied_in_a_replay(log: AgentLog, tmp_path: Path, way: Callable[[str], int]) -> None:
    to = str(tmp_path / "paid")

    def agent(run: Run) -> None:
        with run.step("s"):
            way(to)

    run = log.run("a")
    run.drive(agent)
    Path(f"{to}-said").unlink()
    with pytest.raises(NetworkDenied, match=r"start the process|fork this process"):
        log.replay(run.id, agent)
    assert not Path(f"{to}-said").exists()
    assert not Path(to).exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_process_is_refused_even_after_leaving_the_run(log: AgentLog, tmp_path: Path) -> None:
    to = tmp_path / "paid"

    def call(name: str) -> None:
        try:
            found = said(str(to))
        except RecordingFailed as error:
            found = str(error)
        Path(f"{to}-{name}").write_text(found)

    here, process = os.getpid(), 0
    run = log.run("a")
    try:
        with run, run.step("s"):
            process = os.fork()
            if process == 0:
                call("within")
    except RecordingFailed:
        assert os.getpid() != here
    if os.getpid() != here:
        try:
            call("after")
        finally:
            os._exit(0)
    assert os.waitpid(process, 0)[1] == 0
    assert "forked from the one that records" in Path(f"{to}-within").read_text()
    assert f"in a process that the code of run {run.id} started" in Path(f"{to}-after").read_text()
    assert not to.exists()
    assert log.recording(run.id).status == "ended"


def test_work_for_an_older_process_is_refused(log: AgentLog, tmp_path: Path, older: ProcessPoolExecutor) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in older.submit(said, to).result()
    assert not Path(to).exists()
    assert older.submit(said, to).result() == "paid"  # work submitted outside of a run belongs to no run


def test_work_for_an_older_multiprocessing_pool_is_refused(log: AgentLog, tmp_path: Path) -> None:
    to = str(tmp_path / "paid")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with log.run("a") as run, run.step("s"):
            for found in [pool.apply(said, (to,)), *pool.map(said, [to])]:
                assert f"in a process that the code of run {run.id} started" in found
        assert not Path(to).exists()
        assert pool.apply(said, (to,)) == "paid"


def test_program_may_opt_out_of_the_run_or_start_its_own(log: AgentLog, tmp_path: Path) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert by_program(to, "unrecorded") == "paid\n"
        assert by_program(to, "run") == "paid\n"
    assert len(Path(to).read_text().splitlines()) == 2
    with refold.open(f"file:{to}-log") as other:
        (row,) = other.runs()
        assert other.recording(row.run).steps[0].calls[0].asked.name == "pay"
