"""The log that workers fold in these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from refold.streams.log.kafka.log import KafkaLog
from refold.testing.kafka import Kafka
from refold_tests.brokers import SharedKafka, started
from refold_tests.folding import opened, url_of
from refold_tests.sample_types import THING


@pytest.fixture
def partitions() -> int:
    """How many the log has, where a test file does not say otherwise."""
    return 2


@pytest.fixture
def log(kafka: SharedKafka, prefix: str, partitions: int) -> Iterator[KafkaLog]:
    """A log of this test's own that takes THING, open as a client has it."""
    with opened(url_of(kafka.bootstrap, prefix, partitions)) as found:
        found.register(THING)
        yield found


@pytest.fixture(scope="session")
def rotting() -> Iterator[Kafka]:
    """A broker whose files tests damage: each test those of its own log."""
    with started() as kafka:
        yield kafka
