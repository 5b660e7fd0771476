"""One broker: its folder, its process below a supervisor, and the signals for it."""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from refold.testing.kafka.jars import class_path, fetch_jars, find_java
from refold.testing.kafka.settings import Ports, as_properties
from refold.testing.processes import ServerFailed, Supervised

HEAP_MB = 256
_READY = "Kafka Server started"
_READY_S = 90.0
_JVM = (
    "-Xms96m", "-Xss512k", "-XX:MaxMetaspaceSize=128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true", "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)  # fmt: skip


class Node:
    """A broker that is also a controller. `number` counts from 1; `ports`, where it listens."""

    def __init__(
        self, number: int, folder: Path, ports: Ports, *,
        heap_mb: int = HEAP_MB, options: Sequence[str] = (), remove: Path | None = None,
    ) -> None:  # fmt: skip
        self.number = number
        self.folder = folder
        self.ports = ports
        self._jvm = (f"-Xmx{heap_mb}m", *_JVM, *options)
        self._process = Supervised(f"Kafka's node {number}", folder / "server.log", remove=remove)

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def _settings(self) -> Path:
        return self.folder / "server.properties"

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has a process; a paused one has."""
        return self._process.is_running

    def write_settings(self, settings: Mapping[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings.touch(mode=0o600)
        self._settings.write_text(as_properties(settings), encoding="utf-8")

    def format(self, cluster_id: str, options: Sequence[str] = ()) -> None:
        """Create its data folder, if it does not exist. Raises ServerFailed."""
        if (self.data / "meta.properties").exists():
            return
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._settings), *options)
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stdout + done.stderr).strip()
            raise ServerFailed(f"Kafka's node {self.number} could not make its data folder:\n{said}")

    def launch(self) -> None:
        """Start its process. It is not ready before `await_ready` returns."""
        self._process.launch(self._java("kafka.Kafka", str(self._settings)))

    def await_ready(self) -> None:
        """Returns when it serves. Raises ServerFailed when it ended instead, or took too long."""
        self._process.await_ready(lambda: _READY in self._process.output(), _READY_S)

    def send(self, name: str) -> None:
        """Send it the signal of that name; returns when it has taken effect. Nothing happens where it has ended."""
        self._process.send(name)

    def kill(self) -> None:
        """Send SIGKILL. Returns when it is gone."""
        self._process.kill()

    def stop(self) -> None:
        """SIGTERM, its own orderly end; SIGKILL when that takes too long."""
        self._process.stop()

    def tail(self) -> str:
        """Return the end of its output since its last start."""
        return self._process.tail()

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [find_java().command, *self._jvm, "-cp", class_path(fetch_jars()), main, *arguments]


def new_cluster_id() -> str:
    """22 characters, as Kafka makes them: 16 bytes in its base 64."""
    # Start with a zero byte, so that it never starts with a dash, as an option does.
    return base64.urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")
