"""Markers as they are stored beside the manifests, in every log.

"marker/" + name -> CBOR [cut, marked_at]

The name is text that can be printed, marked_at a time in milliseconds that a calendar has, and the value no more than
VALUE_BYTES_MAX. Anything else is no marker of refold's: it is passed over, and counted (LogPort.foreign).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import cbor2

from refold.avro.errors import CorruptionError, InputError
from refold.streams.log.port import Marked

MARKER = b"marker/"
VALUE_BYTES_MAX = 1 << 20
_END_MS = 253_402_300_800_000  # the year 10000


def marker_key(name: str) -> bytes:
    """Where a marker stands."""
    return MARKER + name.encode()


def marker_value(marked: Marked) -> bytes:
    """A marker's stored form."""
    return cbor2.dumps([marked.cut, marked.marked_at])


def marked_of(key: bytes, value: bytes) -> Marked:
    """The marker behind its stored form; CorruptionError where it is damaged."""
    name = key.removeprefix(MARKER)
    try:
        if len(value) > VALUE_BYTES_MAX:
            raise ValueError(f"it has {len(value):,} bytes")
        cut, marked_at = cbor2.loads(value)
        if not isinstance(cut, str) or type(marked_at) is not int or not 0 <= marked_at < _END_MS:
            raise TypeError("it is not a pair of a cut and a time")
        return Marked(name.decode(), cut, marked_at)
    except MemoryError:
        raise
    except Exception as error:  # cbor2 raises whatever comes of odd bytes
        raise CorruptionError(f"the log's marker {name!r:.80} cannot be read: {error}; run refold verify") from error


def oldest_first(rows: Iterable[tuple[bytes, bytes]]) -> list[Marked]:
    """The markers behind their stored forms; what is no marker is left out."""
    found = []
    for row in rows:
        with contextlib.suppress(CorruptionError):
            found.append(marked_of(*row))
    return sorted(found, key=lambda marked: (marked.marked_at, marked.name))


def taken(marked: Marked) -> InputError:
    """Another marker has its name."""
    return InputError(f"the marker {marked.name!r} exists; choose another name, or replace it with --replace")
