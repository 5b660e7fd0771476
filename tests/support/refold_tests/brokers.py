"""The run's Kafka (servers.py). KAFKA_BOOTSTRAP names one that runs already: then tests that share one use that."""

from __future__ import annotations

import os
from typing import Any

import pytest

from refold.testing.kafka import Kafka, missing, start_kafka
from refold.testing.processes import ServerMissing
from refold_tests import servers
from refold_tests.absent import without
from refold_tests.servers import Owner, Started

GIVEN = "KAFKA_BOOTSTRAP"
NEEDS = "needs a Kafka broker: "


class SharedKafka:
    """The run's broker, as a test sees it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def client_config(self) -> dict[str, Any]:
        """What confluent-kafka's clients need to connect; a copy of one's own."""
        return {"bootstrap.servers": self.bootstrap}

    def delete_topics(self, prefix: str) -> None:
        """Every topic whose name begins so."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client_config())
        topics = [name for name in admin.list_topics(timeout=30).topics if name.startswith(prefix)]
        for done in admin.delete_topics(topics).values() if topics else ():
            try:
                done.result()
            except KafkaException as error:
                # The test itself deleted it a moment ago.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise


def start() -> Started:
    """The run's broker, for `servers.own`."""
    kafka = start_kafka()
    return Started(kafka, kafka.bootstrap)


def started(**how: Any) -> Kafka:
    """start_kafka for a test; without what it takes the test is skipped, in CI failed."""
    try:
        return start_kafka(**how)
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def shared(owner: Owner | None) -> SharedKafka:
    """The run's broker, started if need be; without Java or Maven the test is skipped, in CI failed."""
    if given := os.environ.get(GIVEN):
        return SharedKafka(given)
    try:
        return SharedKafka(servers.address_of(owner, "kafka"))
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def require(item: pytest.Item) -> None:
    """Ends a test that needs a broker where none can be had."""
    names = getattr(item, "fixturenames", ())
    if GIVEN in os.environ and "kafka" in names and "kafka_cluster" not in names:
        return
    if (reason := missing()) is not None:
        without(f"{NEEDS}{reason}")
