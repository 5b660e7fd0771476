"""The Kafka broker of the test run (servers.py). If KAFKA_BOOTSTRAP names a running one, tests that share a broker
use it.
"""

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
    """The broker of the test run, as a test uses it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def client_config(self) -> dict[str, Any]:
        """Return the settings with which confluent-kafka's clients connect, as a new dictionary."""
        return {"bootstrap.servers": self.bootstrap}

    def delete_topics(self, prefix: str) -> None:
        """Delete every topic whose name begins with `prefix`."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        admin = AdminClient(self.client_config())
        topics = [name for name in admin.list_topics(timeout=30).topics if name.startswith(prefix)]
        for done in admin.delete_topics(topics).values() if topics else ():
            try:
                done.result()
            except KafkaException as error:
                # The test itself has just deleted it.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise


def start() -> Started:
    """Start the broker of the test run, for `servers.own`."""
    kafka = start_kafka()
    return Started(kafka, kafka.bootstrap)


def started(**how: Any) -> Kafka:
    """Call start_kafka for a test. If its requirements are missing, the test is skipped; in CI it fails."""
    try:
        return start_kafka(**how)
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def shared(owner: Owner | None) -> SharedKafka:
    """Return the broker of the test run, starting it if necessary. Without Java or Maven the test is skipped; in CI
    it fails.
    """
    if given := os.environ.get(GIVEN):
        return SharedKafka(given)
    try:
        return SharedKafka(servers.address_of(owner, "kafka"))
    except ServerMissing as error:
        without(f"{NEEDS}{error}")


def require(item: pytest.Item) -> None:
    """End a test that needs a broker if none is available."""
    names = getattr(item, "fixturenames", ())
    if GIVEN in os.environ and "kafka" in names and "kafka_cluster" not in names:
        return
    if (reason := missing()) is not None:
        without(f"{NEEDS}{reason}")
