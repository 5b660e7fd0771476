"""Bytes of a broker's own files changed under it, as a disk loses them: what was recorded reads as something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.streams.log.kafka.clients import Clients
from refold.testing.kafka import Kafka


def without_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have producers of this process write records whose bytes can be found on the disk."""
    made = Clients.producer

    def producer(clients: Clients, **more: Any) -> Any:
        return made(clients, **{**more, "compression.type": "none"})

    monkeypatch.setattr(Clients, "producer", producer)


class Rot(NamedTuple):
    """One damaged record: where its bytes are, and what they were."""

    path: Path
    at: int
    before: bytes

    def heal(self) -> None:
        """Put them back."""
        _write(self.path, self.at, self.before)


def rot(kafka: Kafka, topic: str, partition: int, value: bytes, damaged: bytes) -> Rot:
    """Replace the one occurrence of a record's value in a partition's files by as many other bytes."""
    assert len(value) == len(damaged)
    found = []
    for path in sorted(kafka.folder.glob(f"node*/**/{topic}-{partition}/*.log")):
        data = path.read_bytes()
        at = data.find(value)
        while at >= 0:
            found.append(Rot(path, at, value))
            at = data.find(value, at + 1)
    (only,) = found
    _write(only.path, only.at, damaged)
    return only


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
