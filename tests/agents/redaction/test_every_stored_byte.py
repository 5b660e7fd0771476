"""A run has secrets in every place that accepts text: none of them is in any stored byte, on either kind of log.

Nothing is sealed here, so that redaction is what is tested. Without a redactor the same search finds each secret, so a
place that the search does not cover would fail that test.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

import refold
from refold.agents.redaction.redactor import Redactor
from refold.streams.log.kafka.offsets import KafkaPartition
from refold_tests.kafka_topics import TIMEOUT_S, Broker
from refold_tests.leaky_agent import Planted, run_leaky

Stored = Callable[[], Iterator[bytes]]


@pytest.fixture(autouse=True)
def in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KEYS", "none")
    monkeypatch.setenv("REFOLD_REDACTION_KEY", "0f" * 32)


@pytest.fixture(params=["file", pytest.param("kafka", marks=pytest.mark.kafka)])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Stored]:
    """Return a log's URL, and a function that returns everything that it stores."""
    if request.param == "file":
        return f"file:{tmp_path / 'log'}", lambda: chain(in_files(tmp_path), in_records(tmp_path / "log"))
    broker: Broker = request.getfixturevalue("broker")
    url = f"kafka://{broker.bootstrap}/{broker.prefix}"
    return url, lambda: chain(in_files(tmp_path), in_topics(broker))


def in_files(folder: Path) -> Iterator[bytes]:
    """Yield all files: RocksDB's, and the contents next to them, also decompressed."""
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            yield data
            for start in (0, 1):
                try:
                    yield zlib.decompress(data[start:])
                except zlib.error:
                    continue


def in_records(folder: Path) -> Iterator[bytes]:
    """Yield all records, because RocksDB may compress what it writes."""
    with refold.open(f"file:{folder}", read_only=True) as log:
        port = log.port
        for partition, end in port.ends().items():
            yield from (record.data for record in port.read(partition, 0, end))


def in_topics(broker: Broker) -> Iterator[bytes]:
    """Yield all records of all topics, with their keys and headers."""
    topics = broker.admin.list_topics(timeout=TIMEOUT_S).topics
    names = [each for each in topics if each.startswith(f"{broker.prefix}.")]
    assert len(names) >= 5
    with broker.reading() as reading:
        for place in [KafkaPartition(name, partition) for name in names for partition in topics[name].partitions]:
            for record in reading.records(place, 0, broker.end(place)):
                yield b"\0".join([record.key or b"", record.value or b"", repr(record.headers).encode()])


def stored_places(planted: Planted, stored: Stored) -> set[str]:
    """Return the places whose secrets are stored."""
    chunks = list(stored())
    assert chunks
    return {place for place, secret in planted.secrets.items() if any(secret.encode() in each for each in chunks)}


def test_no_secret_is_stored(stored: tuple[str, Stored]) -> None:
    url, chunks = stored
    planted = Planted()
    with refold.open(url) as log:
        run = run_leaky(log, planted, Redactor())
        log.flush()
        recording = log.recording(run)
    assert len(planted.secrets) > 60
    assert stored_places(planted, chunks) == set()
    assert recording.input["password"].startswith("[secret:")
    assert recording.outcome == "succeeded"


def test_search_finds_every_secret_without_a_redactor(stored: tuple[str, Stored]) -> None:
    url, chunks = stored
    planted = Planted()
    with refold.open(url) as log:
        run_leaky(log, planted, None)
        log.flush()
    assert set(planted.secrets) - stored_places(planted, chunks) == set()
