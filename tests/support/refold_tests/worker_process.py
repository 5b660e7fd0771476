"""`refold worker` as a process, and its pages."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from refold_tests.tree import ROOT
from refold_tests.waiting import WAIT_S

COMMAND = (sys.executable, "-m", "refold.explorer.cli.main")


LOGGED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR) ")


class Worker:
    """A running `refold worker`; `url` of its pages once it has said it. logged: the lines of its log so far."""

    def __init__(self, *arguments: object, code: Sequence[str] = COMMAND, env: Mapping[str, str] | None = None) -> None:
        """code: what runs the command, `env`: in which environment, where it is not this process's."""
        # Where the code is that REFOLD_REDUCERS names (conftest.py).
        given = {"PYTHONPATH": str(ROOT / "tests" / "support"), **(os.environ if env is None else env)}
        self.process = subprocess.Popen(
            [*code, "worker", *map(str, arguments)], stderr=subprocess.PIPE, text=True, env=given
        )
        self.logged: list[str] = []
        self._said: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.first = self.line()
        self.url = self.first.rpartition("pages on ")[2]

    def line(self) -> str:
        """What it says next beside its log; empty at its end."""
        return self._said.get(timeout=WAIT_S).strip()

    def events(self, name: str) -> list[str]:
        """The logged lines of one event."""
        return [line for line in list(self.logged) if line.split()[2] == name]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if LOGGED.match(line):
                self.logged.append(line.strip())
            else:
                self._said.put(line)
        self._said.put("")

    def get(self, path: str) -> tuple[int, Any]:
        """Status and what a page says."""
        return page(f"{self.url}{path}")

    def post(self, path: str, said: object) -> tuple[int, Any]:
        """Status and what a page says to what is posted there."""
        return page(Request(f"{self.url}{path}", json.dumps(said).encode(), {"Content-Type": "application/json"}))

    @property
    def folding(self) -> dict[str, Any]:
        """How the partitions stand that it folds."""
        status = self.get("/status")[1]["partitions"]
        return {number: each for number, each in status.items() if each["state"] == "folding"}

    @property
    def is_ready(self) -> bool:
        """Whether all that it has is caught up; while it starts, it may not listen yet to who connected."""
        try:
            return self.get("/ready")[0] == 200
        except (ConnectionError, URLError):
            return False

    def stop(self) -> tuple[int, str]:
        """Its exit status after SIGTERM, and what else it said beside its log."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self, within_s: float = 60.0) -> tuple[int, str]:
        """Its exit status once it has ended, and what else it said beside its log."""
        status = self.process.wait(within_s)
        self._reader.join()
        return status, "".join(iter(self._said.get_nowait, ""))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def page(asked: str | Request) -> tuple[int, Any]:
    """Status and what a page says."""
    try:
        with urlopen(asked, timeout=60) as found:
            return found.status, json.loads(found.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@contextmanager
def starting(url: str, folder: Path) -> Iterator[Callable[..., Worker]]:
    """Starts a worker of a log by name, with further arguments; all are gone behind the block."""
    running: list[Worker] = []

    def run(name: str, *more: object) -> Worker:
        running.append(Worker("--log", url, "--data", folder / name, "--port", 0, *more))
        return running[-1]

    try:
        yield run
    finally:
        for each in running:
            each.kill()
