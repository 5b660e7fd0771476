"""The logs that sinks follow."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from refold_tests.brokers import SharedKafka
from refold_tests.sink_logs import FileSinkLog, KafkaSinkLog, SinkLog


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
