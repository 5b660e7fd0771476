"""Identity: an observation's id is the SHA-256 of what it says, and of nothing else.

1. Build the map of one-letter keys (`identity_tree`); leave out each key that has its default.
2. Encode it as deterministic CBOR.
3. id = SHA-256("refold/1" NUL, then that CBOR).

Vectors: avro/vectors/identity.json, reproduced from Node by tests/node/vectors.mjs.
"""

from __future__ import annotations

import hashlib

from refold.avro.canonical import encode
from refold.avro.observation import Observation

DOMAIN = b"refold/1\0"

ENVELOPE = {
    "entity": "e",
    "kind": "k",
    "observed_at": "o",
    "priority": "p",
    "source": "s",
    "causes": "c",
    "patch": "f",
    "cleared": "x",
    "retracts": "r",
    "link": "l",
    "subject": "u",
}
"""Each envelope field's key in the identity map; `t`, the type, is derived from the entity."""


def identity_tree(observation: Observation) -> dict[str, object]:
    """The map that is hashed: defaults dropped at the top and in the source, never inside the patch."""
    tree: dict[str, object] = {
        "e": observation.entity,
        "t": observation.type,
        "k": observation.kind,
    }
    if observation.observed_at:
        tree["o"] = observation.observed_at
    if observation.priority:
        tree["p"] = observation.priority
    origin = observation.source
    source: dict[str, object] = {}
    if origin.agent:
        source["agent"] = origin.agent
    if origin.run:
        source["run"] = origin.run
    if origin.step:
        source["step"] = origin.step
    if origin.tool:
        source["tool"] = origin.tool
    if origin.seq:
        source["seq"] = origin.seq
    if source:
        tree["s"] = source
    if observation.causes:
        tree["c"] = observation.causes
    if observation.patch:
        tree["f"] = observation.patch
    if observation.cleared:
        tree["x"] = observation.cleared
    if observation.retracts:
        tree["r"] = observation.retracts
    link = observation.link
    if link is not None:
        parts: dict[str, object] = {"relation": link.relation, "target": link.target}
        if link.valid_from is not None:
            parts["valid_from"] = link.valid_from
        if link.valid_to is not None:
            parts["valid_to"] = link.valid_to
        tree["l"] = parts
    if observation.subject:
        tree["u"] = observation.subject
    return tree


def identify(observation: Observation) -> bytes:
    """The observation's id: 32 bytes."""
    return hashlib.sha256(DOMAIN + encode(identity_tree(observation))).digest()
