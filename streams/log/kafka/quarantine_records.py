"""The stored form of decisions to set something aside, or to restore it.

A decision is two records. The decision itself is in partition 0 of `.manifests`, to which a producer may not write:

    "quarantine/", a token of 16 random bytes  ->  CBOR, CRC-32C

The CBOR for a definition in `.schemas` is

    [offset, is_lifted, decided_at in milliseconds]

and for a damaged record, or batch of records (avro/quarantine.py)

    ["observations", "changes", "schemas", "manifests" or "deadletters", partition, offset, how many offsets,
     entity or "", is_lifted, decided_at in milliseconds]

The second record, in `.schemas`, says from where the decision applies: it has the header `refold-quarantine`, whose
value is the token, and is written once the first record is visible. Its offset is the decision's position in the order
of definitions. After a decision on a definition, a cut before that position is answered as before. A ruling on a record
is a hole at that position, and applies to every cut, for every reader that has read that far. Before the first ruling,
the key `format/set-aside` is written to `.manifests`: older releases refuse the log from then on. All readers reach the
same result. Each token counts once, and a token without a decision is a hole.
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
"""Key in `.manifests`, written before the first ruling on a record. Older releases, which would need the record, then
refuse the log."""
HEADER = "refold-quarantine"
TOKEN_BYTES = 16
_VALUE_BYTES_MAX = 64
_RULING_BYTES_MAX = 4_096


class Decision(NamedTuple):
    """A decision on the definition at an offset of `.schemas`; decided_at in milliseconds."""

    offset: int
    is_lifted: bool
    decided_at: int


def decision_key(token: bytes) -> bytes:
    """Return the key of a decision in `.manifests`."""
    return DECISION + token


def decision_value(decision: Decision | Ruling) -> bytes:
    """Encode a decision."""
    return sealed(encode(list(decision)))


def decision_of(key: bytes, value: bytes) -> Decision | Ruling:
    """Decode a decision.

    Raises:
        CorruptionError: the key and the value are not those of a decision.
    """
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
    except Exception as error:  # cbor2 raises arbitrary exceptions on malformed bytes
        raise CorruptionError(f"a decision of quarantine cannot be read: {error}") from error
    return Decision(offset, is_lifted, decided_at)
