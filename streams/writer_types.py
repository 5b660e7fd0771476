"""The type versions by which a process writes observations, and an observation that was encoded under one.

A type's first valid observation registers it. A user's own file comes first, then the log's newest version, then the
shipped one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.envelope import check_entity
from refold.avro.errors import SchemaError
from refold.avro.observation import type_of
from refold.avro.registry import TypeVersion
from refold.streams.log.port import LogPort

_UNREGISTERED = -1


class EncodedObservation(NamedTuple):
    """An observation that was checked and encoded under a definition.

    Attributes:
        data: Its framed bytes, with any wire id.
        blobs: The contents that it names, by their SHA-256.
    """

    entity: str
    id: bytes
    definition: TypeDefinition
    data: bytes
    blobs: Mapping[bytes, bytes]


class WriterTypes:
    """The versions for writing to a log. Not thread-safe."""

    def __init__(self, port: LogPort, types: Mapping[str, TypeDefinition], mine: set[str]) -> None:
        """Take the types of a process.

        Args:
            port: The log.
            types: The types that this process has, by name.
            mine: The names of those that the user has files for.
        """
        self._port = port
        self._types = types
        self._mine = mine
        self._known: dict[str, TypeVersion] = {}

    def of_entity(self, entity: str) -> TypeVersion:
        """Return the version for writing an entity of this name; its validator checks the rest of the name.

        Raises:
            ValidationError: It is not TYPE/ID.
            SchemaError: As `of`.
        """
        known = self._known.get(entity.partition("/")[0]) if type(entity) is str else None
        return self.of(type_of(check_entity(entity))) if known is None else known

    def of(self, type_name: str) -> TypeVersion:
        """Return the version for writing a type, which may be unregistered still.

        Raises:
            SchemaError: Neither the log nor this process has the type.
        """
        found = self._known.get(type_name)
        if found is not None:
            return found
        mine = self._types.get(type_name)
        known = self._port.registry.in_effect(type_name)
        if not known:  # registered only once, because another process may have registered a newer version
            self._port.refresh()
            known = self._port.registry.in_effect(type_name)
        if mine is not None and (type_name in self._mine or not known):
            return self._port.registry.find(mine) or TypeVersion(mine, _UNREGISTERED, 0)
        if not known:
            names = ", ".join(sorted(self._types))
            raise SchemaError(f"unknown type {type_name!r}; known here: {names}. Add its .avsc file with --types")
        return known[-1]

    def ensure_registered(self, version: TypeVersion) -> TypeVersion:
        """Return a version as it is in the log, after registering it if necessary. It is used from then on."""
        found = self._known[version.definition.name] = self._in_log(version)
        return found

    def ensure_definition_registered(self, definition: TypeDefinition) -> TypeVersion:
        """Return the version of a definition as it is in the log, after registering it if necessary."""
        return self._in_log(self._port.registry.find(definition) or TypeVersion(definition, _UNREGISTERED, 0))

    def forget(self, type_name: str) -> None:
        """Look a type up again when it is next written."""
        self._known.pop(type_name, None)

    def _in_log(self, version: TypeVersion) -> TypeVersion:
        if version.offset != _UNREGISTERED:
            return version
        self._port.register(version.definition)
        found = self._port.registry.find(version.definition)
        assert found is not None
        return found
