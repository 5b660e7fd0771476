"""One secured broker for a module of tests: a user for each role, with its rights, and everything that was ever
logged.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from refold.explorer.cli.main import run
from refold.testing.kafka import Kafka
from refold_tests.reducers import REDUCERS
from refold_tests.worker_process import Worker

PREFIX = "agents"
USERS = {
    "producer": ["producer"],
    "worker": ["worker"],
    "reader": ["reader"],
    "sink": ["sink"],
    "manager": ["admin"],
    "agent": ["producer", "reader"],
    "follower": ["worker", "producer"],
}
MASTER = "REFOLD_MASTER_KEY"
# With librdkafka's own log, which mentions settings, brokers and passwords.
LOUD = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=open(sys.argv.pop(1), "a"))
from refold.explorer.cli.main import main
main()
"""


class Secured:
    """The broker, its users' settings, and the output of commands and logs."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka = kafka
        self.folder = folder
        self.url = f"kafka://{kafka.bootstrap}/{PREFIX}"
        self.master = base64.b64encode(secrets.token_bytes(32)).decode()
        self.registry_password = secrets.token_hex(16)
        self.said: list[str] = []
        self.log = folder / "debug.log"
        self.users = ["admin", *USERS]
        for user in self.users:
            if user != "admin":
                kafka.create_user(user)
            self._write(user)

    def _write(self, user: str) -> None:
        """Write a user's settings. Half of the users have a file in Java's form, the others in librdkafka's."""
        config = {name: str(value) for name, value in self.kafka.client_config(user).items()}
        if len(user) % 2:
            name, password = config.pop("sasl.username"), config.pop("sasl.password")
            config["sasl.jaas.config"] = f'x.ScramLoginModule required username="{name}" password="{password}";'
            config |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": config.pop("ssl.ca.location")}
        path = self.folder / f"{user}.properties"
        path.touch(mode=0o600)
        path.write_text("".join(f"{name}={value}\n" for name, value in config.items()))

    @property
    def secrets(self) -> list[str]:
        """Return everything that may appear nowhere."""
        passwords = [str(self.kafka.client_config(user)["sasl.password"]) for user in self.users]
        return [*passwords, self.master, self.registry_password]

    def environment(self, user: str, *, keys: bool = False) -> dict[str, str]:
        """Return the environment of a user. keys: whether the user may also read sealed content."""
        return {
            "REFOLD_REDUCERS": REDUCERS,
            "REFOLD_LOG": self.url,
            "REFOLD_KAFKA_CONFIG": str(self.folder / f"{user}.properties"),
            "REFOLD_KAFKA_DEBUG": "generic,conf,security,broker",
            **({MASTER: self.master} if keys else {"REFOLD_KEYS": "none"}),
        }

    @contextmanager
    def as_user(self, user: str, *, keys: bool = False) -> Iterator[None]:
        """Let this process act as a user."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        with patch.dict(os.environ, {**kept, **self.environment(user, keys=keys)}, clear=True):
            yield

    def ask(self, user: str, *words: object, status: int = 0, keys: bool = False) -> Any:
        """Run a command as a user; return its output, parsed with --json. If it is refused, return its standard
        error.
        """
        out, err = io.StringIO(), io.StringIO()
        with self.as_user(user, keys=keys), self.listening(), redirect_stdout(out), redirect_stderr(err):
            found = run([str(each) for each in words])
        self.said += [out.getvalue(), err.getvalue()]
        assert found == status, (words, found, out.getvalue(), err.getvalue())
        if status == 2:
            return err.getvalue()
        return json.loads(out.getvalue()) if "--json" in words else out.getvalue()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect the output of every logger, at the most verbose level."""
        root, heard = logging.getLogger(), io.StringIO()
        handler, level = logging.StreamHandler(heard), root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)
            self.said.append(heard.getvalue())

    @contextmanager
    def worker(self, user: str, *more: object, name: str = "w") -> Iterator[Worker]:
        """Run a worker as a user."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
        support = os.pathsep.join(each for each in sys.path if each)
        worker = Worker(
            "--data", self.folder / name, "--port", 0, "--log-level", "debug", *more,
            code=[sys.executable, "-P", "-c", LOUD, str(self.log)],
            env={**kept, **self.environment(user), "PYTHONPATH": support},
        )  # fmt: skip
        try:
            yield worker
            status, said = worker.stop()
            self.said += [worker.first, said, *worker.logged]
            assert status == 0, said
        finally:
            worker.kill()


class Watched:
    """Reads the command line of every descendant of this process while a block runs."""

    def __init__(self) -> None:
        self.commands: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        wait_s = 0.0
        while not self._stop.wait(wait_s):
            begun_s = time.monotonic()
            self.commands |= set(_below(os.getpid()).values())
            # An interpreter runs for longer than this.
            wait_s = max(0.02, 4 * (time.monotonic() - begun_s))


def _below(root: int) -> Mapping[int, str]:
    """Return the command lines of a process's descendants."""
    found: dict[int, str] = {}
    ahead = [root]
    while ahead:
        try:
            # A process is the child of the thread that started it.
            tasks = Path("/proc", str(ahead.pop()), "task")
            for task in tasks.iterdir():
                for pid in map(int, (task / "children").read_bytes().split()):
                    found[pid] = Path("/proc", str(pid), "cmdline").read_bytes().decode(errors="replace")
                    if not found[pid].partition("\0")[0].endswith("java"):  # a hundred threads, and no child
                        ahead.append(pid)
        except OSError:
            continue  # a process or a thread ended in the meantime
    return found


def started_command(*words: str) -> subprocess.Popen[bytes]:
    """Start a process with a secret in its command line, to test Watched."""
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words])
