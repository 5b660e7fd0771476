"""A worker's lines on standard error: in JSON every line has the fixed keys, and the manual has every event."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.worker.host.logs import FIXED, logged_to_stderr
from refold_tests.brokers import SharedKafka
from refold_tests.events import events_in_code
from refold_tests.kafka_topics import Broker
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_process import COMMAND

ROW = re.compile(r"^\| `(\w+)` \| (info|warning|error) \|(.*?)\| ", re.MULTILINE)
PAGE = ROOT / "docs" / "OPERATIONS.md"
# The order for a worker that starts, reads a bad record, and is stopped.
RUN = ["serving", "started", "partitions_assigned", "partition_rebuilt", "dead_letter", "draining", "drained"]
Line = dict[str, Any]


def documented() -> dict[str, set[str]]:
    """Each event of the page's table with its fields."""
    found: dict[str, set[str]] = {}
    section = PAGE.read_text(encoding="utf-8").partition("\n## A worker's log\n")[2].partition("\n## ")[0]
    for event, _, fields in ROW.findall(section):
        same = found["partition_folding"] if fields.startswith(" the same") else set()
        found[event] = {*re.findall(r"`(\w+)`", fields), *same}
    return found


def test_page_lists_exactly_the_events_and_their_fields() -> None:
    in_code = events_in_code()
    in_code["partition_folding"] -= {"made_from"}  # one call logs it and partition_rebuilt
    in_code["broker_connected"] -= {"after_s"}  # and broker_back
    assert documented() == in_code


def test_no_event_field_has_a_reserved_name() -> None:
    assert [event for event, fields in events_in_code().items() if fields & {*FIXED}] == []


class Lines:
    """A worker process, and the lines that it writes to standard error."""

    def __init__(self, *words: object) -> None:
        command = [*COMMAND, "worker", "--port", "0", *map(str, words)]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support")}  # where REFOLD_REDUCERS finds its code
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as said:
            self.lines.extend(said)

    @property
    def objects(self) -> list[Line]:
        """Each line as JSON."""
        return [json.loads(line) for line in list(self.lines)]

    def has(self, event: str) -> bool:
        """Whether an event was logged."""
        return any(each["event"] == event for each in self.objects)

    def ended(self, status: int) -> list[Line]:
        """Everything that it wrote, once it has ended."""
        assert self.process.wait(90) == status
        self._reader.join()
        return self.objects


@pytest.fixture
def run() -> Any:
    """Starts workers that end with the test."""
    started: list[Lines] = []

    def start(*words: object) -> Lines:
        started.append(Lines(*words))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.mark.parametrize("more", [[], ["--log-level", "debug"]], ids=["info", "debug"])
def test_every_line_of_a_worker_is_json(
    kafka: SharedKafka, prefix: str, tmp_path: Path, run: Callable[..., Lines], more: list[str]
) -> None:
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=1") as log:
        log.observe("document/d", {"fields": {"a": 1}}, source="one")
    Broker(kafka.bootstrap, prefix).produce(KafkaPartition(f"{prefix}.observations", 0), [b"junk"])
    agents = ["--agents", "refold.agents.examples.loops"]  # Faust's and aiokafka's lines, too
    worker = run("--log", url, "--data", tmp_path, "--log-format", "json", *agents, *more)
    await_true(lambda: all(map(worker.has, ("broker_connected", "group_joined", "dead_letter"))))
    worker.process.send_signal(signal.SIGTERM)
    lines = worker.ended(0)
    allowed = documented()
    for each in lines:
        assert [*each][: len(FIXED)] == [*FIXED]
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", each["time"])
        if each["event"] != "message":
            assert {*each} - {*FIXED} <= allowed[each["event"]]
    told = [each["event"] for each in lines]
    assert [each for each in told if each in RUN] == RUN
    assert {"broker_connected", "group_joined"} <= {*told}
    of_libraries = {each["logger"] for each in lines if not each["logger"].startswith("refold.")}
    assert bool(of_libraries) == bool(more), of_libraries
    (rebuilt,) = [each for each in lines if each["event"] == "partition_rebuilt"]
    assert rebuilt["took_s"] >= 0


@pytest.mark.outside
def test_worker_that_cannot_start_gives_its_reason_in_json(run: Callable[..., Lines], tmp_path: Path) -> None:
    words = ("--log", "kafka://127.0.0.1:1/x", "--agents", "no.such.module", "--data", tmp_path)
    (line,) = run(*words, "--log-format", "json").ended(2)
    assert (line["event"], line["level"]) == ("ended", "error")
    assert "no.such.module" in line["why"]


def _fail() -> None:
    raise LookupError("in a thread")


@pytest.mark.parametrize("level", ["info", "debug"])
def test_warnings_of_libraries_and_failing_threads_go_through_the_log(
    level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    others, root.handlers = root.handlers, []  # as in a separate process: pytest's handlers take every record
    try:
        with warnings.catch_warnings(), logged_to_stderr(level, "json"):
            warnings.simplefilter("always")
            logging.getLogger("some.library").warning("noise")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
            thread = threading.Thread(target=_fail)
            thread.start()
            thread.join()
        assert root.handlers == []
    finally:
        root.handlers = others
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    of_libraries = [each["logger"] for each in lines if not each["logger"].startswith("refold.")]
    assert of_libraries == (["some.library", "py.warnings"] if level == "debug" else [])
    (failed,) = [each for each in lines if each["level"] == "error"]
    assert "LookupError: in a thread" in failed["traceback"]
    assert sys.excepthook is sys.__excepthook__
