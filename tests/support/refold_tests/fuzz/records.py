"""Cases of records: each topic of a log on Kafka, and answers of workers and owners."""

from __future__ import annotations

import hashlib
import random
from typing import Any

from refold.streams.checksum import sealed
from refold.streams.deadletters import Verdict, verdict_value
from refold.streams.log.kafka.content_index import (
    AGAIN,
    EXPIRED,
    PUT,
    REMOVING,
    SAID,
    TOKEN_BYTES,
    Chunks,
    chunks_value,
)
from refold.streams.log.kafka.fold_position import PartitionPoint
from refold.streams.log.kafka.quarantine_records import HEADER, Decision, decision_key, decision_value
from refold.streams.log.kafka.range_reader import Headers, RawRecord
from refold.streams.log.kafka.records import ID
from refold.streams.log.kafka.schemas import BOUND, EMBEDDED, ID_SPACE, IDS
from refold.streams.log.port import Marked
from refold.streams.log.stored_markers import MARKER, marker_key, marker_value
from refold.streams.snapshots.manifest import Epoch, Manifest, OffsetSpan, encode_manifest
from refold.streams.snapshots.store import PIN, TOMB, Pin, pin_value
from refold_tests.fuzz import mutate, trees
from refold_tests.fuzz.case import Case, read_by
from refold_tests.fuzz.world import CONTENT, World

EPOCH = Epoch(0, 9, 2)
ENTITY = "tool_config/acme"
LOOKUPS: list[list[Any]] = [
    ["arrivals", 0, ENTITY, 0, 5], ["records", 0, ENTITY, [b"q"]], ["checkpoint", 0, ENTITY, 5, 1],
    ["places", b"\0" * 32], ["rows", 0, b""], ["totals", 0],
]  # fmt: skip


def raw_of(key: bytes | None, value: bytes | None, headers: Headers | None = None) -> RawRecord:
    """Return a record at an arbitrary offset."""
    return RawRecord(5, 0, key, value, headers or [])


def observation(chance: random.Random, world: World) -> Case:
    """Make a record of `.observations`."""
    return read_by("observation", trees.packed(observation_raw(chance, world)))


def observation_raw(chance: random.Random, world: World) -> RawRecord:
    """Return an observation with changed bytes, key or headers."""
    entity, observation_id, data = chance.choice(world.records)
    raw = raw_of(entity.encode(), data, [(ID, observation_id)])
    if chance.random() < 0.5:
        # Without an id: otherwise it would be refused for its id before anything else is checked.
        raw = raw._replace(value=mutate.damaged(chance, data), headers=[])
        return raw
    return trees.record(chance, raw)


def definition(chance: random.Random, world: World) -> Case:
    """Make a record of `.schemas`."""
    return read_by("definition", trees.packed(definition_raw(chance, world)))


def definition_raw(chance: random.Random, world: World) -> RawRecord:
    """Return a definition with a changed tree, bytes or headers, or a decision that nobody made."""
    if chance.random() < 0.05:
        return raw_of(None, None, [(HEADER, chance.choice((b"", bytes(16), chance.randbytes(16))))])
    value = mutate.written(chance, mutate.mutated(chance, chance.choice(world.types), world.types))
    headers: Headers = [(ID_SPACE, chance.choice((EMBEDDED, EMBEDDED, BOUND, b"newer", None)))]
    if headers[0][1] == BOUND or chance.random() < 0.1:
        ids = trees.changed(chance, {"change": 2, "observation": 1, "state": 3})
        headers.append((IDS, trees.cbor(chance, ids)))
    raw = raw_of(None, value, headers)
    return trees.record(chance, raw) if chance.random() < 0.3 else raw


def deadletter(chance: random.Random, world: World) -> Case:
    """Make a record of `.deadletters`."""
    return read_by("deadletter", trees.packed(deadletter_raw(chance, world)))


def deadletter_raw(chance: random.Random, world: World) -> RawRecord:
    """Return a verdict with a changed tree, bytes, key or headers."""
    entity, observation_id, data = chance.choice(world.records)
    verdict = Verdict(0, 4, "misplaced", "why", entity.encode(), data, [(ID, observation_id), ("x", None)], 5)
    tree: Any = {"format": 1, **verdict._asdict(), "headers": [list(each) for each in verdict.headers]}
    del tree["partition"]
    value = trees.cbor(chance, trees.changed(chance, tree)) if chance.random() < 0.8 else verdict_value(verdict)
    raw = raw_of((4).to_bytes(8, "big"), value, PartitionPoint(9, 1).headers)
    return trees.record(chance, raw) if chance.random() < 0.3 else raw


