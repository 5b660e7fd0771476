"""The definitions an import reads by, known before anything is written.

A type is written by the user's own file if one was given, else by the newest version the log (or the
imported file) has, else by the shipped one: as `Log.observe` decides. Everything a log would refuse when
a definition is registered is refused here first, on a registry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from refold.avro.blob import Blobs
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator, check_entity
from refold.avro.errors import InputError, SchemaError
from refold.avro.json_line import LineReader
from refold.avro.observation import Observation, type_of
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.fold import Fold
from refold.reducers.registered import NotRegistered
from refold.streams.exchange.files import FileDefinition


class Vocabulary:
    """Definitions by type. held: the log's, in order; mine: given by the user; shipped: the rest."""

    def __init__(
        self,
        held: Iterable[TypeVersion],
        mine: Mapping[str, TypeDefinition],
        shipped: Mapping[str, TypeDefinition],
        now: int | None = None,
    ) -> None:
        self._now = now
        self._registry = Registry()
        for version in held:
            self._registry.add(version.definition)
        self._mine = mine
        self._shipped = shipped
        self._carried: dict[str, list[TypeDefinition]] = {}
        self._readers: dict[str, LineReader] = {}
        self._doors: dict[str, ObservationValidator] = {}

    def adopt(self, carried: Iterable[FileDefinition]) -> list[TypeDefinition]:
        """Take up a file's definitions, in the order of their offsets; the ones to register, in that order.

        A type the log lacks comes with all its versions. Of one it has, only the versions after the log's
        newest are newer; where the file does not know that one, the log's stays in force, and the file's
        serve to read by. One that names code which is not registered here is left out: nothing of it is imported, and
        the first line that is to be written by it is refused.
        """
        distinct = {(each.offset, each.definition.fingerprint): each for each in carried}
        by_type: dict[str, list[FileDefinition]] = {}
        for _, each in sorted(distinct.items()):
            by_type.setdefault(each.definition.name, []).append(each)
        newer = {id(each) for name, versions in by_type.items() for each in self._newer(name, versions)}
        taken = []
        for each in (each for _, each in sorted(distinct.items()) if id(each) in newer):
            if self._registry.find(each.definition) is None:
                try:
                    self.use(each.definition)
                except NotRegistered:
                    continue
                except SchemaError as error:
                    raise InputError(f"{each.place}: {error}") from None
                taken.append(each.definition)
        self._carried = {name: [each.definition for each in versions] for name, versions in by_type.items()}
        self._readers.clear()
        self._doors.clear()
        return taken

    def _newer(self, name: str, versions: list[FileDefinition]) -> list[FileDefinition]:
        held = self._registry.in_effect(name)
        if not held:
            return versions
        places = [
            place
            for place, each in enumerate(versions)
            if each.definition.fingerprint == held[-1].definition.fingerprint
        ]
        return versions[places[-1] + 1 :] if places else []

    def use(self, definition: TypeDefinition) -> None:
        """Say that a definition will be written by; SchemaError where the log would not register it."""
        if self._registry.find(definition) is None:
            self._registry.check(definition)
            Fold(definition)  # a custom reducer that cannot run is refused here
            self._registry.add(definition)

    def door(self, type_name: str) -> ObservationValidator:
        """The checks at write of a type; SchemaError where it is unknown."""
        door = self._doors.get(type_name)
        if door is None:
            door = self._doors[type_name] = ObservationValidator(self._candidates(type_name)[0])
        return door

    def read(self, line: Mapping[str, object], blobs: Blobs) -> tuple[Observation, bytes, TypeDefinition]:
        """The observation in a line, its id, and the definition to write it by; raises InputError."""
        type_name = type_of(check_entity(line.get("entity")))
        reader = self._readers.get(type_name)
        if reader is None:
            reader = self._readers[type_name] = LineReader(self._candidates(type_name), self._now)
        found = reader.read(line, blobs)
        self.use(found[2])
        return found

    def _candidates(self, type_name: str) -> list[TypeDefinition]:
        """Every definition the type may be read by, the one to write by first."""
        held = [version.definition for version in reversed(self._registry.in_effect(type_name))]
        mine = [self._mine[type_name]] if type_name in self._mine else []
        carried = list(reversed(self._carried.get(type_name, ())))
        shipped = [self._shipped[type_name]] if type_name in self._shipped else []
        found: dict[bytes, TypeDefinition] = {}
        for definition in (*mine, *held, *carried, *shipped):
            found.setdefault(definition.fingerprint, definition)
        if not found:
            known = ", ".join(sorted({*self._mine, *self._shipped, *self._registry.fingerprints()}))
            raise SchemaError(f"unknown type {type_name!r}; known here: {known}. Add its .avsc file with --types")
        return list(found.values())
