"""The only broker of a worker is killed, or hangs: pages, metrics and log report that, and its return.

Nothing is lost, and the worker does not end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

import refold
from refold.testing.kafka import Kafka
from refold_tests.command import refold_command
from refold_tests.kafka_topics import Broker
from refold_tests.prometheus import METRICS
from refold_tests.scraped_metrics import scraping
from refold_tests.waiting import WAIT_S, await_true
from refold_tests.worker_process import Worker, starting

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]
ENTITIES = [f"document/d{number}" for number in range(12)]


def series(worker: Worker) -> dict[str, float]:
    with urlopen(f"{worker.url}/metrics", timeout=60) as found:
        families = list(text_string_to_metric_families(found.read().decode()))
    return {f"{one.name} {sorted(one.labels.items())}": one.value for each in families for one in each.samples}


def value(worker: Worker, name: str) -> float:
    (found,) = [each for key, each in series(worker).items() if key.split()[0] == name]
    return found


def observe(url: str, number: int) -> None:
    with refold.open(url) as log:
        for entity in ENTITIES:
            log.observe(entity, {"fields": {"a": number}}, source="one")


def test_deleted_topic_is_shown(kafka_cluster: Callable[..., Kafka], tmp_path: Path) -> None:
    """Nothing reads `.changes` while nothing is recorded: only a request for the topics shows that it is gone."""
    kafka = kafka_cluster()
    url = f"kafka://{kafka.bootstrap}/shop"
    observe(f"{url}?partitions=2", 1)
    with starting(url, tmp_path) as start:
        worker = start("one", "--instance", "one")
        await_true(lambda: worker.is_ready)
        Broker(kafka.bootstrap, "shop").delete("shop.changes")
        await_true(lambda: not worker.is_ready)
        status, said = worker.get("/ready")
        assert (status, said["missing_topics"]) == (503, ["shop.changes"])
        assert "the topic shop.changes is missing" in said["why"]
        status, said = worker.get("/health")
        assert (status, said["missing_topics"]) == (200, ["shop.changes"])
        gone = {name for name, found in series(worker).items() if name.startswith("refold_topic_missing") and found}
        assert gone == {"refold_topic_missing [('log', 'shop'), ('topic', 'shop.changes')]"}
        assert "topic=shop.changes" in worker.events("topic_missing")[0]
        found = refold_command("doctor", "--json", log=url)
        wrong = [each["subject"] for each in found.json["findings"] if not each["ok"]]
        assert (found.status, wrong) == (1, ["topic shop.changes"])
        assert worker.stop() == (0, "")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["kill", "pause"])
def test_outage_is_shown_and_survived(kafka_cluster: Callable[..., Kafka], tmp_path: Path, how: str) -> None:
    """A paused broker hangs for over a minute, with all its connections open."""
    kafka = kafka_cluster()
    url = f"kafka://{kafka.bootstrap}/shop"
    observe(f"{url}?partitions=2", 1)
    with starting(url, tmp_path) as start, ExitStack() as ending:
        worker = start("one", "--instance", "one")
        await_true(lambda: worker.is_ready)
        await_true(lambda: "refold_group_lag_records" in str(series(worker)))
        before = series(worker)
        for each in ("started", "group_joined", "partitions_assigned", "partition_rebuilt", "broker_connected"):
            assert worker.events(each), each
        scraper = ending.enter_context(scraping(f"{worker.url}/metrics", 0.25, WAIT_S))

        getattr(kafka, how)(1)
        await_true(lambda: not worker.is_ready)
        status, said = worker.get("/ready")
        assert status == 503
        assert "no broker answers" in said["why"]
        assert not said["broker"]["connected"]
        assert said["broker"]["since"] in said["why"]
        assert worker.get("/health")[1]["broker"] == said["broker"]
        assert (value(worker, "refold_broker_connected"), value(worker, "refold_brokers")) == (0, 0)
        # Its session has expired, and another worker may own its partitions.
        await_true(lambda: value(worker, "refold_group_member") == 0)
        status, said = worker.get("/health")
        assert not said["group"]["member"]
        if how == "pause":
            await_true(lambda: worker.get("/health")[0] == 503)
            assert "no broker answers" in worker.get("/health")[1]["why"]
        assert before.keys() <= series(worker).keys(), "a series ended"
        assert worker.events("broker_lost")
        assert worker.events("group_lost")
        assert worker.events("partitions_revoked")

        (kafka.resume if how == "pause" else kafka.restart)(1)
        await_true(lambda: worker.is_ready, f"{how}: {worker.logged[-10:]}", within_s=240)
        assert worker.get("/health")[0] == 200
        assert "after_s=" in worker.events("broker_back")[0]
        observe(url, 2)
        await_true(lambda: sum(each["offset"] for each in worker.folding.values()) == 2 * len(ENTITIES))
        scraper.close()
        assert scraper.vanished() == {}
        assert {each.partition("{")[0] for one in scraper.samples for each in one} <= {*METRICS, "up"}
        assert worker.process.poll() is None
        assert worker.stop() == (0, "")
    with refold.open(url) as log:
        changes = sorted((each.entity, each.to_version) for each in log.changes())
    assert changes == sorted((entity, version) for entity in ENTITIES for version in (1, 2))
