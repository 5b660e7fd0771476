"""What recording makes an agent wait for: a call, a claimed write, the event loop, many short runs.

A call. In a step that stays open, a model call that answers at once is recorded by itself, and durable within 10 ms of
its end. Time of the agent's own thread around it, as in bench/recording.py, by the wall clock and its CPU clock.

A claimed write. A write tool that does nothing. Its wall time is told in syncs of this disk, too: how long an append of
4 KB and its fdatasync take in the same folder, measured by turns with the writes. How often the log syncs is counted
where it syncs, in the thread that calls, and in all of the process.

The loop. Four answers of 5 MB come at once to an async agent. A task that sleeps for a millisecond again and again
tells the longest time that it had to wait, until the run has ended. The same without a recording is beside it: on a
machine that does other things as well, only the difference is refold's.

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
    """Milliseconds, medians; sync: of one fdatasync. syncs: of the log, a write, in the agent's thread and in all."""

    wall: float
    cpu: float
    sync: float
    syncs: float
    all_syncs: float


@dataclass(frozen=True)
class Stall:
    """The longest wait of a ticking task, in milliseconds, recorded and not; loop: CPU of the loop's thread in it."""

    recorded: float
    bare: float
    loop: float


@dataclass(frozen=True)
class Runs:
    """Seconds; syncs: of the log and of files, a run."""

    wall: float
    cpu: float
    syncs: float


@contextmanager
def log_in(folder: Path) -> Iterator[Any]:
    """A new embedded log."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    with refold.open(f"file:{path}/log") as log:
        yield log
    shutil.rmtree(path)


@contextmanager
def counted_syncs() -> Iterator[list[int]]:
    """The thread of each sync of a log, a content or a key."""
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
    """A model's client."""
    return {"text": "yes"}


@refold.tool(effect="write")
def send(number: int) -> None:
    """A write that costs nothing."""


def call(folder: Path, count: int = CALLS) -> Call:
    """What a call in an open step costs its thread."""
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
    """What a claimed write costs, and a sync of the same disk."""
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
    """How long four large answers hold up a loop."""
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

    asyncio.run(recorded())  # the first imports what others have
    rounds = [(asyncio.run(recorded()), asyncio.run(bare())) for _ in range(ROUNDS)]
    return Stall(
        median(found[0] for found, _ in rounds) * 1e3, median(found[0] for _, found in rounds) * 1e3,
        median(found[1] for found, _ in rounds) * 1e3,
    )  # fmt: skip


class _Ticking:
    """Around what is measured: (seconds that a tick came late, CPU of the thread meanwhile)."""

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
    """Many runs, one after the other."""
    with log_in(folder) as log, counted_syncs() as found:
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        for number in range(count):
            with log.run("bench", input={"order": number}, state={"n": 0}) as run:
                for step in range(RUN_STEPS):
                    with run.step("asks"):
                        run.model(answers_at_once, prompt=f"question {step}")
                        run.state["n"] = step
        return Runs(time.perf_counter() - began_s, time.process_time() - began_cpu_s, len(found) / count)
