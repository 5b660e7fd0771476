"""Identity: an observation's id is the SHA-256 of what it says, and of nothing else.

1. Encode each part that has not its default, under its one-letter key (`ENVELOPE`).
2. Join them to one deterministic CBOR map, keys in order.
3. id = SHA-256("refold/1" NUL, then that CBOR).

Vectors: avro/vectors/identity.json, reproduced from Node by tests/node/vectors.mjs.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from refold.avro.canonical import encode, encode_map, encode_name
from refold.avro.observation import Link, Observation, Source

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


def identity_bytes(observation: Observation) -> bytes:
    """The deterministic CBOR that is hashed: defaults dropped at the top and in the source, never inside the patch."""
    members = [
        ("e", encode(observation.entity)),
        ("t", encode_name(observation.type)),
        ("k", encode_name(observation.kind)),
    ]
    if observation.observed_at:
        members.append(("o", encode(observation.observed_at)))
    if observation.priority:
        members.append(("p", encode(observation.priority)))
    source = _source(observation.source)
    if source:
        members.append(("s", source))
    if observation.causes:
        members.append(("c", encode(observation.causes)))
    patch = observation.patch
    if patch:
        members.append(("f", encode_map([(name, encode(value)) for name, value in patch.items()], len(patch))))
    if observation.cleared:
        members.append(("x", encode(observation.cleared)))
    if observation.retracts:
        members.append(("r", encode(observation.retracts)))
    if observation.link is not None:
        members.append(("l", encode(_link(observation.link))))
    if observation.subject:
        members.append(("u", encode(observation.subject)))
    return encode_map(members, len(members))


@lru_cache(maxsize=1024)
def _agent_and_run(agent: str, run: str, step: str, tool: str) -> list[tuple[str, bytes]]:
    parts = (("agent", agent), ("run", run), ("step", step), ("tool", tool))
    return [(name, encode(value)) for name, value in parts if value]


def _source(source: Source) -> bytes:
    members = _agent_and_run(source.agent, source.run, source.step, source.tool)
    if source.seq:
        members = [*members, ("seq", encode(source.seq))]
    return encode_map(members, len(members)) if members else b""


def _link(link: Link) -> dict[str, object]:
    validity = (("valid_from", link.valid_from), ("valid_to", link.valid_to))
    times = {name: value for name, value in validity if value is not None}
    return {"relation": link.relation, "target": link.target, **times}


def identify(observation: Observation) -> bytes:
    """The observation's id: 32 bytes."""
    return hashlib.sha256(DOMAIN + identity_bytes(observation)).digest()
