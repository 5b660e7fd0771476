"""Runs cases, and reports each one that breaks a promise, and how.

A case fails if it
1. ends with another status than 0, 1 or 2, or shows a traceback;
2. is refused (2) with anything but one line on standard error;
3. takes CPU_MAX_S of processor time, or is not done within WALL_MAX_S, or takes the process past PEAK_MAX_BYTES;
4. is refused, and leaves the log changed.

On a busy machine a case is slow, but takes no more processor time. WALL_MAX_S is for cases that wait forever.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import refold
from refold_tests.command import environment
from refold_tests.forked import FOLDERS, Forked, fork_server
from refold_tests.fuzz.case import Case
from refold_tests.fuzz.entrances import ENTRANCES
from refold_tests.fuzz.shrink import shrunk
from refold_tests.fuzz.world import World

# What it runs is imported once, and not for each of the processes that end.
_TARGET = """
import refold_tests.every_command
import refold_tests.fuzz.readers
from refold_tests.fuzz.target import main
main()
"""
CPU_MAX_S = 60.0
WALL_MAX_S = 240.0
POLL_S = 1.0
PEAK_MAX_BYTES = 2 << 30
RENEWED_EVERY = 200
STATUSES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that broke a promise. name: ENTRANCE/NUMBER, or the folder where the case is stored."""

    name: str
    seed: int
    why: str
    case: Case
    said: str

    @property
    def kind(self) -> str:
        """What failures with the same cause have in common: the entry point, and the last location of the traceback."""
        places = [line.strip() for line in self.said.splitlines() if line.strip().startswith("File ")]
        return f"{self.name.partition('/')[0]}: {self.why} {places[-1] if places else ''}"

    def __str__(self) -> str:
        words = " ".join(map(ascii, self.case.arguments))
        return (
            f"{self.name}: {self.why}\n  refold {words}\n  {self.said.strip()[-3000:]}\n"
            f"  again: make fuzz ARGS='--seed {self.seed} --case {self.name}'"
        )


class Driver:
    """Runs cases in one process, which is restarted if a case ends it. It is a context manager.

    cpu_max_s, wall_max_s: how long a case may take, in processor time and in wall-clock time.
    """

    def __init__(
        self, world: World, seed: int, *, cpu_max_s: float = CPU_MAX_S, wall_max_s: float = WALL_MAX_S
    ) -> None:
        self._cpu_max_s, self._wall_max_s = cpu_max_s, wall_max_s
        self._world = world
        self._seed = seed
        self._target: Forked | None = None
        self._held: object = None
        self._count = 0

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, entrance: str, number: int) -> Failure | None:
        """Run one case; return None if all promises hold."""
        case = ENTRANCES[entrance](random.Random(f"{self._seed}/{entrance}/{number}"), self._world)
        return self.run_case(f"{entrance}/{number}", case)

    def run_case(self, name: str, case: Case) -> Failure | None:
        """Run a case that exists already; return None if all promises hold."""
        self._count += 1
        if self._count % RENEWED_EVERY == 1:
            self._world.renewed()
            self._held = None
        log = self._prepared(case)
        if self._held is None and case.log == "shared":
            self._held = held(log)
        said = self._request(case, log, debug=False)
        why = self._judge(case, log, said)
        if not why:
            return None
        if said["status"] not in STATUSES and self._target is not None:
            self._prepared(case)
            again = self._request(case, log, debug=True)
            said = said if again["status"] in STATUSES else again
        self._end()
        self._world.renewed()
        self._held = None
        return Failure(name, self._seed, why, case, said["err"])

    def smaller(self, failure: Failure) -> Case:
        """Return the case of a failure, made smaller as long as it fails in the same way."""

        def fails(case: Case) -> bool:
            found = self.run_case(failure.name, case)
            return found is not None and found.kind == failure.kind

        return shrunk(failure.case, fails)

    def _prepared(self, case: Case) -> Path:
        for name, data in case.files.items():
            (self._world.folder / name).write_bytes(data)
        if case.log != "own":
            return self._world.log
        own = self._world.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        return own

    def _judge(self, case: Case, log: Path, said: dict[str, Any]) -> str:
        status, err = said["status"], said["err"]
        if status not in STATUSES:
            return f"exit {status}"
        if "Traceback" in err:
            return "a traceback"
        if status == 2 and (err.count("\n") != 1 or not err.startswith("refold: ")):
            return "a refusal that is not one line"
        if said["peak_bytes"] > PEAK_MAX_BYTES:
            return f"{said['peak_bytes'] >> 20} MiB of memory"
        if case.log == "own":
            return "a refused import that made a log" if status == 2 and (log / "FORMAT").exists() else ""
        if case.log == "none":
            return ""
        if status == 2:
            return "" if held(log) == self._held else "refused, and the log is changed"
        self._held = None
        return ""

    def _request(self, case: Case, log: Path, *, debug: bool) -> dict[str, Any]:
        target = self._target = self._target or self._started()
        asked = {"arguments": case.arguments, "folder": str(self._world.folder), "log": f"file:{log}", "debug": debug}
        assert target.stdin is not None
        assert target.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(asked), file=target.stdin, flush=True)
        line = target.stdout.readline() if self._is_answered(target) else None
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        reason = "no answer within the deadline" if line is None else "the process ended"
        self._end()
        return {"status": reason, "err": reason, "out": "", "peak_bytes": 0}

    def _is_answered(self, target: Forked) -> bool:
        """Return whether the process prints something, or ends, before a deadline of either time."""
        cpu = _cpu_clock(target.pid)
        end_cpu, end = cpu() + self._cpu_max_s, time.monotonic() + self._wall_max_s
        with selectors.DefaultSelector() as selector:
            assert target.stdout is not None
            selector.register(target.stdout, selectors.EVENT_READ)
            while not selector.select(POLL_S):
                if cpu() > end_cpu or time.monotonic() > end:
                    return False
        return True

    def _started(self) -> Forked:
        env = environment(more={"PYTHONPATH": os.pathsep.join(FOLDERS), "PYTHONFAULTHANDLER": "1"})
        return fork_server().start(_TARGET, ["-c"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _end(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.kill()
            target.communicate()


def _cpu_clock(pid: int) -> Callable[[], float]:
    """Return a function for a process's processor time in seconds; it returns zero if the system does not provide
    it.
    """
    path, tick = Path(f"/proc/{pid}/stat"), os.sysconf("SC_CLK_TCK")

    def read() -> float:
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / tick

    return read


def held(log: Path) -> object:
    """Return all contents of a log. It is cheap enough to be called after every refused case."""
    with refold.open(f"file:{log}", read_only=True) as opened:
        port = opened.port
        ids = {part: [record.id for record in port.read(part, 0, end)] for part, end in port.ends().items()}
        return ids, [each.definition.fingerprint for each in port.registry], list(port.markers())
