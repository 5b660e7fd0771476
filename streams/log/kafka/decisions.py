"""Decisions to set a definition in `.schemas` aside, or to take it back; how they are stored.

A decision is two records. What is decided is in partition 0 of `.manifests`, which a producer may not write:

    "quarantine/", a token of 16 random bytes  ->  CBOR [offset, is_lifted, decided_at in milliseconds], CRC-32C

Where it applies is in `.schemas`: a record with the header `refold-quarantine`, the token, written after the first one
shows. Its offset is the decision's place in the order of definitions. So a cut before that place is answered as it
always was, and every reader decides alike. Each token counts once, and one without a decision is a hole.
"""

from __future__ import annotations

from typing import NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError
from refold.streams.checksum import sealed, unsealed

DECISION = b"quarantine/"
HEADER = "refold-quarantine"
TOKEN_BYTES = 16
_VALUE_BYTES_MAX = 64


class Decision(NamedTuple):
    """What was decided about the definition at an offset of `.schemas`; decided_at in milliseconds."""

    offset: int
    is_lifted: bool
    decided_at: int


def decision_key(token: bytes) -> bytes:
    """The key of a decision in `.manifests`."""
    return DECISION + token


def decision_value(decision: Decision) -> bytes:
    """A decision's stored form."""
    return sealed(encode(list(decision)))


def decision_of(key: bytes, value: bytes) -> Decision:
    """The decision behind its stored form; CorruptionError where it is none."""
    try:
        if len(key) != len(DECISION) + TOKEN_BYTES or len(value) > _VALUE_BYTES_MAX:
            raise ValueError("its key or its value has another length")
        offset, is_lifted, decided_at = cbor2.loads(unsealed(value, "it"))
        if type(offset) is not int or type(is_lifted) is not bool or type(decided_at) is not int:
            raise TypeError("it is no offset, decision and time")
    except CorruptionError:
        raise
    except Exception as error:  # cbor2 raises whatever comes of odd bytes
        raise CorruptionError(f"a decision of quarantine cannot be read: {error}") from error
    return Decision(offset, is_lifted, decided_at)
