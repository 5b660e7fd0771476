"""Look-ups in tables as workers answer them over `/lookup/1`: CBOR of [name, arguments...], and CBOR of the answer.

    arrivals    partition, entity, start, end       [through, [[offset, recorded_at, q, retracts]]]
    records     partition, entity, [q]              [through, [[partition, offset, recorded_at, entity, id, data]]]
    checkpoint  partition, entity, end, definition  its key and value as they are stored (streams/table/keys.py)
    places      id                                  [[[partition, offset]], {partition: through}]
    rows        partition, after                    [[key, value]] of the states behind a key
    totals      partition                           [entities, observations]

Null: not here, or not folded here. `places` speaks of the partitions that are.
"""

from __future__ import annotations

from typing import Any

import cbor2

from refold.avro.errors import InputError, StorageError
from refold.streams.log.kafka.tables import Arrived, Held, Places
from refold.streams.log.port import Arrival, Record


def asked(content: bytes) -> tuple[str, list[Any]]:
    """The name and arguments in a question; InputError where it is none."""
    try:
        name, *arguments = cbor2.loads(content)
        return str(name), arguments
    except (cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise InputError(f"a look-up is the CBOR of its name and arguments; what came is not ({error})") from error


def arrived_of(tree: Any) -> Arrived | None:
    """The answer to `arrivals`."""
    return None if tree is None else Arrived(tree[0], [Arrival(*each) for each in tree[1]])


def held_of(tree: Any) -> Held | None:
    """The answer to `records`."""
    if tree is None:
        return None
    return Held(tree[0], [None if each is None else Record(*each) for each in tree[1]])


def places_of(tree: Any) -> Places:
    """The answer to `places`."""
    return Places([(partition, offset) for partition, offset in tree[0]], dict(tree[1]))


def read_answer(content: bytes, url: str) -> Any:
    """The tree behind an answer; StorageError where it is none."""
    try:
        return cbor2.loads(content)
    except (cbor2.CBORDecodeError, ValueError) as error:
        raise StorageError(f"{url}: what its worker answered cannot be read: {error}") from error
