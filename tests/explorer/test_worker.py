"""`refold worker` as a process on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.errors import InputError
from refold.streams.web.client import CA_ENVIRONMENT, pages_client_of
from refold.streams.web.guard import TOKEN_ENVIRONMENT
from refold.streams.web.server import WebServer
from refold.testing.kafka.settings import certificates
from refold_tests.brokers import SharedKafka
from refold_tests.waiting import await_true
from refold_tests.worker_process import Worker, starting

ENTITIES = [f"document/d{number}" for number in range(24)]
Start = Callable[..., Worker]


@pytest.fixture
def url(kafka: SharedKafka, prefix: str) -> str:
    """The URL of a log with documents in most of its partitions."""
    url = f"kafka://{kafka.bootstrap}/{prefix}"
    with refold.open(f"{url}?partitions=4") as log:
        for entity in ENTITIES:
            log.observe(entity, {"fields": {"a": 1}}, source="one")
    return url


@pytest.fixture
def start(tmp_path: Path, url: str) -> Iterator[Start]:
    """Start a worker by name. All workers are ended after the test."""
    with starting(url, tmp_path) as run:
        yield run


def folded(worker: Worker) -> dict[str, Any]:
    return {number: each["offset"] for number, each in worker.folding.items()}


def test_worker_folds_answers_and_drains_and_the_next_folds_nothing_twice(start: Start, url: str) -> None:
    worker = start("one", "--instance", "one")
    await_true(lambda: worker.is_ready)
    status, said = worker.get(f"/state/{ENTITIES[0]}")
    assert (status, said["fields"]["fields"]["value"]) == (200, {"a": 1})
    assert [row["new"] for row in worker.get(f"/history/{ENTITIES[0]}")[1]] == [1]
    assert worker.get("/state/document/none")[0] == 404
    assert sum(folded(worker).values()) == len(ENTITIES)
    assert worker.get("/health")[1]["healthy"]
    stands = worker.get("/status")[1]["partitions"].values()
    assert sum(each["observations"] for each in stands) == len(ENTITIES)
    assert {(each["lag"], each["late"], each["timeline_complete"]) for each in stands} == {(0, 0, True)}
    assert worker.stop() == (0, "")
    again = start("one", "--instance", "one")
    await_true(lambda: again.is_ready)
    assert again.stop() == (0, "")
    with refold.open(url) as log:
        changes = [(each.entity, each.to_version) for each in log.changes()]
    assert sorted(changes) == sorted((entity, 1) for entity in ENTITIES)


def test_two_workers_answer_for_each_other(start: Start) -> None:
    workers = [start("one"), start("two")]

    def shared() -> bool:
        has = [set(folded(each)) for each in workers]
        is_whole = all(has) and has[0] | has[1] == set("0123") and not has[0] & has[1]
        return is_whole and all(each.is_ready for each in workers)

    await_true(shared)
    for worker in workers:
        for entity in ENTITIES:
            status, said = worker.get(f"/state/{entity}")
            assert (status, said["entity"]) == (200, entity)
    assert [each.stop() for each in workers] == [(0, ""), (0, "")]


def test_workers_with_standby_keep_every_partition_twice(start: Start) -> None:
    workers = [start("one", "--standby"), start("two", "--standby")]

    def states(worker: Worker) -> list[str]:
        return [each["state"] for each in worker.get("/health")[1]["partitions"].values()]

    await_true(lambda: all(sorted(states(each)) == ["folding"] * 2 + ["standby"] * 2 for each in workers))
    await_true(lambda: all(each.is_ready for each in workers))
    assert sum(sum(folded(each).values()) for each in workers) == len(ENTITIES)
    refused = start("one")
    assert refused.process.wait(300) == 2
    assert "--standby" in refused.line()
    assert [each.stop() for each in workers] == [(0, ""), (0, "")]


def test_port_in_use_is_one_clear_line(tmp_path: Path, url: str) -> None:
    taken = WebServer("127.0.0.1", 0)
    port = taken.url.rpartition(":")[2]
    worker = Worker("--log", url, "--data", tmp_path, "--port", port)
    try:
        assert worker.process.wait(300) == 2
        assert "cannot be used" in worker.first
        assert "--port" in worker.first
        assert worker.line() == ""
    finally:
        worker.kill()
        taken.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "0.0.0.0"], "set REFOLD_TOKEN"),
        (["--tls-cert", "x.pem"], "--tls-key"),
        (["--advertise", "ftp://worker"], "--advertise"),
    ],
)
@pytest.mark.outside
def test_pages_that_cannot_be_served_are_one_clear_line(
    tmp_path: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_ENVIRONMENT, raising=False)
    worker = Worker("--log", "kafka://127.0.0.1:9/none", "--data", tmp_path, "--port", 0, *arguments)
    try:
        assert worker.process.wait(300) == 2
        assert said in worker.first
        assert worker.line() == ""
    finally:
        worker.kill()


def test_workers_and_commands_query_workers_with_a_token_and_tls(
    start: Start, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, token = certificates(tmp_path / "tls"), "0123456789abcdef-secret"
    monkeypatch.setenv(TOKEN_ENVIRONMENT, token)
    monkeypatch.setenv(CA_ENVIRONMENT, str(made.authority))
    workers = [start(name, "--tls-cert", made.server, "--tls-key", made.server) for name in ("one", "two")]
    asker = pages_client_of()

    def partitions(worker: Worker) -> set[str]:
        return set(json.loads(asker.ask(f"{worker.url}/status", None, {}, 60).content)["partitions"])

    await_true(lambda: all(asker.ask(f"{each.url}/ready", None, {}, 60).status == 200 for each in workers)
               and partitions(workers[0]) | partitions(workers[1]) == set("0123"))  # fmt: skip
    for worker in workers:
        assert worker.url.startswith("https://127.0.0.1:")
        for entity in ENTITIES:
            assert asker.ask(f"{worker.url}/state/{entity}", None, {}, 60).status == 200
    with refold.open(url, worker=workers[0].url) as log:
        assert len({epoch.partition for epoch in log.port.snapshot()}) == 4
    monkeypatch.delenv(TOKEN_ENVIRONMENT)
    with refold.open(url, worker=workers[0].url) as log, pytest.raises(InputError, match="REFOLD_TOKEN"):
        log.port.snapshot()
    assert [each.stop() for each in workers] == [(0, ""), (0, "")]


@pytest.mark.outside
def test_embedded_log_needs_no_worker(tmp_path: Path) -> None:
    worker = Worker("--log", f"file:{tmp_path}")
    try:
        assert worker.process.wait(300) == 2
        assert "needs no worker" in worker.first
    finally:
        worker.kill()
