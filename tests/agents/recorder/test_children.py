"""A tool that is called in a process which a run's code started is refused: it could be recorded nowhere."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.log import AgentLog
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


@pytest.fixture(scope="module")
def older() -> Iterator[ProcessPoolExecutor]:
    """A pool whose process is older than every run."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(int).result() == 0
        yield pool


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_of_multiprocessing_is_refused(log: AgentLog, tmp_path: Path, method: str) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in by_process(method)(to)
    assert not Path(to).exists()
    assert log.recording(run.id).steps[0].calls == ()


@pytest.mark.parametrize("way", [by_program, by_program_of_a_loop], ids=lambda way: way.__name__)
def test_a_program_is_refused(log: AgentLog, tmp_path: Path, way: Callable[[str], str]) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in way(to)
    assert not Path(to).exists()


def test_work_for_an_older_process_is_refused(log: AgentLog, tmp_path: Path, older: ProcessPoolExecutor) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert f"in a process that the code of run {run.id} started" in older.submit(said, to).result()
    assert not Path(to).exists()
    assert older.submit(said, to).result() == "paid"  # what is handed over outside of a run is nobody's


def test_work_for_an_older_pool_of_multiprocessing_is_refused(log: AgentLog, tmp_path: Path) -> None:
    to = str(tmp_path / "paid")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with log.run("a") as run, run.step("s"):
            for found in [pool.apply(said, (to,)), *pool.map(said, [to])]:
                assert f"in a process that the code of run {run.id} started" in found
        assert not Path(to).exists()
        assert pool.apply(said, (to,)) == "paid"


def test_a_program_may_say_that_it_belongs_to_no_run_or_begin_its_own(log: AgentLog, tmp_path: Path) -> None:
    to = str(tmp_path / "paid")
    with log.run("a") as run, run.step("s"):
        assert by_program(to, "unrecorded") == "paid\n"
        assert by_program(to, "run") == "paid\n"
    assert len(Path(to).read_text().splitlines()) == 2
    with refold.open(f"file:{to}-log") as other:
        (row,) = other.runs()
        assert other.recording(row.run).steps[0].calls[0].asked.name == "pay"
