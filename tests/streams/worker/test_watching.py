"""The thread that asks the brokers survives whatever it meets, and its answers do not go stale."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from refold.streams.log.kafka.topics import Topics
from refold.streams.log.kafka.url import parse_url
from refold.streams.worker.watching import Watch
from refold_tests.waiting import await_true


class Broken:
    """Clients whose one admin client raises what no client should; it knows nothing but topics."""

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
def watching(clients: Any) -> Iterator[Watch]:
    watch = Watch(clients, Topics("shop"), parse_url("kafka://nowhere:1/shop"), 1, lambda: 0)
    try:
        yield watch
    finally:
        watch.close()


def test_it_survives_what_nobody_foresaw(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "refold.streams.worker.watching")
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
    told = [each.getMessage() for each in caplog.records]
    assert sum("asked=brokers " in each for each in told) == 1, told
    # The fake has neither offsets nor settings: that is no outage.
    assert sum("asked=group_and_settings " in each for each in told) == 1, told
