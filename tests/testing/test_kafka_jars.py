"""What a broker is made of: fetched once however many ask, and a clear word where Java or Maven is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from refold.testing.kafka import KAFKA_VERSION, ServerMissing, missing
from refold.testing.kafka.jars import fetch_jars, find_java
from refold_tests.child import Child
from refold_tests.tree import ROOT

FETCH = "from refold.testing.kafka.jars import fetch_jars; print(fetch_jars())"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A machine with no commands but those it is given (name, shell script), and nothing fetched yet."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)

    def give(name: str, script: str) -> None:
        (commands / name).write_text(f"#!/bin/sh\n{script}\n")
        (commands / name).chmod(0o755)

    find_java.cache_clear()
    yield give
    find_java.cache_clear()


def says(version: str) -> str:
    return f"echo '{version}' >&2"


def test_missing_java_names_what_to_install(machine: Callable[[str, str], None]) -> None:
    told = missing()
    assert told is not None
    assert "Java 17 or newer, and there is no java on PATH" in told
    assert "apt install" in told


def test_old_java_is_named_with_its_version(machine: Callable[[str, str], None]) -> None:
    machine("java", says('openjdk version "11.0.2" 2019-01-15'))
    with pytest.raises(ServerMissing, match=r'Java 17 or newer.*says: openjdk version "11\.0\.2"'):
        find_java()


def test_java_home_without_java_is_named(machine: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    machine("java", says('openjdk version "21.0.1"'))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(ServerMissing, match=r"no java in JAVA_HOME \(/nowhere\)"):
        find_java()


def test_missing_maven_is_reported_only_when_fetching(machine: Callable[[str, str], None], tmp_path: Path) -> None:
    machine("java", says('openjdk version "17.0.15"'))
    told = missing()
    assert told is not None
    assert "there is no mvn on PATH" in told
    (tmp_path / "cache" / "refold" / f"kafka-{KAFKA_VERSION}").mkdir(parents=True)
    assert missing() is None


def test_failing_maven_is_quoted(machine: Callable[[str, str], None], tmp_path: Path) -> None:
    machine("mvn", "echo 'no route to the repository'; exit 1")
    with pytest.raises(ServerMissing, match="no route to the repository"):
        fetch_jars()
    assert list((tmp_path / "cache" / "refold").glob("*kafka*[!k]")) == []


@pytest.mark.kafka
def test_concurrent_fetches_fetch_once(
    child: Callable[..., Child], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven is the real one, behind a script that notes that it was called."""
    maven, calls = shutil.which("mvn"), tmp_path / "calls"
    assert maven is not None
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "mvn").write_text(f'#!/bin/sh\necho >> "{calls}"\nexec "{maven}" "$@"\n')
    (commands / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    told = {process.line() for process in [child(FETCH), child(FETCH)]}
    assert told == {str(tmp_path / "cache" / "refold" / f"kafka-{KAFKA_VERSION}")}
    assert calls.read_text() == "\n"
    assert (Path(*told) / f"kafka_2.13-{KAFKA_VERSION}.jar").stat().st_size > 1_000_000


@pytest.mark.parametrize(("ci", "status", "line"), [
    ("", 0, "1 test was skipped: needs a Kafka broker: Kafka needs Java 17"),
    ("true", 1, "needs a Kafka broker: Kafka needs Java 17"),
])  # fmt: skip
def test_run_without_java_lists_its_omissions_and_fails_in_ci(ci: str, status: int, line: str) -> None:
    environment = {**os.environ, "JAVA_HOME": "/nowhere", "CI": ci}
    environment.pop("KAFKA_BOOTSTRAP", None)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/testing/test_kafka.py"]
    only = ["-k", "transaction", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, *only], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == status, done.stdout
    assert line in done.stdout
