"""An observation's id is the SHA-256 of its content, and of nothing else.

1. Encode each part that differs from its default, under its one-letter key (`ENVELOPE`).
2. Join them to one deterministic CBOR map, keys in order.
3. id = SHA-256("refold/1" NUL, then that CBOR).

Vectors: avro/vectors/identity.json, reproduced from Node by tests/node/vectors.mjs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache

from refold.avro.canonical import encode, encode_name, in_key_order, map_head
from refold.avro.observation import Link, Observation, Source, Value

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


# By letter: c, e, f, k, l, o, p, r, s, u, x.
_CAUSES, _ENTITY, _PATCH, _KIND, _LINK, _OBSERVED_AT, _PRIORITY, _RETRACTS, _SOURCE, _SUBJECT, _CLEARED = (
    encode_name(letter) for letter in sorted(ENVELOPE.values())
)
_TYPE = encode_name("t")
_SEQ = encode_name("seq")


def identity_bytes(observation: Observation) -> bytes:
    """The deterministic CBOR that is hashed: defaults dropped at the top and in the source, never inside the patch."""
    parts: list[bytes] = []  # in the order of the keys: one-letter keys are in alphabetical order
    if observation.causes:
        parts += _CAUSES, encode(observation.causes)
    parts += _ENTITY, encode(observation.entity)
    if observation.patch:
        parts += _PATCH, _patch(observation.patch)
    parts += _KIND, encode_name(observation.kind)
    if observation.link is not None:
        parts += _LINK, encode(_link(observation.link))
    if observation.observed_at:
        parts += _OBSERVED_AT, encode(observation.observed_at)
    if observation.priority:
        parts += _PRIORITY, encode(observation.priority)
    if observation.retracts:
        parts += _RETRACTS, encode(observation.retracts)
    source = _source(observation.source)
    if source:
        parts += _SOURCE, source
    parts += _TYPE, encode_name(observation.type)
    if observation.subject:
        parts += _SUBJECT, encode(observation.subject)
    if observation.cleared:
        parts += _CLEARED, encode(observation.cleared)
    return map_head(len(parts) >> 1) + b"".join(parts)


def _patch(patch: Mapping[str, Value]) -> bytes:
    parts = [map_head(len(patch))]
    for name, key in in_key_order(tuple(patch)):
        parts += key, encode(patch[name])
    return b"".join(parts)


@lru_cache(maxsize=1024)
def source_parts(agent: str, run: str, step: str, tool: str) -> tuple[int, bytes, bytes]:
    """Return the number of a source's parts other than seq, and the encoded parts before and after seq."""
    given = {"agent": agent, "run": run, "step": step, "tool": tool}
    members = in_key_order(tuple(name for name, value in given.items() if value))
    before, after = ([key + encode(given[name]) for name, key in members if (key < _SEQ) is first]
                     for first in (True, False))  # fmt: skip
    return len(members), b"".join(before), b"".join(after)


def _source(source: Source) -> bytes:
    count, before, after = source_parts(source.agent, source.run, source.step, source.tool)
    if source.seq:
        return map_head(count + 1) + before + _SEQ + encode(source.seq) + after
    return map_head(count) + before + after if count else b""


def _link(link: Link) -> dict[str, object]:
    validity = (("valid_from", link.valid_from), ("valid_to", link.valid_to))
    times = {name: value for name, value in validity if value is not None}
    return {"relation": link.relation, "target": link.target, **times}


def identify(observation: Observation) -> bytes:
    """The observation's id: 32 bytes."""
    return hashlib.sha256(DOMAIN + identity_bytes(observation)).digest()