def manifest(chance: random.Random, world: World) -> Case:
    """Make a record of `.manifests`: a manifest, pin, tomb, marker or decision."""
    return read_by("manifest", trees.packed(manifest_raw(chance, world)))


def manifest_raw(chance: random.Random, world: World) -> RawRecord:
    """Return a changed record of `.manifests`, with a checksum that fits the change."""
    kind = chance.randrange(5)
    if kind == 0:
        found = Manifest(
            bytes(16),
            EPOCH,
            (OffsetSpan(0, 4, bytes(32)), OffsetSpan(4, 5, bytes(32))),
            3,
            9,
            (bytes(32), bytes(32)),
            bytes(32),
            {"tool_config": bytes(32)},
            5,
            3,
        )
        import cbor2

        tree = cbor2.loads(encode_manifest(found)[:-4])
        value = sealed(trees.cbor(chance, trees.changed(chance, tree)))
        raw = raw_of(EPOCH.key, value)
    elif kind == 1:
        raw = raw_of(PIN + EPOCH.key, sealed(mutate.damaged(chance, pin_value(Pin(EPOCH, 5))[:-4])))
    elif kind == 2:
        raw = raw_of(TOMB + EPOCH.key, sealed(mutate.damaged(chance, bytes(8) + b"rest")))
    elif kind == 3:
        tree = trees.changed(chance, [world.whens[-1], 5])
        raw = raw_of(
            marker_key("m") if chance.random() < 0.7 else MARKER + chance.choice((b"\xff", b"", b"x" * 2000, b"a\nb")),
            trees.cbor(chance, tree) if chance.random() < 0.9 else marker_value(Marked("m", "cut:1.", 1)),
        )
    else:
        decision = Decision(2, False, 5)
        tree = trees.changed(chance, list(decision))
        value = sealed(trees.cbor(chance, tree)) if chance.random() < 0.9 else decision_value(decision)
        raw = raw_of(decision_key(bytes(16)), value)
    return trees.record(chance, raw) if chance.random() < 0.3 else raw


def content_raw(chance: random.Random, world: World) -> RawRecord:
    """Return a record of `.contents` about an existing content, from a put that does not exist."""
    kind = chance.choice((PUT, PUT, AGAIN, REMOVING, EXPIRED))
    token = b"" if kind == EXPIRED else bytes(TOKEN_BYTES * (2 if kind == REMOVING else 1))
    tree = trees.changed(chance, [len(CONTENT), [0, 1]])
    value = chance.choice(
        (None, SAID, sealed(trees.cbor(chance, tree)), chunks_value(Chunks(9, [chance.randrange(99)])))
    )
    raw = raw_of(kind + hashlib.sha256(CONTENT).digest() + token, value)
    return trees.record(chance, raw) if chance.random() < 0.3 else raw


def change(chance: random.Random, world: World) -> Case:
    """Make a record of `.changes`."""
    return read_by("change", mutate.damaged(chance, chance.choice(world.changes)))


def key(chance: random.Random, world: World) -> Case:
    """Make a record of `.keys`."""
    name = trees.cbor(chance, trees.changed(chance, ["run/r-1", bytes(8)]))
    raw = raw_of(name, chance.choice((None, b"", bytes(16), chance.randbytes(60))))
    return read_by("key", trees.packed(raw))


def lookup(chance: random.Random, world: World) -> Case:
    """Make a request to a worker over `/lookup/1`."""
    return read_by("lookup", trees.cbor(chance, trees.changed(chance, chance.choice(LOOKUPS))))


def look_up_answer(chance: random.Random, world: World) -> Case:
    """Make a worker's answer to such a request."""
    entity, observation_id, data = chance.choice(world.records)
    answers: list[Any] = [
        [7, [[1, 5, b"q", False]]], [7, [[0, 1, 5, entity, observation_id, data], None]], [[[0, 1]], {0: 7}], None,
        [[b"key", b"value"]], [3, 9],
    ]  # fmt: skip
    return read_by("look_up_answer", trees.cbor(chance, trees.changed(chance, chance.choice(answers))))


def answer(chance: random.Random, world: World) -> Case:
    """Make an answer of a log's owner."""
    tree = [
        chance.randrange(4),
        chance.choice(("InputError", "ValidationError", "UnknownWireId", "x")),
        mutate.value(chance),
    ]
    return read_by("answer", trees.cbor(chance, trees.changed(chance, tree)))


RECORDS = (
    observation, definition, deadletter, manifest, change, key, lookup, look_up_answer, answer,
)  # fmt: skip
