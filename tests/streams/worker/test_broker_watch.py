"""The thread that asks the brokers survives any error, and its answers do not become stale."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import refold
from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.url import parse_url
from refold.streams.worker.broker_watch import BrokerWatch
from refold_tests.brokers import SharedKafka
from refold_tests.kafka_topics import Broker
from refold_tests.waiting import await_true


class Broken:
    """Clients whose admin client raises an unexpected error, and only knows topics."""

    servers = "nowhere:1"
    said = ""

    def __init__(self) -> None:
        self.asked = 0
        self.is_broken = False

    def admin(self) -> Broken:
        return self

    def list_topics(self, *_: object, **__: object) -> Any:
        self.asked += 1
        if self.is_broken:
            raise LookupError("nobody foresaw this")
        return SimpleNamespace(brokers={1: "one"})


@contextmanager
def watching(clients: Any) -> Iterator[BrokerWatch]:
    watch = BrokerWatch(clients, Topics("shop"), parse_url("kafka://nowhere:1/shop"), 1, lambda: 0)
    try:
        yield watch
    finally:
        watch.close()


def said_by(watch: BrokerWatch, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return its own log lines: a line from an earlier test's closed watch may still arrive."""
    return [each.getMessage() for each in caplog.records if each.thread == watch._thread.ident]


def test_watch_survives_any_error(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refold.streams.worker.broker_watch")
    clients = Broken()
    with watching(clients) as watch:
        await_true(lambda: watch.now.broker.holds)
        clients.is_broken = True
        await_true(lambda: not watch.now.broker.holds)
        assert "nobody foresaw this" in watch.now.broker.why
        assert watch.now.brokers == 0
        asked = clients.asked
        await_true(lambda: clients.asked >= asked + 2)
        clients.is_broken = False
        await_true(lambda: watch.now.broker.holds)
    told = said_by(watch, caplog)
    assert sum("asked=brokers " in each for each in told) == 1, told
    # The fake has neither offsets nor settings, which is not an outage.
    assert sum("asked=group_and_settings " in each for each in told) == 1, told


def test_deleted_topics_are_detected(
    kafka: SharedKafka, prefix: str, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "refold.streams.worker.broker_watch")
    address = parse_url(f"kafka://{kafka.bootstrap}/{prefix}")
    with refold.open(f"{address.url}?partitions=1") as log:
        log.observe("document/d", {"fields": {"a": 1}}, source="one")
    watch = BrokerWatch(broker.clients, Topics(prefix), address, 1, lambda: 0, settings_every_s=0.1)

    def missing() -> set[str]:
        return {each.topic for each in watch.now.unfit if each.is_missing}

    try:
        await_true(lambda: watch.now.group_lag == {0: 1})
        assert watch.now.unfit == ()
        broker.delete(f"{prefix}.changes")
        await_true(lambda: missing() == {f"{prefix}.changes"})
        broker.delete(f"{prefix}.observations")
        await_true(lambda: missing() == {f"{prefix}.changes", f"{prefix}.observations"})
        assert watch.now.broker.holds
    finally:
        watch.close()
    told = said_by(watch, caplog)
    assert [each.split()[:2] for each in told if each.startswith("topic_missing")] == [
        ["topic_missing", f"topic={prefix}.changes"],
        ["topic_missing", f"topic={prefix}.observations"],
    ]
