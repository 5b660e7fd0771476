"""Apache Kafka for tests and trials: downloaded from Maven Central, runs on Java 17 or newer, starts in seconds.

from refold.testing.kafka import start_kafka

with start_kafka() as kafka:                # nodes=3; port=, data= to keep it
    log = refold.open(f"kafka://{kafka.bootstrap}/agents")

`python -m refold.testing.kafka` (`make kafka`) runs one in the foreground.
"""

from __future__ import annotations

from refold.testing.kafka.cluster import Kafka, start_kafka
from refold.testing.kafka.jars import KAFKA_VERSION, missing
from refold.testing.processes import ServerFailed, ServerMissing

__all__ = ["KAFKA_VERSION", "Kafka", "ServerFailed", "ServerMissing", "missing", "start_kafka"]
