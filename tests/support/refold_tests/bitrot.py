"""Bytes of a broker's own files changed under it, as a disk loses them: what was recorded reads as something else."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest

from refold.streams.log.kafka.clients import Clients
from refold.testing.kafka import Kafka

_HEADER_BYTES = 61


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


class BatchRot(NamedTuple):
    """One damaged batch: where it is, the offsets it had, and what its bytes were."""

    path: Path
    at: int
    before: bytes
    first: int
    last: int

    def heal(self) -> None:
        """Put them back."""
        _write(self.path, self.at, self.before)


def rot_batch(kafka: Kafka, topic: str, partition: int, offset: int, *, keeps_crc: bool = False) -> BatchRot:
    """Damage the packed records of the batch that has an offset, so that nobody can unpack them.

    keeps_crc: whether the batch's checksum is made to match what is there now.
    """
    for path in sorted(kafka.folder.glob(f"node*/**/{topic}-{partition}/*.log")):
        data = path.read_bytes()
        at = 0
        while at + _HEADER_BYTES < len(data):
            first, length, last_delta = *struct.unpack_from(">qi", data, at), *struct.unpack_from(">i", data, at + 23)
            if length <= 0:
                break
            batch = data[at : at + 12 + length]
            if first <= offset <= first + last_delta:
                damaged = bytearray(batch)
                damaged[_HEADER_BYTES:] = b"\xff" * (len(batch) - _HEADER_BYTES)
                if keeps_crc:
                    damaged[17:21] = google_crc32c.value(bytes(damaged[21:])).to_bytes(4, "big")
                _write(path, at, bytes(damaged))
                return BatchRot(path, at, batch, first, first + last_delta)
            at += len(batch)
    raise AssertionError(f"no batch of {topic}-{partition} has the offset {offset}")
