"""What stands in a `file:` log's database beside the entity tables, and how it is read back.

meta  "log"       CBOR {id: 16 bytes, partitions}: fixed at creation
meta  "progress"  CBOR Progress: rewritten in every write, so it is true of exactly what stands beside it
meta  "redefine"  the offset of a definition whose entities are being folded again, while they are
schemas  offset u64          -> registered_at u64, a definition's JSON
manifests  "marker/" + name  -> CBOR [cut, marked_at]
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import cbor2

from refold.avro.definition import TypeDefinition, document_text, parse
from refold.avro.errors import CorruptionError
from refold.avro.registry import Registry
from refold.streams.log.file.database import Database
from refold.streams.log.port import Marked

LOG, PROGRESS, REDEFINE = b"log", b"progress", b"redefine"
MARKER = b"marker/"
_U64 = struct.Struct(">Q")
T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """Next offsets by partition, and the last recorded_at given out, in milliseconds."""

    observations: dict[int, int] = field(default_factory=dict)
    changes: dict[int, int] = field(default_factory=dict)
    recorded_at: int = 0

    def copy(self) -> Progress:
        """A progress of its own, to become the log's when its write succeeded."""
        return Progress(dict(self.observations), dict(self.changes), self.recorded_at)

    def next_change(self, partition: int) -> int:
        """Take the next offset of `.changes`."""
        offset = self.changes[partition]
        self.changes[partition] = offset + 1
        return offset

    def packed(self) -> bytes:
        """The stored form."""
        return cbor2.dumps([self.observations, self.changes, self.recorded_at])


def read_progress(database: Database, partitions: int) -> Progress:
    """The log's progress; a new log stands at zero."""
    packed = database.get("meta", PROGRESS)
    if packed is None:
        zeros = dict.fromkeys(range(partitions), 0)
        return Progress(zeros, dict(zeros))
    return _made(partial(_progress, packed, partitions), "progress")


def log_record(log_id: bytes, partitions: int) -> bytes:
    """The record that makes a database a log."""
    return cbor2.dumps({"id": log_id, "partitions": partitions})


def read_log_record(database: Database) -> tuple[bytes, int] | None:
    """(log id, partitions), or None in a database that was never made a log."""
    packed = database.get("meta", LOG)
    if packed is None:
        return None
    return _made(partial(_identity, packed), "identity")


def schema_key(offset: int) -> bytes:
    """Where a definition stands."""
    return _U64.pack(offset)


def read_schemas(database: Database, registry: Registry) -> None:
    """Add to the registry what `.schemas` holds beyond it."""
    for key, value in database.scan("schemas", schema_key(len(registry))):
        try:
            place = f"the stored definition {_U64.unpack(key)[0]}"
            registry.add(parse(json.loads(value[_U64.size :]), place=place), _U64.unpack_from(value)[0])
        except (ValueError, struct.error) as error:
            raise CorruptionError(f"the stored definition at {key.hex()} cannot be read: {error}") from error


def schema_value(definition: TypeDefinition, registered_at: int) -> bytes:
    """A definition and when the log took it, in milliseconds."""
    return _U64.pack(registered_at) + document_text(definition).encode()


def marker_key(name: str) -> bytes:
    """Where a marker stands."""
    return MARKER + name.encode()


def marker_value(marked: Marked) -> bytes:
    """A marker's stored form."""
    return cbor2.dumps([marked.cut, marked.marked_at])


def read_markers(database: Database) -> Iterator[Marked]:
    """The markers in the order of their names."""
    for key, value in database.scan("manifests", MARKER, MARKER[:-1] + b"0"):
        name = key[len(MARKER) :]
        yield _made(partial(_marked, name, value), f"marker {name!r}")


def _progress(packed: bytes, partitions: int) -> Progress:
    observations, changes, recorded_at = cbor2.loads(packed)
    if not observations.keys() == changes.keys() == set(range(partitions)):
        raise ValueError(f"it is not of {partitions} partitions")
    return Progress(observations, changes, recorded_at)


def _identity(packed: bytes) -> tuple[bytes, int]:
    tree = cbor2.loads(packed)
    return bytes(tree["id"]), int(tree["partitions"])


def _marked(name: bytes, value: bytes) -> Marked:
    cut, marked_at = cbor2.loads(value)
    return Marked(name.decode(), cut, marked_at)


def _made(make: Callable[[], T], what: str) -> T:
    try:
        return make()
    except (cbor2.CBORDecodeError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptionError(f"the log's {what} cannot be read: {error}; run refold verify") from error
