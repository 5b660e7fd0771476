"""Measures how long recording makes an agent wait: in a call, a claimed write, the event loop, and many short runs.

A call. In a step that stays open, a model call that answers at once is recorded by itself, and durable within 10 ms of
its end. The time is that of the agent's own thread around the call, as in bench/recording.py, by the wall clock and the
thread's CPU clock.

A claimed write. A write tool that does nothing. Its wall time is also given in syncs of this disk: the time of an
append of 4 KB and its fdatasync in the same folder, measured alternately with the writes. The log's syncs are counted
where they happen: in the calling thread, and in the whole process.

The loop. Four answers of 5 MB arrive at once at an async agent. A task that repeatedly sleeps for a millisecond reports
the longest time that it had to wait until the run ended. The table also has the same without a recording: on a machine
that does other work, only the difference is due to refold.

Short runs. 1,000 runs of five steps with a model call each, one after the other.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from recording import STATE_BYTES, WAIT_S, state_of, wait_and_work, words

import refold
from refold.streams.rocks.database import Database

ROUNDS = 5
CALLS, WRITES = 200, 40
ANSWERS, ANSWER_BYTES = 4, 5_000_000
RUNS, RUN_STEPS = 1_000, 5
TICK_S = 0.001


@dataclass(frozen=True)
class Call:
    """Microseconds of the agent's thread, medians."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Write:
    """Milliseconds, medians; sync: of one fdatasync. syncs: the log's syncs per write in the agent's thread; all_syncs:
    in all threads."""

    wall: float
    cpu: float
    sync: float
    syncs: float
    all_syncs: float


@dataclass(frozen=True)
class Stall:
    """The longest wait of a ticking task, in milliseconds, with and without a recording; loop: CPU time of the loop's
    thread in that wait."""

    recorded: float
    bare: float
    loop: float


@dataclass(frozen=True)
class Runs:
    """Seconds; syncs: of the log and of files, per run."""

    wall: float
    cpu: float
    syncs: float


@contextmanager
def log_in(folder: Path) -> Iterator[Any]:
    """Yield a new embedded log."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    with refold.open(f"file:{path}/log") as log:
        yield log
    shutil.rmtree(path)


@contextmanager
def counted_syncs() -> Iterator[list[int]]:
    """Yield a list that gets the thread of each sync of a log, a content or a key."""
    found: list[int] = []
    sync_log, fsync = Database._sync_log, os.fsync

    def syncing(database: Database) -> None:
        found.append(threading.get_ident())
        sync_log(database)

    def syncing_file(handle: Any) -> None:
        found.append(threading.get_ident())
        fsync(handle)

    Database._sync_log, os.fsync = syncing, syncing_file  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Database._sync_log, os.fsync = sync_log, fsync  # type: ignore[method-assign]


def answers_at_once(prompt: str) -> dict[str, str]:
    """Answer at once, as a model's client."""
    return {"text": "yes"}


@refold.tool(effect="write")
def send(number: int) -> None:
    """A write that costs nothing."""


def call(folder: Path, count: int = CALLS) -> Call:
    """Measure what a call in an open step costs its thread."""
    wall, cpu = [], []
    state = state_of(STATE_BYTES)
    with log_in(folder) as log, log.run("bench", state=state) as run, run.step("asks"):
        for _ in range(count):
            wait_and_work(state)
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            run.model(answers_at_once, prompt="what now?")
            cpu.append(time.thread_time() - began_cpu_s)
            wall.append(time.perf_counter() - began_s)
    return Call(median(wall) * 1e6, median(cpu) * 1e6)


def write(folder: Path, count: int = WRITES) -> Write:
    """Measure a claimed write, and a sync of the same disk."""
    wall, cpu, syncs, own, everywhere = [], [], [], [], []
    me = threading.get_ident()
    with log_in(folder) as log, log.run("bench", state={"n": 0}) as run, counted_syncs() as found:
        send(0)
        with (folder / "bench-sync").open("wb") as file:
            for number in range(count):
                time.sleep(WAIT_S)
                syncs.append(_synced_s(file))
                found.clear()
                began_s, began_cpu_s = time.perf_counter(), time.thread_time()
                with run.step("writes"):
                    send(number)
                    run.state["n"] = number
                cpu.append(time.thread_time() - began_cpu_s)
                wall.append(time.perf_counter() - began_s)
                own.append(found.count(me))
                everywhere.append(len(found))
    (folder / "bench-sync").unlink()
    return Write(median(wall) * 1e3, median(cpu) * 1e3, median(syncs) * 1e3, sum(own) / count, sum(everywhere) / count)


def _synced_s(file: Any) -> float:
    file.write(bytes(4096))
    file.flush()
    began_s = time.perf_counter()
    os.fdatasync(file.fileno())
    return time.perf_counter() - began_s


def stall(folder: Path) -> Stall:
    """Measure how long four large answers block a loop."""
    texts = [{"text": words(ANSWER_BYTES, Random(seed))} for seed in range(ANSWERS)]

    async def client(number: int) -> Any:
        await asyncio.sleep(0.05)
        return texts[number]

    async def recorded() -> tuple[float, float]:
        with log_in(folder) as log:
            run = log.run("bench")
            await asyncio.sleep(0.1)
            async with _Ticking() as waits, run:
                with run.step("four"):
                    await asyncio.gather(*(run.model(client, each) for each in range(ANSWERS)))
            return max(waits)

    async def bare() -> tuple[float, float]:
        async with _Ticking() as waits:
            await asyncio.gather(*map(client, range(ANSWERS)))
            await asyncio.sleep(0.5)
        return max(waits)

    asyncio.run(recorded())  # a first run, for the imports
    rounds = [(asyncio.run(recorded()), asyncio.run(bare())) for _ in range(ROUNDS)]
    return Stall(
        median(found[0] for found, _ in rounds) * 1e3, median(found[0] for _, found in rounds) * 1e3,
        median(found[1] for found, _ in rounds) * 1e3,
    )  # fmt: skip


class _Ticking:
    """Wraps the measured code; collects (seconds by which a tick was late, CPU time of the thread meanwhile)."""

    async def __aenter__(self) -> list[tuple[float, float]]:
        self._waits: list[tuple[float, float]] = []
        self._task = asyncio.ensure_future(self._tick())
        return self._waits

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def _tick(self) -> None:
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_S)
            self._waits.append((time.perf_counter() - began_s - TICK_S, time.thread_time() - began_cpu_s))


def short_runs(folder: Path, count: int = RUNS) -> Runs:
    """Measure many runs, one after the other."""
    with log_in(folder) as log, counted_syncs() as found:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for number in range(count):
            with log.run("bench", input={"order": number}, state={"n": 0}) as run:
                for step in range(RUN_STEPS):
                    with run.step("asks"):
                        run.model(answers_at_once, prompt=f"question {step}")
                        run.state["n"] = step
        return Runs(time.perf_counter() - began_s, time.process_time() - began_cpu_s, len(found) / count)
