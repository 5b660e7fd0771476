"""CBOR and Kafka records: trees that contain bytes, changed and written as a foreign program could."""

from __future__ import annotations

import random
from typing import Any

import cbor2

from refold.streams.log.kafka.range_reader import RawRecord
from refold_tests.fuzz import mutate

ODD: tuple[Any, ...] = (
    b"", b"\0" * 32, b"\0\0\0\0\1abc", b"\xff" * 16, b"x" * 70_000, float("nan"), float("inf"), 2**64 - 1, -(2**64),
    cbor2.undefined, cbor2.CBORTag(28, [1]), cbor2.CBORTag(35, "(a+)+$"), cbor2.CBORTag(999, {}),
    cbor2.CBORTag(2, b"1"), cbor2.CBORTag(0, "2026-01-01T00:00:00Z"), cbor2.CBORTag(258, [1, [2]]),
    cbor2.CBORTag(30, [1, 0]), {1: 2},
    {b"k": b"v"}, cbor2.CBORSimpleValue(99),
)  # fmt: skip
"""Values that CBOR has and JSON lacks."""
RAW = (
    b"\x81" * 300 + b"\x01", b"\x81" * 100_000, b"\xd8\x1c\x81\xd8\x1d\x00", b"\x5b" + b"\xff" * 8,
    b"\x9b" + b"\xff" * 8, b"\xbb" + b"\x7f" * 8, b"\x9f", b"\xbf\x01", b"\x7f\x61a\x41b\xff", b"\xff",
    b"\xfb\x7f\xf0", b"\xa2\x01\x01\x01\x02",
    b"\xd9\xd9\xf7" * 200 + b"\x00", b"\xc2\x5a\x00\x10\x00\x00" + b"\xff" * 1000,
)  # fmt: skip
"""Bytes that no encoder writes: incomplete items, huge lengths, cycles, duplicate keys."""


def changed(chance: random.Random, tree: Any, donors: tuple[Any, ...] = ()) -> Any:
    """Return a tree with one to three changes. Bytes in it are damaged or replaced too."""
    if isinstance(tree, bytes):
        return mutate.damaged(chance, tree) if chance.random() < 0.7 else chance.choice(ODD)
    try:
        tree = mutate.mutated(chance, tree, donors)
    except RecursionError:  # the deepest trees, copied
        return chance.choice(ODD)
    found = mutate.places(tree)
    if found and chance.random() < 0.3:
        holder, key = chance.choice(found)
        holder[key] = chance.choice(ODD)
    held = [(holder, key) for holder, key in found if isinstance(holder[key], bytes)] if chance.random() < 0.4 else []
    if held:
        holder, key = chance.choice(held)
        holder[key] = mutate.damaged(chance, holder[key])
    return tree


def cbor(chance: random.Random, tree: Any) -> bytes:
    """Return a tree as CBOR, sometimes damaged, tagged, or something else."""
    what = chance.random()
    if what < 0.04:
        return chance.choice(RAW)
    try:
        data = cbor2.dumps(cbor2.CBORTag(chance.choice((0, 2, 28, 35, 55799)), tree) if what < 0.08 else tree)
    except (cbor2.CBOREncodeError, UnicodeError, RecursionError):  # a lone surrogate
        data = cbor2.dumps(repr(tree)[:1000].encode(errors="replace"))
    return mutate.damaged(chance, data) if what > 0.85 else data


def record(chance: random.Random, raw: RawRecord) -> RawRecord:
    """Return a Kafka record with a changed part, sometimes as no release of refold wrote it."""
    key, value, headers = raw.key, raw.value, list(raw.headers)
    what = chance.randrange(8)
    if what == 0:
        key = chance.choice((None, b"", b"\xff", mutate.damaged(chance, key or b"k")))
    elif what == 1 and headers:
        at = chance.randrange(len(headers))
        name, given = headers[at]
        given = given if isinstance(given, bytes) else b""
        headers[at] = (name, chance.choice((None, b"", mutate.damaged(chance, given), given + b"\0")))
    elif what == 2 and headers:
        del headers[chance.randrange(len(headers))]
    elif what == 3 and headers:
        headers.insert(0, chance.choice(headers))
    elif what == 4:
        headers.append((chance.choice(("", "refold-id", "refold-newer", "x" * 300)), b"\xff"))
    else:
        value = chance.choice((None, b"", mutate.damaged(chance, value or b"v"), mutate.damaged(chance, value or b"v")))
    return raw._replace(key=key, value=value, headers=headers)


def packed(raw: RawRecord) -> bytes:
    """Return a record as bytes, for a file."""
    return cbor2.dumps([raw.key, raw.value, [list(each) for each in raw.headers]])


def unpacked(data: bytes) -> RawRecord:
    """Return the record from its bytes."""
    key, value, headers = cbor2.loads(data)
    return RawRecord(5, 1_767_225_600_000, key, value, [(name, given) for name, given in headers])
