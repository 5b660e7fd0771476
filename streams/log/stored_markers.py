"""The stored form of markers, which are next to the manifests in every log.

"marker/" + name -> CBOR [cut, marked_at]

The name is printable text, marked_at a valid time in milliseconds since 1970, and the value has at most VALUE_BYTES_MAX
bytes. Anything else was not written by refold: it is skipped and counted (LogPort.foreign).
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
    """Return the key of a marker."""
    return MARKER + name.encode()


def marker_value(marked: Marked) -> bytes:
    """Encode a marker."""
    return cbor2.dumps([marked.cut, marked.marked_at])


def marked_of(key: bytes, value: bytes) -> Marked:
    """Decode a marker.

    Raises:
        CorruptionError: It is damaged.
    """
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
    except Exception as error:  # cbor2 raises various exceptions for invalid bytes
        raise CorruptionError(f"the log's marker {name!r:.80} cannot be read: {error}; run refold verify") from error


def oldest_first(rows: Iterable[tuple[bytes, bytes]]) -> list[Marked]:
    """Decode markers and sort them, oldest first; rows that are not markers are skipped."""
    found = []
    for row in rows:
        with contextlib.suppress(CorruptionError):
            found.append(marked_of(*row))
    return sorted(found, key=lambda marked: (marked.marked_at, marked.name))


def marker_exists(marked: Marked) -> InputError:
    """The error for a name that another marker has."""
    return InputError(f"the marker {marked.name!r} exists; choose another name, or replace it with --replace")
