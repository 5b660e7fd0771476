"""Activations: a new version with custom code takes effect when a process with the code activates it.

A new version with code, of a type that has a version in effect, is pending: a hole for every reader, so that a producer
cannot stop a worker by registering one. An activation is two records, like an administrator's decision
(quarantine_records.py). The authorisation is in partition 0 of `.manifests`, which a producer may not write:

    "activation/", a token of 16 random bytes  ->  CBOR [offset or null, activated_at in milliseconds], CRC-32C

The position is in `.schemas`: a record with the header `refold-activation`, the token. Its offset is the version's
position in the order of definitions. Each token counts once, and one without the first record is a hole.

A log's first activation has no offset, and starts the rule: no definition below its position is pending. So definitions
that were registered before the rule existed stay in effect, and answers at past cuts do not change.

Beginning, by every worker at its start and by `refold init`:
1. If `.schemas` has such a first activation, nothing is to be done.
2. Write the key `format/activations` to `.manifests`: older releases, which would treat a pending version as in effect,
   refuse the log from now on.
3. Write the activation without an offset, then its place. Several processes may do so at once: the first position
counts, and a later one changes nothing.

Activating, by every worker whenever it reads definitions, and by every process that registers one and may write
`.manifests`:
1. Of each pending version: its code is registered here, in this identity, and it may follow what is in effect.
2. Write the activation; wait until it shows. 3. Write its place; wait until it shows, and read on. A process that ends
between 2 and 3 has activated nothing: the next worker repeats it, under another token.
"""

from __future__ import annotations

import secrets
import time
from typing import NamedTuple

import cbor2

from refold.avro.canonical import encode
from refold.avro.errors import CorruptionError, SchemaError
from refold.avro.registry import Registry, TypeVersion
from refold.streams.checksum import sealed, unsealed
from refold.streams.held_types import problem_of
from refold.streams.log.kafka.clients import Clients
from refold.streams.log.kafka.offsets import KafkaPartition, Offsets
from refold.streams.log.kafka.producer import LogProducer, OutgoingRecord
from refold.streams.log.kafka.quarantine_records import TOKEN_BYTES
from refold.streams.log.kafka.topics import Topics

ACTIVATION = b"activation/"
HEADER = "refold-activation"
FORMAT = b"format/activations"
AUTHORITIES = 0
"""The partition of `.manifests` with the activations."""
OPEN = "somebody has a transaction open on this topic: wait until it ends, then repeat"
_VALUE_BYTES_MAX = 64


class Activation(NamedTuple):
    """An activation of the pending definition at an offset of `.schemas`, or None for the start of the rule.

    activated_at in milliseconds.
    """

    offset: int | None
    activated_at: int


def activation_key(token: bytes) -> bytes:
    """The key of an activation in `.manifests`."""
    return ACTIVATION + token


def activation_value(activation: Activation) -> bytes:
    """An activation's stored form."""
    return sealed(encode(list(activation)))


def activation_of(key: bytes, value: bytes) -> Activation:
    """Decode an activation.

    Raises:
        CorruptionError: It is invalid.
    """
    try:
        if len(key) != len(ACTIVATION) + TOKEN_BYTES or len(value) > _VALUE_BYTES_MAX:
            raise ValueError("its key or its value has another length")
        offset, activated_at = cbor2.loads(unsealed(value, "it"))
        if (offset is not None and type(offset) is not int) or type(activated_at) is not int:
            raise TypeError("it is not an offset and time")
    except CorruptionError:
        raise
    except Exception as error:  # cbor2 raises various exceptions for invalid bytes
        raise CorruptionError(f"an activation cannot be read: {error}") from error
    return Activation(offset, activated_at)


def write_in_order(clients: Clients, offsets: Offsets, *records: OutgoingRecord) -> None:
    """Write the records of a decision, each when the previous one is visible; return when all are. Raises Denied."""
    outgoing = LogProducer(clients)
    try:
        for sent in records:
            offsets.wait_past(sent.place, outgoing.write(sent), OPEN)
    finally:
        outgoing.close()


class Activator:
    """Writes activations. For one thread at a time."""

    def __init__(self, clients: Clients, topics: Topics, registry: Registry, offsets: Offsets) -> None:
        self._clients = clients
        self._registry = registry
        self._offsets = offsets
        self._manifests = KafkaPartition(topics.manifests, AUTHORITIES)
        self._schemas = KafkaPartition(topics.schemas, 0)
        self._judged: dict[int, int] = {}

    def begin(self) -> None:
        """Steps 2 and 3 of beginning.

        Raises:
            Denied: This user may not write.
        """
        what = "the beginning of activations"
        self._write(None, what, OutgoingRecord(self._manifests, FORMAT, b"1", [], what))

    def candidates(self) -> list[TypeVersion]:
        """Step 1 of activating: the pending versions that this process can activate."""
        known = len(self._registry)
        found = []
        for version in self._registry.pending():
            if self._judged.get(version.offset, 0) >= known:
                continue
            if self.activation_blocker(version) is None:
                found.append(version)
            else:
                self._judged[version.offset] = known
        return found

    def activation_blocker(self, version: TypeVersion) -> SchemaError | None:
        """Why this process cannot activate a pending version; None if it can."""
        problem = problem_of(version)
        if problem is not None:
            return problem
        if self._registry.is_aside(version.definition):
            return SchemaError(f"{version.definition.name}: this definition was set aside by an administrator")
        try:
            self._registry.check(version.definition, version.wire_ids)
        except SchemaError as error:
            return error
        return None

    def activate(self, version: TypeVersion) -> None:
        """Steps 2 and 3 of activating.

        Raises:
            Denied: This user may not write.
        """
        name = version.definition.name
        self._write(version.offset, f"the activation of the version of {name} at {version.offset}")

    def _write(self, offset: int | None, what: str, *before: OutgoingRecord) -> None:
        token, now_ms = secrets.token_bytes(TOKEN_BYTES), time.time_ns() // 1_000_000
        value = activation_value(Activation(offset, now_ms))
        write_in_order(
            self._clients,
            self._offsets,
            *before,
            OutgoingRecord(self._manifests, activation_key(token), value, [], what),
            OutgoingRecord(self._schemas, None, None, [(HEADER, token)], what),
        )
