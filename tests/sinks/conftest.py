"""The logs that sinks follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from refold.testing.sinks import ServedConformance, SinkConformance
from refold_tests.brokers import SharedKafka
from refold_tests.sink_logs import FileSinkLog, KafkaSinkLog, SinkLog

# The suite is public, and knows no markers of these tests.
for test in (
    SinkConformance.test_kill_at_any_moment_loses_nothing,
    ServedConformance.test_store_killed_at_any_moment_loses_nothing,
):
    pytest.mark.faults(test)


@pytest.fixture
def file_log(tmp_path: Path) -> Iterator[SinkLog]:
    """An embedded log."""
    with ExitStack() as ending:
        yield FileSinkLog(tmp_path, ending)


@pytest.fixture
def kafka_log(kafka: SharedKafka, prefix: str, tmp_path: Path) -> Iterator[SinkLog]:
    """A log on Kafka, with its worker."""
    with ExitStack() as ending:
        yield KafkaSinkLog(kafka.bootstrap, prefix, tmp_path, ending)
