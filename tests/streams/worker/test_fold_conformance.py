"""A log on Kafka with a worker that answers over its pages: the whole conformance suite."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from refold.avro.definition import TypeDefinition
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.kafka.worker_client import WorkerFolding, Workers, WorkerTables
from refold.streams.log.port import AppendedObservation
from refold_tests.brokers import SharedKafka
from refold_tests.folding import PATIENCE_S
from refold_tests.log_conformance import FoldedLogConformance
from refold_tests.log_handles import PARTITIONS, Handles, Opened
from refold_tests.worker_pages import worker_with_pages

pytestmark = pytest.mark.timeout(300)


class AwaitingLog(KafkaLog):
    """A log whose writes return once they are folded and their changes can be read, as for an embedded log."""

    is_awaited = True

    def append_encoded(self, observations: Sequence[AppendedObservation]) -> None:
        super().append_encoded(observations)
        self.is_awaited = False

    def flush(self) -> None:
        super().flush()
        if not self.is_awaited:
            self.is_awaited = True
            self.await_folded()

    def register(self, definition: TypeDefinition) -> None:
        super().register(definition)
        self.await_folded()


class BesideWorker(Opened):
    """Written and read by one client, with a running worker."""

    has_workers = True

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder

    @contextlib.contextmanager
    def __call__(self) -> Iterator[Handles]:
        with worker_with_pages(self.url, self.folder / "tables"):
            address = parse_url(self.url)
            workers = Workers(address, None)
            log = AwaitingLog(address, tables=WorkerTables(workers), folding=WorkerFolding(workers, PATIENCE_S))
            workers.log_id = log.log_id
            with contextlib.closing(log):
                yield Handles(log, log)


class TestBesideWorker(FoldedLogConformance):
    @pytest.fixture
    def opened(self, kafka: SharedKafka, prefix: str, tmp_path: Path) -> Opened:
        blobs = (tmp_path / "blobs").as_uri()
        return BesideWorker(f"kafka://{kafka.bootstrap}/{prefix}?partitions={PARTITIONS}&blobs={blobs}", tmp_path)
