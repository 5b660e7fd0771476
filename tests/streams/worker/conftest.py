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
    """The log's number of partitions, unless a test file overrides it."""
    return 2


@pytest.fixture
def log(kafka: SharedKafka, prefix: str, partitions: int) -> Iterator[KafkaLog]:
    """A separate log for this test that accepts THING, opened by a client."""
    with opened(url_of(kafka.bootstrap, prefix, partitions)) as found:
        found.register(THING)
        yield found


# Not of the session: an idle broker takes 2 CPU seconds a minute until the end of the run.
@pytest.fixture(scope="module")
def rotting() -> Iterator[Kafka]:
    """A broker whose files tests damage; each test damages only its own log's files."""
    with started() as kafka:
        yield kafka
