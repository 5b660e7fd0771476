"""An agent with runs within runs, in threads or in tasks, up to three levels deep. It is killed at arbitrary moments.

The process that runs this module forks a child for each life, so imports are done only once. The outside world is a
file: each effect that takes place appends a line.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import refold
from refold.avro.errors import UnknownEntity
from refold_tests.child import Child

CODE = "from refold_tests.nested_runs import main; main()"
LANES = ("a", "b", "b")
OUTPUT = ["a paid", "b paid", "b paid", "function paid", "outside paid"]
EFFECTS = Counter(
    {"pay a": 1, "file a": 1, "pay b": 2, "file b": 2, "pay function": 1, "file function": 1, "pay outside": 1,
     "file outside": 1, "send all": 1}
)  # fmt: skip
RUNS = 1 + 5 * 2
# On a loaded machine a claim may take half of it. A resume after a kill may have to wait for its end.
LEASE_S = 20.0
LONG_LEASE_S = 600.0  # if nothing is killed, nobody waits for it
KINDS = ("threads", "tasks")
FINISHED, FAILED = 0, 1


class Nested:
    """The agent, for one log and one world. kind: one of KINDS."""

    def __init__(self, log: refold.AgentLog, world: Path, kind: str, lease_s: float = LONG_LEASE_S) -> None:
        self.log = log
        self._kind = kind

        def probe(key: str, arguments: Any) -> Any:
            if any(line.startswith(f"{key} ") for line in lines(world)):
                return refold.Done("done")
            raise refold.NotDone("it is not in the world")

        @refold.tool(effect="write", probe=probe, lease_s=lease_s)
        def act(what: str, *, idempotency_key: str = "") -> str:
            time.sleep(random.random() * 0.002)
            with world.open("a") as file:
                file.write(f"{idempotency_key} {what}\n")
            return "done"

        @refold.tool(effect="read")
        def look(of: str) -> str:
            time.sleep(random.random() * 0.003)
            return f"{of} paid"

        self._act, self._look = act, look

    def clerk(self, run: refold.Run) -> str:
        """Run within a worker."""
        with run.step("file"):
            self._act(f"file {run.input}")
            run.state["filed"] = True
        return "filed"

    def worker(self, run: refold.Run) -> str:
        """Run within the agent. A clerk runs within this run."""
        with run.step("look"):
            found = self._look(run.input)
        run.step("pay", self._act, f"pay {run.input}")
        with run.step("clerk"):
            self.log.run("clerk", input=run.input).drive(self.clerk)
        return found

    async def worker_async(self, run: refold.Run) -> str:
        """Run like `worker`, but asynchronously, so that others continue in the meantime."""
        async with run.step("look"):
            await asyncio.sleep(random.random() * 0.003)
            found = self._look(run.input)
        await asyncio.sleep(random.random() * 0.003)
        run.step("pay", self._act, f"pay {run.input}")
        async with run.step("clerk"):
            await self.log.run("clerk", input=run.input).drive_async(self.clerk)
        return found

    def in_threads(self, of: str) -> str:
        """Run a worker."""
        return str(self.log.run("worker", input=of).drive(self.worker))

    async def in_tasks(self) -> list[str]:
        """Run the lanes as tasks."""

        async def one(of: str) -> str:
            return str(await self.log.run("worker", input=of).drive_async(self.worker_async))

        async with asyncio.TaskGroup() as group:
            first = group.create_task(one(LANES[0]))
            others = await asyncio.gather(*map(one, LANES[1:]))
        return [first.result(), *others]

    def agent(self, run: refold.Run) -> list[str]:
        """Run the outermost run."""
        with run.step("fan out"):
            if self._kind == "tasks":
                found = asyncio.run(self.in_tasks())
            else:
                with ThreadPoolExecutor(len(LANES)) as pool:
                    found = list(pool.map(self.in_threads, LANES))
            self._act("send all")
        found.append(run.step("function", self.in_threads, "function"))
        found.append(self.in_threads("outside"))
        return found


def lines(world: Path) -> list[str]:
    """Return what took place."""
    return world.read_text().splitlines() if world.exists() else []


def effects(world: Path) -> Counter[str]:
    """Count what took place, without the keys."""
    return Counter(line.partition(" ")[2] for line in lines(world))


def drive(log: refold.AgentLog, world: Path, run: str, kind: str, lease_s: float = LONG_LEASE_S) -> Any:
    """Begin the run, or continue it; return its output. If it has ended already, only return its output."""
    try:
        found = log.recording(run)
    except UnknownEntity:
        begun = log.run("outer", id=run)
    else:
        if found.outcome == "succeeded":
            return found.output
        begun = log.run("outer", resume=run)
    return begun.drive(Nested(log, world, kind, lease_s).agent)


class _Boundaries:
    """Counts the moments before and after each observation. At a given count it kills its process after a short
    delay.
    """

    def __init__(self, dies_behind: int) -> None:
        self.count = 0
        self._dies_behind = dies_behind
        self._turn = threading.Lock()

    def wrap(self) -> None:
        observe: Callable[..., Any] = refold.AgentLog.observe

        def observed(log: Any, *args: Any, **kwargs: Any) -> Any:
            self._reached()
            found = observe(log, *args, **kwargs)
            self._reached()
            return found

        refold.AgentLog.observe = observed  # type: ignore[assignment,method-assign]

    def _reached(self) -> None:
        with self._turn:
            self.count += 1
            is_last = self.count == self._dies_behind
        if is_last:
            threading.Thread(target=_die_after, args=(random.random() * 0.01,)).start()


def _die_after(wait_s: float) -> None:
    time.sleep(wait_s)
    os.kill(os.getpid(), signal.SIGKILL)


class Lives:
    """A process that runs a run any number of times, each time in a new child process."""

    def __init__(self, child: Callable[..., Child], url: str) -> None:
        self._child = child(CODE, url)

    def live(self, world: Path, run: str, kind: str, dies_behind: int = 0) -> tuple[int, int]:
        """Run one life.

        Returns:
            Its exit status, negative for a signal; and how many boundaries it reached, 0 if it was killed.
        """
        self._child.say(f"{world} {run} {kind} {dies_behind} {random.getrandbits(31)}")
        status, count = self._child.line().split()
        return int(status), int(count)


def main() -> None:
    """Read lines of WORLD RUN KIND DIES_BEHIND SEED, and print how each life ended."""
    url = sys.argv[1]
    for line in sys.stdin:
        world, run, kind, dies_behind, seed = line.split()
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            status = FAILED
            try:
                random.seed(int(seed))
                boundaries = _Boundaries(int(dies_behind))
                boundaries.wrap()
                with refold.open(url) as log:
                    drive(log, Path(world), run, kind, LEASE_S)
                os.write(writing, str(boundaries.count).encode())
                status = FINISHED
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        count = os.read(reading, 20) or b"0"
        os.close(reading)
        print(os.waitstatus_to_exitcode(status), count.decode(), flush=True)
