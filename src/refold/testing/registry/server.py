"""A running Apicurio Registry: on loopback, its schemas in memory, deleted when the process that started it ends."""

from __future__ import annotations

import shutil
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from refold.testing.processes import HOST, ServerFailed, Supervised, free_ports
from refold.testing.registry.files import fetch_app, fetch_java

_ATTEMPTS = 5
_READY_S = 120.0
_ASK_S = 5.0
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")


def start_registry() -> SchemaRegistry:
    """Start a registry and return when it serves. Fetches it first if it is not in the cache.

    Raises ServerMissing (says what to install) and ServerFailed (shows the log's end).
    """
    for attempt in range(1, _ATTEMPTS + 1):
        registry = SchemaRegistry(*free_ports(2))
        try:
            registry.restart()
        except BaseException as error:
            registry.close()
            # Another process may have taken the port between our check and the registry's start.
            if isinstance(error, ServerFailed) and "already bound" in str(error) and attempt < _ATTEMPTS:
                continue
            raise
        return registry
    raise AssertionError("the last attempt returns or raises")


class SchemaRegistry:
    """A started registry. `url` is its address for clients."""

    def __init__(self, port: int, management_port: int) -> None:
        self.url = f"http://{HOST}:{port}/apis/ccompat/v7"
        self._folder = Path(tempfile.mkdtemp(prefix="refold-registry-"))
        self._process = Supervised("the Schema Registry", self._folder / "server.log", remove=self._folder)
        self._ports = port, management_port

    @property
    def pid(self) -> int | None:
        """The id of its last started process."""
        return self._process.pid

    def kill(self) -> None:
        """Send SIGKILL. Returns when the process is gone. Every schema is lost."""
        self._process.kill()

    def restart(self) -> None:
        """Start it on the same port, empty; returns when it serves."""
        self._process.kill()
        port, management_port = self._ports
        self._process.launch(
            [
                str(fetch_java()), *_JVM, f"-Djava.io.tmpdir={self._folder}",
                f"-Dquarkus.http.host={HOST}", f"-Dquarkus.http.port={port}",
                # Without this it listens on all addresses.
                f"-Dquarkus.management.host={HOST}", f"-Dquarkus.management.port={management_port}",
                "-jar", str(fetch_app() / "quarkus-run.jar"),
            ],
            folder=self._folder,
        )  # fmt: skip
        self._process.await_ready(self._is_ready, _READY_S)

    def pause(self) -> None:
        """Send SIGSTOP: it accepts connections, but does not answer."""
        self._process.send("SIGSTOP")

    def resume(self) -> None:
        """Send SIGCONT, after `pause`."""
        self._process.send("SIGCONT")

    def close(self) -> None:
        """End it, and delete its files."""
        self._process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=_ASK_S) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False
