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

from refold_tests.command import started
from refold_tests.forked import Forked
from refold_tests.tree import ROOT
from refold_tests.waiting import WAIT_S

COMMAND = (sys.executable, "-m", "refold.explorer.cli.main")


LOGGED = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR) ")


class Worker:
    """A running `refold worker`. url: of its pages, from its first line; logged: the lines of its log so far."""

    def __init__(self, *arguments: object, code: Sequence[str] = (), env: Mapping[str, str] | None = None) -> None:
        """code: a command that runs it in a new interpreter; env: its environment, None: that of this process."""
        # The folder with the code that REFOLD_REDUCERS names (conftest.py).
        given = {"PYTHONPATH": str(ROOT / "tests" / "support"), **(os.environ if env is None else env)}
        self.process: subprocess.Popen[str] | Forked
        if code:
            words = [*code, "worker", *map(str, arguments)]
            self.process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=given)
        else:
            self.process = started("worker", *arguments, stderr=subprocess.PIPE, env=given)
        self.logged: list[str] = []
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.first = self.line()
        self.url = self.first.rpartition("pages on ")[2]

    def line(self) -> str:
        """Return the next line that is not part of its log; empty at the end."""
        return self._lines.get(timeout=WAIT_S).strip()

    def events(self, name: str) -> list[str]:
        """Return the logged lines of one event."""
        return [line for line in list(self.logged) if line.split()[2] == name]

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if LOGGED.match(line):
                self.logged.append(line.strip())
            else:
                self._lines.put(line)
        self._lines.put("")

    def get(self, path: str) -> tuple[int, Any]:
        """Get a page; return status and content."""
        return page(f"{self.url}{path}")

    def post(self, path: str, said: object) -> tuple[int, Any]:
        """Post to a page; return status and content."""
        return page(Request(f"{self.url}{path}", json.dumps(said).encode(), {"Content-Type": "application/json"}))

    @property
    def folding(self) -> dict[str, Any]:
        """Return the status of the partitions that it folds."""
        status = self.get("/status")[1]["partitions"]
        return {number: each for number, each in status.items() if each["state"] == "folding"}

    @property
    def is_ready(self) -> bool:
        """Whether all its partitions are caught up. While it starts, it may refuse connections."""
        try:
            return self.get("/ready")[0] == 200
        except (ConnectionError, URLError):
            return False

    def stop(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit status, and the remaining output that is not part of its log."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self, within_s: float = 60.0) -> tuple[int, str]:
        """Wait for the end; return the exit status, and the remaining output that is not part of its log."""
        status = self.process.wait(within_s)
        self._reader.join()
        return status, "".join(iter(self._lines.get_nowait, ""))

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()


def page(asked: str | Request) -> tuple[int, Any]:
    """Return status and content of a page."""
    try:
        with urlopen(asked, timeout=60) as found:
            return found.status, json.loads(found.read())
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@contextmanager
def starting(url: str, folder: Path) -> Iterator[Callable[..., Worker]]:
    """Yield a function that starts a worker of a log by name, with further arguments. All end after the block."""
    running: list[Worker] = []

    def run(name: str, *more: object) -> Worker:
        running.append(Worker("--log", url, "--data", folder / name, "--port", 0, *more))
        return running[-1]

    try:
        yield run
    finally:
        for each in running:
            each.kill()
