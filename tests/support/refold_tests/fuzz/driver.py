"""Runs cases, and says of each that breaks a promise which one it was, and how.

A case fails that
1. ends with another status than 0, 1 or 2, or shows a traceback;
2. is refused (2) with anything but one line on standard error;
3. is not done within DEADLINE_S, or takes the process past PEAK_MAX_BYTES;
4. is refused, and leaves the log changed.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import refold
from refold_tests.command import SOURCE, environment
from refold_tests.fuzz.entrances import ENTRANCES, Case
from refold_tests.fuzz.world import World

DEADLINE_S = 60
PEAK_MAX_BYTES = 2 << 30
RENEWED_EVERY = 200
STATUSES = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that broke a promise. name: ENTRANCE/NUMBER."""

    name: str
    seed: int
    why: str
    arguments: list[str]
    said: str

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.why}\n  refold {' '.join(map(ascii, self.arguments))}\n  {self.said.strip()[-3000:]}\n"
            f"  again: make fuzz ARGS='--seed {self.seed} --case {self.name}'"
        )


class Driver:
    """Runs cases in one process, which is started again where one ended it; a context manager."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._target: subprocess.Popen[str] | None = None
        self._held: object = None
        self._count = 0

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def run(self, entrance: str, number: int) -> Failure | None:
        """Run one case; None where all promises hold."""
        self._count += 1
        if self._count % RENEWED_EVERY == 1:
            self._world.renewed()
            self._held = None
        case = ENTRANCES[entrance](random.Random(f"{self._seed}/{entrance}/{number}"), self._world)
        log = self._prepared(case)
        if self._held is None and case.log == "shared":
            self._held = held(log)
        said = self._asked(case, log, debug=False)
        why = self._judged(case, log, said)
        if not why:
            return None
        if said["status"] not in STATUSES and self._target is not None:
            self._prepared(case)
            said = self._asked(case, log, debug=True)
        self._end()
        self._world.renewed()
        self._held = None
        return Failure(f"{entrance}/{number}", self._seed, why, case.arguments, said["err"])

    def _prepared(self, case: Case) -> Path:
        for name, data in case.files.items():
            (self._world.folder / name).write_bytes(data)
        if case.log != "own":
            return self._world.log
        own = self._world.folder / "own"
        shutil.rmtree(own, ignore_errors=True)
        return own

    def _judged(self, case: Case, log: Path, said: dict[str, Any]) -> str:
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

    def _asked(self, case: Case, log: Path, *, debug: bool) -> dict[str, Any]:
        target = self._target = self._target or self._started()
        asked = {"arguments": case.arguments, "folder": str(self._world.folder), "log": f"file:{log}", "debug": debug}
        assert target.stdin is not None
        assert target.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(asked), file=target.stdin, flush=True)
        with selectors.DefaultSelector() as selector:
            selector.register(target.stdout, selectors.EVENT_READ)
            line = target.stdout.readline() if selector.select(DEADLINE_S) else None
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        reason = "no answer within the deadline" if line is None else "the process ended"
        self._end()
        return {"status": reason, "err": reason, "out": "", "peak_bytes": 0}

    def _started(self) -> subprocess.Popen[str]:
        support = str(Path(__file__).parent.parent.parent)
        more = {"PYTHONPATH": os.pathsep.join((SOURCE, support)), "PYTHONFAULTHANDLER": "1"}
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "refold_tests.fuzz.target"],
            env=environment(more=more), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def _end(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.kill()
            target.communicate()


def held(log: Path) -> object:
    """All that a log holds; cheap enough to be asked after every case that is refused."""
    with refold.open(f"file:{log}", read_only=True) as opened:
        port = opened.port
        ids = {part: [record.id for record in port.read(part, 0, end)] for part, end in port.ends().items()}
        return ids, [each.definition.fingerprint for each in port.registry], list(port.markers())
