"""CRC-32C at the end of stored values, to detect damage of data that no hash covers.

A sealed value is the data and its CRC-32C (Castagnoli) as u32 big-endian.
"""

from __future__ import annotations

import google_crc32c

from refold.avro.errors import CorruptionError

CRC_BYTES = 4


def sealed(data: bytes) -> bytes:
    """Return the data with its checksum appended."""
    return data + _checksum(data)


def unsealed(data: bytes, what: str) -> bytes:
    """Check data that ends with a checksum.

    Args:
        data: The data.
        what: What it is, for the error.

    Returns:
        The data before the checksum.

    Raises:
        CorruptionError: The checksum does not match.
    """
    body = data[:-CRC_BYTES]
    if len(data) < CRC_BYTES or data[-CRC_BYTES:] != _checksum(body):
        raise CorruptionError(f"{what} is damaged: its checksum does not match; run refold verify")
    return body


def _checksum(data: bytes) -> bytes:
    number: int = google_crc32c.value(data)
    return number.to_bytes(CRC_BYTES, "big")
