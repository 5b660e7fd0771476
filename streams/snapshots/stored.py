"""Pins and tombs as they are stored beside the manifests, in every log.

"pin/", the epoch's key    -> pinned_at u64, CRC-32C
"tomb/", the epoch's key   -> removed_at u64, the manifest that was there, CRC-32C
"""

from __future__ import annotations

import struct

from refold.avro.errors import CorruptionError
from refold.streams.checksum import sealed, unsealed
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import Pin, Tomb

PIN, TOMB = b"pin/", b"tomb/"
_U64 = struct.Struct(">Q")


def pin_value(pin: Pin) -> bytes:
    """A pin's stored form."""
    return sealed(_U64.pack(pin.pinned_at))


def tomb_value(tomb: Tomb) -> bytes:
    """A tomb's stored form."""
    return sealed(_U64.pack(tomb.removed_at) + tomb.data)


def pin_of(epoch: Epoch, value: bytes) -> Pin:
    """The pin behind its stored form; CorruptionError where it is damaged."""
    return Pin(epoch, _u64(unsealed(value, f"the pin of epoch {epoch}"), "a pin"))


def tomb_of(epoch: Epoch, value: bytes) -> Tomb:
    """The tomb behind its stored form; CorruptionError where it is damaged."""
    data = unsealed(value, f"the tomb of epoch {epoch}")
    return Tomb(epoch, _u64(data, "a tomb"), data[_U64.size :])


def _u64(value: bytes, what: str) -> int:
    try:
        number: int = _U64.unpack_from(value)[0]
    except struct.error as error:
        raise CorruptionError(f"{what} cannot be read ({value.hex()[:80]}): {error}") from error
    return number
