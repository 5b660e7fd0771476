"""Records that refold did not write, for each topic of a log on Kafka: obvious ones, and almost valid ones."""

from __future__ import annotations

import json
import random
from typing import NamedTuple

import cbor2

from refold.streams.log.kafka.fold_position import TAKEN, THROUGH, PartitionPoint
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.manifests import MARKERS
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import Headers
from refold.streams.log.kafka.schemas import BOUND, EMBEDDED, ID_SPACE, IDS, VALUE_BYTES_MAX
from refold.streams.log.stored_markers import MARKER, marker_key
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.store import PIN, TOMB

PLAIN = b"a stranger's"
GONE = Epoch(0, 1 << 40, 1)
NAMED = "kept"
"""A marker that tests set, and that junk is written over."""


class Junk(NamedTuple):
    """A foreign record."""

    key: bytes | None
    value: bytes | None
    headers: Headers = []  # noqa: RUF012  # a named tuple's default, which nobody alters


def unreadable_definitions() -> list[Junk]:
    """Return records of `.schemas` that no reader may accept as definitions, whatever they claim."""
    values = [
        b"{}", b"[]", b"null", b"", PLAIN, b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b'"' * 70_001,
        b'"' + b'\\"' * 100_000, b'{"type": "record"}', b'{"type": "record", "name": "x", "fields": [[]]}',
        b'{"type": "record", "name": "x", "fields": 7}', b'{"type": "record", "name": [], "fields": []}',
        b'{"type": "record", "name": "x", "fields": [], "doc": "\\ud800"}',
        b'{"type": "record", "name": "x", "fields": [], "refold.newer": true}',
        b'{"type": "record", "name": "x", "fields": [{"name": "a", "type": "nothing", "refold.reducer": "latest"}]}',
        b'{"type": "record", "name": "x", "fields": [{"name": "a", "type": {"type": "array", "items": "long"}, '
        b'"refold.reducer": "append", "refold.limit": ' + b"9" * 5_000 + b"}]}",
        b'{"type": "record", "name": "x", "fields": [{"name": "a", "type": "long", "refold.reducer": "latest", '
        b'"refold.inline": NaN}]}',
        b" " * (VALUE_BYTES_MAX + 1),
    ]  # fmt: skip
    readable = (
        b'{"type": "record", "name": "xs", "fields": [{"name": "a", "type": "long", "refold.reducer": "latest"}]}'
    )
    odd: list[object] = [-1, "x", 1 << 40, True, []]
    trees: list[object] = [
        {}, [1, 2, 3], {"observation": 1, "change": 2},
        *({"change": each, "observation": 1, "state": 3} for each in odd),
        {"change": 2, "observation": 1, "state": 3, "newer": 4},
    ]  # fmt: skip
    ids = [b"", b"x", b"\x81" * 60, b"\x5b" + b"\xff" * 8, *map(cbor2.dumps, trees)]
    spaces = (b"", b"newer", b"x" * 10_000)
    return [
        Junk(None, PLAIN),
        Junk(None, None),
        Junk(b"key", readable),
        *(Junk(None, value, [(ID_SPACE, EMBEDDED)]) for value in values),
        *(Junk(None, value, [(ID_SPACE, space)]) for space in spaces for value in (b"{}", readable)),
        Junk(None, readable, [(ID_SPACE, None)]),
        *(Junk(None, readable, [(ID_SPACE, BOUND), (IDS, each)]) for each in ids),
        Junk(None, readable, [(ID_SPACE, BOUND)]),
    ]  # fmt: skip


def random_definition_like(rng: random.Random, whole: bytes) -> Junk:
    """Return a damaged definition, or a random JSON tree."""
    if rng.random() < 0.5:
        cut = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            at = rng.randrange(len(cut))
            cut[at : at + rng.randint(0, 4)] = rng.randbytes(rng.randint(0, 3))
        value = bytes(cut)
    else:
        value = json.dumps(_tree(rng, 4)).encode()
    space = rng.choice([EMBEDDED, BOUND, b"other", None])
    return Junk(None, value, [(ID_SPACE, space), (IDS, rng.randbytes(rng.randint(0, 50)))])


def _tree(rng: random.Random, depth: int) -> object:
    words = ["type", "record", "name", "fields", "refold.reducer", "latest", "long", "custom", "x", "", "items", "enum"]
    kind = rng.randrange(7 if depth else 4)
    if kind < 2:
        return rng.choice(words)
    if kind < 4:
        return rng.choice([None, True, 7, -1, 1e300, 1 << 80])
    if kind == 4:
        return [_tree(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice(words): _tree(rng, depth - 1) for _ in range(rng.randrange(5))}


def junk(log: KafkaLog) -> dict[str, list[Junk]]:
    """Return the junk for each topic of a log, except `.observations`, where verdicts decide about any record."""
    through, taken = PartitionPoint(1, 1).headers
    emitted = [
        Junk(None, PLAIN), Junk(b"key", None), Junk(b"key", b"{}", [("any", b"thing"), ("none", None)]),
        Junk(b"key", PLAIN, [through]), Junk(b"key", PLAIN, [taken]),
        Junk(b"key", PLAIN, [(THROUGH, b"short"), taken]), Junk(b"key", PLAIN, [through, (TAKEN, None)]),
    ]  # fmt: skip
    return {
        log.topics.schemas: unreadable_definitions(),
        log.topics.changes: emitted,
        log.topics.deadletters: [
            *emitted, Junk(bytes(8), PLAIN), Junk(b"short", PLAIN, [through, taken]),
            Junk(None, PLAIN, [through, taken]), Junk((1).to_bytes(8, "big"), PLAIN, [through, taken]),
        ],
        log.topics.snapshots: [Junk(key, value) for key in (b"key", b"\xff" * 8) for value in (PLAIN, None)],
        log.topics.manifests: [
            *(Junk(key, PLAIN) for key in (b"key", b"", b"epoch/", b"epoch/short", b"pin/")),
            Junk(PIN + GONE.key, PLAIN), Junk(TOMB + GONE.key, PLAIN), Junk(TOMB + b"epoch/", PLAIN),
            Junk(Epoch(9, 1, 1).key, PLAIN), Junk(MARKER + b"\xff", cbor2.dumps(["cut:", 1])),
            *(Junk(marker_key(f"junk{number}"), value) for number, value in enumerate([
                b"", PLAIN, b"[" * 1_000, b"\x81" * 100_000, b"\x5b" + b"\xff" * 8,
                cbor2.dumps([]), cbor2.dumps([1, 2]),
                *(cbor2.dumps(["cut:", each]) for each in ("x", 1 << 64, -(1 << 64), True)),
                cbor2.dumps(["cut:", 1, 2]),
            ])),
        ],
    }  # fmt: skip


def write_junk(log: KafkaLog) -> dict[str, int]:
    """Write all of it into every partition; return how many foreign records each topic has."""
    producer = log.clients.producer(**{"message.max.bytes": 4 << 20})
    counts = {}
    for topic, records in junk(log).items():
        partitions = 1 if topic == log.topics.schemas else log.partitions
        counts[topic] = len(records) * partitions
        for partition in range(partitions):
            for each in records:
                producer.produce(topic, each.value, each.key, partition, headers=each.headers)
    assert producer.flush(60) == 0
    return counts


def place_of_markers(log: KafkaLog) -> KafkaPartition:
    """Return the topic and partition of markers."""
    return KafkaPartition(log.topics.manifests, MARKERS)
