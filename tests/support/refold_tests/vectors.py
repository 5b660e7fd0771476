"""The published vectors in avro/vectors. They are created here once; tests/avro/test_vectors.py recomputes them
forever.

    PYTHONPATH=src:tests/support python -P -m refold_tests.vectors

writes cases that are new. An existing case is never written again: its bytes may be in somebody's log.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from refold.avro.canonical import encode, json_text
from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, document_text, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import ValidationError
from refold.avro.ids import identify, identity_bytes
from refold.avro.json_line import to_line
from refold.avro.observation import Link, Observation, Source
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key, order_key_of
from refold.reducers.state import hash_state, state_tree
from refold.streams.cut import Cut
from refold.streams.digest import bucket_digest, root_of, slot_digest
from refold.streams.partitioner import BUCKETS, murmur2, partition_of, slot_of
from refold_tests.tagged_json import tag, untag
from refold_tests.tree import ROOT
from refold_tests.vector_inputs import CASES, SPECIMEN
from refold_tests.vector_others import CUTS, JSON_REFUSED, JSON_VALUES, KEYS, ORDERS, STATES, TABLES

FOLDER = ROOT / "avro" / "vectors"
Vector = dict[str, Any]


def definition() -> TypeDefinition:
    """Return the type of every observation in the vectors."""
    return parse(SPECIMEN)


def observe(given: Mapping[str, Any]) -> Observation:
    """Build an observation from its tagged form, with the validator."""
    parts = {name: untag(value) for name, value in given.items()}
    source, link = Source(**parts.pop("source", {})), parts.pop("link", None)
    return ObservationValidator(definition()).build(
        parts.pop("entity"),
        parts.pop("patch", None),
        source=source,
        link=None if link is None else Link(**link),
        now=parts["observed_at"],
        blobs={},
        **parts,
    )


def hexed(value: Any) -> Any:
    """Return ids as hex text, everything else tagged."""
    return [each.hex() for each in value] if value and isinstance(value[0], bytes) else value


def inputs(given: Mapping[str, Any]) -> Vector:
    """Return an author's input in JSON: ids in hex, values of the patch and large integers tagged."""
    shown = {name: hexed(value) if isinstance(value, list) else tag(value) for name, value in given.items()}
    return {name: plain_integers(value) if name != "patch" else value for name, value in shown.items()}


def plain_integers(tree: Any) -> Any:
    """Return tagged integers as JSON numbers if every reader can hold them exactly."""
    if isinstance(tree, dict):
        if tree.keys() == {"$int"} and abs(int(tree["$int"])) < 2**53:
            return int(tree["$int"])
        return {key: plain_integers(each) for key, each in tree.items()}
    return tree


def identity_vector(case: Mapping[str, Any]) -> Vector:
    """Return an observation as given, the CBOR that is hashed, its id, and its export line."""
    given = inputs(case["given"])
    observation = observe(given)
    found = identify(observation)
    return {
        "name": case["name"],
        "why": case["why"],
        **({"same_as": case["same_as"]} if case["same_as"] else {}),
        "given": given,
        "cbor": identity_bytes(observation).hex(),
        "id": found.hex(),
        "line": to_line(observation, found, definition()),
    }


def wire_vector(case: Mapping[str, Any]) -> Vector:
    """Return a message as stored in the log."""
    observation = observe(inputs(case["given"]))
    message = ObservationCodec(definition()).encode_observation(observation)
    return {"name": case["name"], "message": message.hex(), "id": identify(observation).hex()}


def json_vector(value: Any) -> Vector:
    """Return a JSON value and its canonical text."""
    return {"name": repr(value), "value": tag(value), "text": json_text(value)}


def refused_vector(case: tuple[str, Any]) -> Vector:
    """Return a value that canonical JSON does not allow."""
    why, value = case
    try:
        json_text(value)
    except ValidationError:
        return {"name": why, "refused": tag(value)}
    raise AssertionError(f"{why}: not refused")


def state_vector(case: Mapping[str, Any]) -> Vector:
    """Return a set of observations, the state they fold to, and the state's hash."""
    observations = [observe(inputs(each)) for each in case["given"]]
    seen = [Seen(at, order_key(each, identify(each)), each) for at, each in enumerate(observations)]
    fold = Fold(definition())
    entity: Entity = fold.from_nothing(observations[0].entity, seen)
    tree: dict[str, Any] = state_tree(fold, entity)
    encoded = encode(tree)
    assert hash_state(fold, entity) == hashlib.sha256(encoded).digest()
    for part in ("fields", "by"):  # as published: in the order of their first assertions
        tree[part] = {name: tree[part][name] for name in entity.cells if name in tree[part]}
    return {
        "name": case["name"],
        "observations": [inputs(each) for each in case["given"]],
        "ids": [each.id.hex() for each in seen],
        "state": tag(tree),
        "cbor": encoded.hex(),
        "state_hash": hashlib.sha256(encoded).hexdigest(),
    }


