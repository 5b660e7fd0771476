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

from collections.abc import Callable
from typing import Any

import cbor2

from refold.avro.envelope import NAME_BYTES_MAX
from refold.avro.errors import InputError, StorageError
from refold.avro.observation import ID_BYTES
from refold.streams.log.kafka.tables import Arrived, Held, Places
from refold.streams.log.port import Arrival, Record
from refold.streams.web.content import cbor_list

Q_BYTES_MAX = 4 << 10


def _is_whole(given: object) -> bool:
    return type(given) is int and 0 <= given < 2**63


def _is_partition(given: object) -> bool:
    return type(given) is int and 0 <= given < 2**31


def _is_entity(given: object) -> bool:
    return isinstance(given, str) and len(given) <= NAME_BYTES_MAX


def _is_key(given: object) -> bool:
    return isinstance(given, bytes) and len(given) <= Q_BYTES_MAX


def _are_keys(given: object) -> bool:
    return isinstance(given, list) and all(map(_is_key, given))


def _is_id(given: object) -> bool:
    return isinstance(given, bytes) and len(given) == ID_BYTES


_ARGUMENTS: dict[str, tuple[Callable[[object], bool], ...]] = {
    "arrivals": (_is_partition, _is_entity, _is_whole, _is_whole),
    "records": (_is_partition, _is_entity, _are_keys),
    "checkpoint": (_is_partition, _is_entity, _is_whole, _is_whole),
    "places": (_is_id,),
    "rows": (_is_partition, _is_key),
    "totals": (_is_partition,),
}


def asked(content: bytes) -> tuple[str, list[Any]]:
    """The name and arguments in a question; InputError where it is none, or one of them is not of its kind."""
    name, *arguments = cbor_list(content) or [None]
    checks = _ARGUMENTS.get(name) if isinstance(name, str) else None
    if checks is None:
        raise InputError(f"the look-up {name!r:.40} is not known to this release")
    if len(arguments) != len(checks) or not all(check(each) for check, each in zip(checks, arguments, strict=True)):
        raise InputError(f"the look-up {name} was not asked in the form that this release knows")
    return str(name), arguments


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
