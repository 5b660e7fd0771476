"""Commands on a log on Kafka whose answer or work only workers can provide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold_tests.brokers import SharedKafka
from refold_tests.command import Done, refold_command
from refold_tests.waiting import await_true
from refold_tests.worker_process import Worker, starting

ENTITIES = [f"document/d{number}" for number in range(24)]
Start = Callable[..., Worker]
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    """The URL of a log with documents in its partitions. Some changes have others as causes."""
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=4") as log:
        causes = [log.observe(entity, {"fields": {"a": 1}}, source="one") for entity in ENTITIES]
        for entity, cause in zip(ENTITIES, causes[1:], strict=False):
            log.observe(entity, {"fields": {"a": 2}}, source="two", causes=[cause])
    return url


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Start a worker by name. All workers are ended after the test."""
    with starting(url, tmp_path) as run:
        yield run


def command(url: str, *arguments: object) -> Done:
    return refold_command(*arguments, "--log", url)


def without_cut(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in ("cut", "cut_short")}


def test_commands_read_workers_tables_and_name_the_remedy_without_workers(start: Start, url: str) -> None:
    alone = command(url, "verify", "--json").json
    assert alone["ok"]
    assert "start `refold worker`" in alone["unchecked"][0]
    state = command(url, "state", ENTITIES[3], "--json").json
    why = command(url, "why", f"{ENTITIES[3]}.fields", "--json").json
    assert "no worker" in command(url, "snapshot").refused()
    workers = [start("one"), start("two")]
    await_true(lambda: all(each.is_ready for each in workers) and covered(workers))
    whole = command(url, "verify", "--json").json
    assert (whole["ok"], whole["unchecked"], whole["root"]) == (True, [], alone["root"])
    for worker in ((), ("--worker", workers[0].url)):
        # The first worker registers which versions of types with code are in effect. That changes the cut.
        assert without_cut(command(url, "state", ENTITIES[3], "--json", *worker).json) == without_cut(state)
        assert command(url, "why", f"{ENTITIES[3]}.fields", "--json", *worker).json == why
    sealed = command(url, "snapshot", "--json", "--worker", workers[1].url).json
    assert len(sealed["epochs"]) == 4
    assert all(each["new"] for each in sealed["epochs"])
    assert command(url, "verify", "--json").json == whole
    assert "--worker" in command(url, "snapshot", "--worker", "http://127.0.0.1:9").refused()


def covered(workers: list[Worker]) -> bool:
    """Return whether each partition has exactly one worker, and each worker has partitions."""
    has = [each.folding for each in workers]
    return all(has) and sorted(number for each in has for number in each) == list("0123")
