"""Damages bytes in a broker's own files while it runs, as a failing disk does: records are then read with other
content.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import pytest

from refold.streams.log.kafka.clients import Clients
from refold.testing.kafka import Kafka

_HEADER_BYTES = 61


def without_compression(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make producers of this process write uncompressed records, so that their bytes can be found on the disk."""
    made = Clients.producer

    def producer(clients: Clients, **more: Any) -> Any:
        return made(clients, **{**more, "compression.type": "none"})

    monkeypatch.setattr(Clients, "producer", producer)


class Rot(NamedTuple):
    """One damaged record: the position of its bytes, and the original bytes."""

    path: Path
    at: int
    before: bytes

    def heal(self) -> None:
        """Restore the original bytes."""
        _write(self.path, self.at, self.before)
        _match_checksum(self.path, self.at)


def rot(kafka: Kafka, topic: str, partition: int, value: bytes, damaged: bytes) -> Rot:
    """Replace the only occurrence of a record's value in a partition's files by other bytes of the same length.

    The checksum of the batch is updated to match, as if the damage had happened before the write. So one record is
    damaged.
    """
    assert len(value) == len(damaged)
    found = []
    for path in _files(kafka, topic, partition):
        data = path.read_bytes()
        at = data.find(value)
        while at >= 0:
            found.append(Rot(path, at, value))
            at = data.find(value, at + 1)
    (only,) = found
    _write(only.path, only.at, damaged)
    _match_checksum(only.path, only.at)
    return only


class BatchRot(NamedTuple):
    """One damaged batch: its position, its offsets, and its original bytes."""

    path: Path
    at: int
    before: bytes
    first: int
    last: int

    def heal(self) -> None:
        """Restore the original bytes."""
        _write(self.path, self.at, self.before)


def rot_batch(kafka: Kafka, topic: str, partition: int, offset: int, *, keeps_crc: bool = False) -> BatchRot:
    """Damage the packed records of the batch that contains an offset, so that they cannot be unpacked.

    keeps_crc: whether the batch's checksum is updated to match the damaged bytes.
    """
    batch = batch_of(kafka, topic, partition, offset)
    damaged = batch.before[:_HEADER_BYTES] + b"\xff" * (len(batch.before) - _HEADER_BYTES)
    _write(batch.path, batch.at, _with_checksum(damaged) if keeps_crc else damaged)
    return batch


def rot_length(kafka: Kafka, topic: str, partition: int, offset: int) -> BatchRot:
    """Damage the length of the last record but one in the uncompressed batch that contains an offset.

    The returned batch begins at that record: the records before it are intact.
    """
    batch = batch_of(kafka, topic, partition, offset)
    wounded = max(batch.first, batch.last - 1)
    at = _HEADER_BYTES
    for _ in range(wounded - batch.first):
        length, at = _varint(batch.before, at)
        at += length
    _, end = _varint(batch.before, at)
    damaged = bytearray(batch.before)
    damaged[at:end] = b"\xff" * (end - at - 1) + b"\x7e"
    assert damaged != batch.before
    _write(batch.path, batch.at, bytes(damaged))
    return batch._replace(first=wounded)


def _files(kafka: Kafka, topic: str, partition: int) -> list[Path]:
    return sorted(kafka.folder.glob(f"node*/**/{topic}-{partition}/*.log"))


def _batches(path: Path) -> Iterator[BatchRot]:
    """Yield the complete batches of a file."""
    data = path.read_bytes()
    at = 0
    while at + _HEADER_BYTES < len(data):
        first, length, last_delta = *struct.unpack_from(">qi", data, at), *struct.unpack_from(">i", data, at + 23)
        if length <= 0:
            return
        batch = data[at : at + 12 + length]
        yield BatchRot(path, at, batch, first, first + last_delta)
        at += len(batch)


def batch_of(kafka: Kafka, topic: str, partition: int, offset: int) -> BatchRot:
    """Return the batch that contains an offset, unchanged."""
    for path in _files(kafka, topic, partition):
        for batch in _batches(path):
            if batch.first <= offset <= batch.last:
                return batch
    raise AssertionError(f"no batch of {topic}-{partition} has the offset {offset}")


def _match_checksum(path: Path, at: int) -> None:
    """Update the checksum of the batch that encloses a position to match its bytes."""
    (batch,) = [each for each in _batches(path) if each.at <= at < each.at + len(each.before)]
    _write(path, batch.at, _with_checksum(batch.before))


def _with_checksum(batch: bytes) -> bytes:
    crc: int = google_crc32c.value(batch[21:])
    return batch[:17] + crc.to_bytes(4, "big") + batch[21:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a record's length at a position, and the position after it."""
    raw = shift = 0
    while True:
        raw |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return (raw >> 1) ^ -(raw & 1), at


def _write(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)
