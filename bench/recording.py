"""Measures what recording costs an agent, what a run takes on disk, and how fast it is replayed.

Recording. A step changes a state of 2 KB and calls nothing. Its time is that of the agent's own thread, by the wall
clock and by the thread's CPU clock, around `with run.step(...)`; the block inside sets one key. Between steps the agent
waits as it would for a model, so that the writer's thread can run, and then works for a moment, as on an answer.
Without that work, whatever runs first after the wait pays for waking the processor: on a virtual machine
json.dumps(state) took 79 us there, and 25 us in a loop. The table has a row without that work. Further rows: a model
call that answers at once, and a write tool that does nothing, which the ledger claims, and which therefore waits for
the disk or the broker. Each figure is also given in encodings: how many json.dumps(state), timed after each step, take
the same CPU time. On a machine that does other work, compare this figure.

Storage. A run of 1,000 steps whose state grows by 1 KB of words per step, sealed with the defaults. Measured once the
log is closed, by the sizes of files and by the blocks they take (as `du` does), relative to the bytes added.

Replay. A run of 1,000 steps with a model call each is loaded from the log, and the current code is run against it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from peers.building import built_python

import refold

LANGGRAPH = Path(__file__).parent / "peers" / "langgraph"
STATE_BYTES = 2_000
STEPS = 1_000
EFFECTS = 60
WAIT_S = 0.004
WORK_S = 0.001
ROUNDS = 3
SEED = 5
ADDED_BYTES = 1_000


@dataclass(frozen=True)
class Cost:
    """Microseconds, each the median of ROUNDS rounds; encodings: how many json.dumps(state) take the time `cpu`."""

    name: str
    wall: float
    wall_p90: float
    cpu: float
    encodings: float


@dataclass(frozen=True)
class Stored:
    """Bytes once the log is closed, and seconds until then."""

    added: int
    files: int
    blocks: int
    seconds: float


def words(count: int, rng: random.Random) -> str:
    """Return `count` bytes of text made of invented words: about as compressible as prose."""
    found: list[str] = []
    size = 0
    while size < count:
        found.append(_WORDS[min(int(rng.paretovariate(0.6)), len(_WORDS)) - 1])
        size += len(found[-1]) + 1
    return " ".join(found)[:count]


_letters = random.Random(1)
_WORDS = ["".join(_letters.choices("etaoinshrdlucmfwyp", k=_letters.randint(2, 9))) for _ in range(3_000)]


def state_of(size: int) -> dict[str, Any]:
    """Return a typical agent's working memory of about `size` bytes: messages and a few numbers."""
    rng = random.Random(SEED)
    messages = [{"role": "user", "content": words(150, rng)} for _ in range(size // 190)]
    return {"messages": messages, "order": {"id": 7, "total": 50.5, "paid": True}, "n": 0}


def costs(url: str, count: int) -> list[Cost]:
    """Measure each kind of step on a log, with `count` steps per round."""
    rounds = [_costs(url, count) for _ in range(ROUNDS)]
    return [
        Cost(name, *(median(each[name][part] for each in rounds) for part in range(4)))
        for name in rounds[0]
    ]  # fmt: skip


def _costs(url: str, count: int) -> dict[str, tuple[float, float, float, float]]:
    send = refold.tool(effect="write", name="send")(_nothing)

    def client(prompt: str) -> dict[str, str]:
        return {"text": "yes"}

    with refold.open(url) as log, log.run("bench", state=state_of(STATE_BYTES)) as run:

        def step() -> None:
            with run.step("step"):
                run.state["n"] += 1

        def asks() -> None:
            with run.step("asks"):
                run.state["n"] += 1
                run.model(client, prompt="what now?")

        def writes() -> None:
            with run.step("writes"):
                send(run.state["n"])
                run.state["n"] += 1

        _timed(step, run.state, max(2, count // 10))
        return {
            "a step, 2 KB of state": _timed(step, run.state, count),
            "the same, first after a wait": _timed(step, run.state, count, work_s=0),
            "with a model call": _timed(asks, run.state, count),
            "with a claimed effect": _timed(writes, run.state, min(count, EFFECTS)),
        }


def _nothing(number: int) -> None:
    """Do nothing: a write without a cost of its own."""


def wait_and_work(state: Any, work_s: float = WORK_S) -> None:
    """Do what an agent does between two calls: wait, then work on its state."""
    time.sleep(WAIT_S)
    working_until_s = time.perf_counter() + work_s
    while time.perf_counter() < working_until_s:
        json.dumps(state)


def _timed(
    step: Callable[[], None], state: Any, count: int, work_s: float = WORK_S
) -> tuple[float, float, float, float]:
    wall, cpu, encoding = [], [], []
    for _ in range(count):
        wait_and_work(state, work_s)
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        step()
        ended_cpu_s = time.thread_time()
        wall.append(time.perf_counter() - began_s)
        cpu.append(ended_cpu_s - began_cpu_s)
        began_cpu_s = time.thread_time()
        json.dumps(state)
        encoding.append(time.thread_time() - began_cpu_s)
    return median(wall) * 1e6, quantiles(wall, n=10)[8] * 1e6, median(cpu) * 1e6, median(cpu) / median(encoding)


def items(steps: int) -> Iterator[str]:
    """Yield the items that a growing state gets."""
    rng = random.Random(SEED)
    return (words(ADDED_BYTES, rng) for _ in range(steps))


def stored(folder: Path, steps: int = STEPS) -> Stored:
    """Measure the size of a run whose state grows."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    began_s = time.perf_counter()
    with refold.open(f"file:{path}/log") as log, log.run("bench", state={"items": []}) as run:
        for item in items(steps):
            with run.step("grows"):
                run.state["items"].append(item)
    seconds = time.perf_counter() - began_s
    found = Stored(steps * ADDED_BYTES, *on_disk(path), seconds)
    shutil.rmtree(path)
    return found


def stored_by_langgraph(folder: Path, steps: int = STEPS) -> Stored:
    """Measure the same run with LangGraph's SqliteSaver. Raises ServerMissing if it cannot be installed."""
    python = built_python(LANGGRAPH)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))
    given = "\n".join(items(steps))
    command = [str(python), str(LANGGRAPH / "main.py"), str(path)]
    said = subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    shutil.rmtree(path)
    return Stored(steps * ADDED_BYTES, **json.loads(said))


def on_disk(path: Path) -> tuple[int, int]:
    """Return the bytes in files, and in the blocks that files and folders take."""
    files = blocks = 0
    for folder, _, names in os.walk(path):
        blocks += Path(folder).stat().st_blocks * 512
        for name in names:
            status = (Path(folder) / name).lstat()
            files += status.st_size
            blocks += status.st_blocks * 512
    return files, blocks


@dataclass(frozen=True)
class Replay:
    """Seconds to load a run, and to replay it, loading included; by the wall clock and in the process's CPU time."""

    load: float
    load_cpu: float
    replay: float
    replay_cpu: float


def replayed(folder: Path, steps: int = STEPS) -> Replay:
    """Measure the replay of a run of `steps` steps; medians of ROUNDS."""
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=folder))

    def agent(run: refold.Run) -> int:
        for number in range(steps):
            with run.step("asks"):
                run.model(_answer, prompt=f"question {number}")
                run.state["n"] = number
        return steps

    rounds = []
    with refold.open(f"file:{path}/log") as log:
        run = log.run("bench", state=state_of(STATE_BYTES), seed=SEED)
        run.drive(agent)
        for _ in range(ROUNDS):
            began = time.perf_counter(), time.process_time()
            log.recording(run.id)
            loaded = time.perf_counter(), time.process_time()
            found = log.replay(run.id, agent)
            ended = time.perf_counter(), time.process_time()
            assert found.hash == found.recorded_hash
            both = ((began, loaded), (loaded, ended))
            rounds.append([until[clock] - since[clock] for since, until in both for clock in range(2)])
    shutil.rmtree(path)
    return Replay(*map(median, zip(*rounds, strict=True)))


def _answer(prompt: str) -> str:
    return f"answer to {prompt}"
