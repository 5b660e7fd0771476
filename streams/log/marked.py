"""Markers as they are stored beside the manifests, in every log.

"marker/" + name -> CBOR [cut, marked_at]
"""

from __future__ import annotations

from collections.abc import Iterable

import cbor2

from refold.avro.errors import CorruptionError, InputError
from refold.streams.log.port import Marked

MARKER = b"marker/"


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
        cut, marked_at = cbor2.loads(value)
        return Marked(name.decode(), cut, marked_at)
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise CorruptionError(f"the log's marker {name!r} cannot be read: {error}; run refold verify") from error


def oldest_first(rows: Iterable[tuple[bytes, bytes]]) -> list[Marked]:
    """The markers behind their stored forms."""
    return sorted((marked_of(*row) for row in rows), key=lambda marked: (marked.marked_at, marked.name))


def taken(marked: Marked) -> InputError:
    """Another marker has its name."""
    return InputError(f"the marker {marked.name!r} exists; choose another name, or replace it with --replace")
