"""The embedded registry: a log's type definitions in the order they were registered.

A definition's place in `.schemas` is its offset. Wire ids are the first 31 bits of the SHA-256 of the derived
observation schema, so every writer gives the same schema the same id without asking.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cached_property

from refold.avro.canonical import encode
from refold.avro.codec import ObservationCodec, RecordCodec, change_codec, framed_id
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import Door
from refold.avro.errors import SchemaError, UndecodableError
from refold.avro.evolution import check_evolution
from refold.avro.observation import Observation


class TypeVersion:
    """One registered definition with everything built from it, each on first use. registered_at in milliseconds."""

    def __init__(self, definition: TypeDefinition, offset: int, registered_at: int) -> None:
        self.definition = definition
        self.offset = offset
        self.registered_at = registered_at

    @cached_property
    def codec(self) -> ObservationCodec:
        """Observations as bytes."""
        return ObservationCodec(self.definition)

    @cached_property
    def changes(self) -> RecordCodec:
        """Changes as bytes."""
        return change_codec(self.definition)

    @cached_property
    def door(self) -> Door:
        """The checks at write."""
        return Door(self.definition)


class Registry:
    """Definitions by offset, name, fingerprint and wire id. Not for several threads at once."""

    def __init__(self) -> None:
        self._versions: list[TypeVersion] = []
        self._by_wire_id: dict[int, TypeVersion] = {}
        self._by_name: dict[str, list[TypeVersion]] = {}

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[TypeVersion]:
        return iter(self._versions)

    def find(self, definition: TypeDefinition) -> TypeVersion | None:
        """The registered version with this fingerprint, if there is one."""
        for version in self._by_name.get(definition.name, ()):
            if version.definition.fingerprint == definition.fingerprint:
                return version
        return None

    def check(self, definition: TypeDefinition) -> None:
        """Raise SchemaError unless the definition may be added."""
        check_evolution((each.definition for each in self._by_name.get(definition.name, ())), definition)
        codec = ObservationCodec(definition)
        clash = self._by_wire_id.get(codec.schema_id)
        if clash is not None and clash.codec.text != codec.text:
            raise SchemaError(f"{definition.name}: its schema has the 31-bit id of one of {clash.definition.name}; "
                              "change any doc-free part of it, such as the order of its fields")  # fmt: skip

    def add(self, definition: TypeDefinition, registered_at: int = 0) -> TypeVersion:
        """Take up a definition at the next offset; registered_at in milliseconds, by the log's clock."""
        version = TypeVersion(definition, len(self._versions), registered_at)
        self._versions.append(version)
        self._by_name.setdefault(definition.name, []).append(version)
        self._by_wire_id.setdefault(version.codec.schema_id, version)
        return version

    def versions(self, name: str) -> list[TypeVersion]:
        """Every version of a type, oldest first."""
        return list(self._by_name.get(name, ()))

    def registered_by(self, time_ms: int) -> int:
        """The offset below which everything was registered at or before a time, in milliseconds."""
        return sum(1 for version in self._versions if version.registered_at <= time_ms)

    def newest(self, name: str, below: int | None = None) -> TypeVersion:
        """The newest version of a type, or the newest registered below an offset."""
        for version in reversed(self._by_name.get(name, ())):
            if below is None or version.offset < below:
                return version
        known = ", ".join(sorted(self._by_name)) or "none yet"
        raise SchemaError(f"unknown type {name!r}; this log knows: {known}. Add its .avsc file with --types")

    def decode(self, data: bytes) -> Observation:
        """The observation in a framed message, read by its writer's schema; raises UndecodableError."""
        wire_id = framed_id(data)
        version = self._by_wire_id.get(wire_id)
        if version is None:
            raise UndecodableError(f"no schema with id {wire_id} in this log")
        return version.codec.decode_observation(data)

    def digest(self, below: int | None = None) -> bytes:
        """SHA-256 over each type's name and the fingerprint of its newest version: 32 bytes."""
        newest = {}
        for version in self._versions[:below]:
            newest[version.definition.name] = version.definition.fingerprint
        return hashlib.sha256(encode(newest)).digest()