def order_vector(parts: tuple[int, str, str, int, bytes]) -> Vector:
    """Return an order key and its parts."""
    observed_at, agent, run, seq, raw = parts
    return {
        "name": f"{observed_at} {agent!r} {run!r} {seq} {raw[:1].hex()}",
        "observed_at": {"$int": str(observed_at)},
        "agent": agent,
        "run": run,
        "seq": {"$int": str(seq)},
        "id": raw.hex(),
        "key": order_key_of(observed_at, agent, run, seq, raw).hex(),
    }


def key_vector(key: str) -> Vector:
    """Return a record key: its murmur2 as Java prints it, its slot, its bucket, and its partition among 8."""
    unsigned = murmur2(key.encode())
    return {
        "name": key,
        "murmur2": unsigned - 2**32 if unsigned >= 2**31 else unsigned,
        "slot": slot_of(key),
        "bucket": hashlib.sha256(key.encode()).digest()[0],
        "partition_of_8": partition_of(key, 8),
    }


def table_vector(case: tuple[str, Mapping[str, bytes]]) -> Vector:
    """Return a table of state hashes, every digest in it that is not of an empty part, and the root."""
    name, table = case
    slots: dict[int, dict[int, list[tuple[bytes, bytes]]]] = {}
    for entity, state_hash in table.items():
        key = entity.encode()
        bucket = hashlib.sha256(key).digest()[0]
        slots.setdefault(slot_of(entity), {}).setdefault(bucket, []).append((key, state_hash))
    digests = {
        slot: {bucket: bucket_digest(members) for bucket, members in held.items()} for slot, held in slots.items()
    }
    assert all(0 <= bucket < BUCKETS for held in digests.values() for bucket in held)
    return {
        "name": name,
        "entities": {entity: state_hash.hex() for entity, state_hash in table.items()},
        "slots": {
            str(slot): {
                "digest": slot_digest(held).hex(),
                "buckets": {str(bucket): digest.hex() for bucket, digest in sorted(held.items())},
            }
            for slot, held in sorted(digests.items())
        },
        "root": root_of(table.items()).hex(),
    }


def cut_vector(case: tuple[str, Cut]) -> Vector:
    """Return a cut's parts, its text and its short hash."""
    name, cut = case
    return {
        "name": name,
        "log_id": cut.log_id.hex(),
        "offsets": {str(partition): {"$int": str(offset)} for partition, offset in cut.offsets.items()},
        "schemas": cut.schemas,
        "types_digest": cut.types_digest.hex(),
        "observed_until": None if cut.observed_until is None else {"$int": str(cut.observed_until)},
        "fold_version": cut.fold_version,
        "text": str(cut),
        "short": cut.short,
    }


@cache
def files() -> dict[str, Vector]:
    """Compute every vector file again."""
    found = definition()
    codec = ObservationCodec(found)
    type_parts: Vector = {"definition": SPECIMEN}
    return {
        "identity.json": {
            "about": "Observations of refold.types.specimen, the CBOR that is hashed, and their ids. docs/FORMAT.md",
            **type_parts,
            "fingerprint": found.fingerprint.hex(),
            "cases": [identity_vector(each) for each in CASES],
        },
        "wire.json": {
            "about": "Messages as they stand in a log, and the ids they decode to. docs/FORMAT.md",
            "definition": json.loads(document_text(found)),
            "schema": codec.text,
            "schema_id": codec.wire_id,
            "cases": [wire_vector(each) for each in CASES],
        },
        "canonical_json.json": {
            "about": "JSON values, their canonical text, and what has none. docs/FORMAT.md",
            "cases": [*map(json_vector, JSON_VALUES), *map(refused_vector, JSON_REFUSED)],
        },
        "state.json": {
            "about": "Observations of refold.types.specimen, the states they fold to, and their hashes. docs/FORMAT.md",
            **type_parts,
            "cases": [state_vector(each) for each in STATES],
        },
        "order.json": {
            "about": "Order keys Q, ascending. docs/FORMAT.md",
            "cases": [order_vector(each) for each in ORDERS],
        },
        "root.json": {
            "about": "Record keys and their slots; tables of state hashes, their digests and roots. docs/FORMAT.md",
            "keys": [key_vector(each) for each in KEYS],
            "cases": [table_vector(each) for each in TABLES],
        },
        "cut.json": {
            "about": "Cuts: their parts, texts and short hashes. docs/FORMAT.md",
            "cases": [cut_vector(each) for each in CUTS],
        },
    }


def published(name: str, folder: Path = FOLDER) -> Vector:
    """Return a vector file of a folder; as committed by default."""
    found: Vector = json.loads((folder / name).read_text(encoding="ascii"))
    return found


def main(say: Callable[[str], object] = print, folder: Path = FOLDER) -> int:
    """Write new cases. Return 1, and write nothing, if a published case would change."""
    changed, written = [], {}
    for name, computed in files().items():
        old = published(name, folder) if (folder / name).exists() else {}
        for part in ("cases", "keys"):
            now = {each["name"]: each for each in computed.get(part, [])}
            changed += [f"{name}: {each['name']}" for each in old.get(part, []) if now.get(each["name"]) != each]
        written[name] = json.dumps(computed, ensure_ascii=True, indent=1) + "\n"
    for each in changed:
        say(f"{each}: published already, and would change")
    if changed:
        return 1
    for name, text in written.items():
        (folder / name).write_text(text, encoding="ascii")
        say(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
