"""Decisions to set something aside, or to take that back; how they are stored.

A decision is two records. What is decided is in partition 0 of `.manifests`, which a producer may not write:

    "quarantine/", a token of 16 random bytes  ->  CBOR, CRC-32C

The CBOR is, of a definition in `.schemas`,

    [offset, is_lifted, decided_at in milliseconds]

and of a damaged record, or batch of records (avro/quarantine.py)

    ["observations", "changes", "schemas", "manifests" or "deadletters", partition, offset, how many offsets,
     entity or "", is_lifted, decided_at in milliseconds]

Where it applies is in `.schemas`: a record with the header `refold-quarantine`, the token, written after the first one
shows. Its offset is the decision's place in the order of definitions. Of a definition, a cut before that place is
answered as it always was. A ruling on a record is a hole there, and applies to every cut, for whoever read as far.
Before the first one the key `format/set-aside` is written to `.manifests`: older releases refuse the log from then on.
Every reader decides alike. Each token counts once, and one without a decision is a hole.
"""

from __future__ import annotations

from typing import NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.avro.quarantine import Ruling, ruling_of
from refold.streams.checksum import sealed, unsealed

DECISION = b"quarantine/"
FORMAT = b"format/set-aside"
"""In `.manifests` before the first ruling on a record: older releases, which would need the record, refuse the log."""
HEADER = "refold-quarantine"
TOKEN_BYTES = 16
_VALUE_BYTES_MAX = 64
_RULING_BYTES_MAX = 4_096


class Decision(NamedTuple):
    """What was decided about the definition at an offset of `.schemas`; decided_at in milliseconds."""

    offset: int
    is_lifted: bool
    decided_at: int


def decision_key(token: bytes) -> bytes:
    """The key of a decision in `.manifests`."""
    return DECISION + token


def decision_value(decision: Decision | Ruling) -> bytes:
    """A decision's stored form."""
    return sealed(encode(list(decision)))


def decision_of(key: bytes, value: bytes) -> Decision | Ruling:
    """The decision behind its stored form; CorruptionError where it is none."""
    try:
        if len(key) != len(DECISION) + TOKEN_BYTES or len(value) > _RULING_BYTES_MAX:
            raise ValueError("its key or its value has another length")
        parts = cbor2.loads(unsealed(value, "it"))
        if not isinstance(parts, list) or len(parts) != len(Decision._fields):
            return ruling_of(parts)
        offset, is_lifted, decided_at = parts
        if len(value) > _VALUE_BYTES_MAX or type(offset) is not int:
            raise ValueError("it is not an offset")
        if type(is_lifted) is not bool or type(decided_at) is not int:
            raise TypeError("it is not a decision and time")
    except CorruptionError:
        raise
    except Exception as error:  # cbor2 raises whatever comes of odd bytes
        raise CorruptionError(f"a decision of quarantine cannot be read: {error}") from error
    return Decision(offset, is_lifted, decided_at)
