"""The definitions that an import uses; they are determined before anything is written.

A type is written with the user's own file if one was given, else with the newest version in the log (or the
imported file), else with the shipped one: the same rule as `Log.observe`. Everything that a log would refuse at
the registration of a definition is refused here first, on a separate registry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from refold.avro.blob import Blobs
from refold.avro.definition import TypeDefinition
from refold.avro.envelope import check_entity
from refold.avro.errors import InputError, SchemaError
from refold.avro.json_line import LineReader
from refold.avro.observation import Observation, type_of
from refold.avro.registry import Registry, TypeVersion
from refold.reducers.fold import Fold
from refold.reducers.registered import NotRegistered
from refold.streams.exchange.files import FileDefinition


class TypeCatalog:
    """Definitions by type.

    Args:
        held: The log's, in order.
        mine: The user's.
        shipped: Those of refold.
    """

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
        self._writers: dict[str, TypeVersion] = {}

    def adopt(self, carried: Iterable[FileDefinition]) -> list[TypeDefinition]:
        """Add a file's definitions by offset, and return those to register, in that order.

        All versions of a type that the log lacks are added. Of a type that it has, only the versions after the log's
        newest are added. If the file does not have that newest version, the log's stays in effect, and the file's
        versions only decode. A definition that names code which is not registered in this process is left out: nothing
        of it is imported, and the first line that has to be written with it is refused.

        Raises:
            InputError: A definition cannot follow the log's; the message names its place.
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
        self._writers.clear()
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
        """Declare that observations will be written with a definition.

        Raises:
            SchemaError: the log would not register it.
        """
        if self._registry.find(definition) is None:
            self._registry.check(definition)
            Fold(definition)  # a custom reducer that cannot run is refused here
            self._registry.add(definition)

    def writer(self, type_name: str) -> TypeVersion:
        """Return the definition to write a type with, with its checks and its codec. It counts as used.

        Raises:
            SchemaError: the type is unknown, or the log would not register the definition.
        """
        found = self._writers.get(type_name)
        if found is None:
            definition = self._candidates(type_name)[0]
            self.use(definition)
            found = self._writers[type_name] = TypeVersion(definition, 0, 0)
        return found

    def read(self, line: Mapping[str, object], blobs: Blobs) -> tuple[Observation, bytes, TypeDefinition]:
        """Return the observation in a line, its id, and the definition to write it with.

        Raises:
            InputError: the line is not a valid observation.
        """
        type_name = type_of(check_entity(line.get("entity")))
        reader = self._readers.get(type_name)
        if reader is None:
            reader = self._readers[type_name] = LineReader(self._candidates(type_name), self._now)
        found = reader.read(line, blobs)
        self.use(found[2])
        return found

    def _candidates(self, type_name: str) -> list[TypeDefinition]:
        """Return every definition that may decode the type; the one to write with is first."""
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
