"""CRC-32C at the end of stored values: it tells damage from what was written, and covers what no hash does.

A sealed value is the data and its CRC-32C (Castagnoli) as u32 big-endian.
"""

from __future__ import annotations

import google_crc32c

from refold.avro.errors import CorruptionError

CRC_BYTES = 4


def sealed(data: bytes) -> bytes:
    """The data with its checksum behind it."""
    return data + _checksum(data)


def unsealed(data: bytes, what: str) -> bytes:
    """The data in front of its checksum; CorruptionError, naming `what`, where the two do not match."""
    body = data[:-CRC_BYTES]
    if len(data) < CRC_BYTES or data[-CRC_BYTES:] != _checksum(body):
        raise CorruptionError(f"{what} is damaged: its checksum does not match; run refold verify")
    return body


def _checksum(data: bytes) -> bytes:
    number: int = google_crc32c.value(data)
    return number.to_bytes(CRC_BYTES, "big")
