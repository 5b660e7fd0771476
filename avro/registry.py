"""A log's type definitions in the order they were registered.

A definition's place in `.schemas` is its offset. A log's wire ids come from one of two spaces, chosen when it is made:

- derived: the first 31 bits of the SHA-256 of the derived schema, so every writer computes the same id for a schema;
- registry: the ids that a Schema Registry assigned to the derived schemas. They are stored in `.schemas` with the
  definition, so readers of the log need no registry.

An offset of `.schemas` may be a hole: a repeat, or a definition that is incompatible with those before it. Every reader
decides this in the same way, by `find` and `check`.

A pending definition is a hole too, until it is activated (streams/log/kafka/schemas.py says which is pending). Then it
is registered at the offset of its activation, if it is compatible with the definitions in effect there.

A definition that was set aside is out of effect from that offset on: it is never its type's newest, decodes nothing,
and does not restrict later ones. Below that offset nothing changes. If it was its type's newest, the previous one takes
effect again at that offset, as if it was registered there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from refold.avro.blob import Blobs
from refold.avro.canonical import encode
from refold.avro.codec import (
    ObservationCodec,
    RecordCodec,
    change_codec,
    derived_wire_id,
    framed_id,
    reframed,
    state_codec,
)
from refold.avro.definition import TypeDefinition
from refold.avro.derive import schemas_of
from refold.avro.envelope import ObservationValidator, is_far_ahead
from refold.avro.errors import SchemaError, UnknownWireId, ValidationError
from refold.avro.evolution import check_evolution
from refold.avro.observation import Kind, Link, Observation, Source
from refold.avro.quarantine import Rulings


class WireIds(NamedTuple):
    """The ids a Schema Registry gave the schemas derived from a definition."""

    observation: int
    change: int
    state: int


class TypeVersion:
    """One registered definition, with its codecs and checks, each built on first use.

    Attributes:
        registered_at: When it was registered, in milliseconds since 1970.
        wire_ids: The wire ids of its schemas; None in a log with derived ids.
    """

    def __init__(
        self, definition: TypeDefinition, offset: int, registered_at: int, wire_ids: WireIds | None = None
    ) -> None:
        self.definition = definition
        self.offset = offset
        self.registered_at = registered_at
        self.wire_ids = wire_ids

    @cached_property
    def codec(self) -> ObservationCodec:
        """Observations as bytes."""
        return ObservationCodec(self.definition, self.wire_ids and self.wire_ids.observation)

    @cached_property
    def changes(self) -> RecordCodec:
        """Changes as bytes."""
        return change_codec(self.definition, self.wire_ids and self.wire_ids.change)

    @cached_property
    def states(self) -> RecordCodec:
        """States as bytes."""
        return state_codec(self.definition, self.wire_ids and self.wire_ids.state)

    @cached_property
    def validator(self) -> ObservationValidator:
        """The checks at write."""
        return ObservationValidator(self.definition)

    def encode(
        self, entity: str, patch: Mapping[str, Any] | None, *, source: Source, observed_at: int, now: int,
        kind: Kind = "assert", priority: int = 0, causes: Iterable[str | bytes] = (), cleared: Iterable[str] = (),
        retracts: Iterable[str | bytes] = (), link: Link | None = None, subject: str = "", allow_future: bool = False,
        blobs: Blobs | None,
    ) -> tuple[bytes, bytes, Observation | None]:  # fmt: skip
        """Check the parts of a new observation, and encode it. The arguments are those of `ObservationValidator.build`.

        Returns:
            Its framed bytes and its id. Then the observation, or None if the kernel encoded the parts.

        Raises:
            ValidationError: A part is invalid.
        """
        native = self.codec.native
        if (
            native is not None and cleared == () and retracts == () and type(source) is Source
            and (link is None or type(link) is Link)
            and type(observed_at) is int and (allow_future or not is_far_ahead(observed_at, now))
        ):  # fmt: skip
            given = patch or {}
            found = native.encode_new(
                (entity, observed_at, kind, priority, source, causes, given, link, subject), False
            )  # fmt: skip
            if found is None:
                with suppress(ValidationError):  # raised again below
                    checked = self.validator.canonical(given, blobs)
                    parts = (entity, observed_at, kind, priority, source, causes, checked, link, subject)
                    found = native.encode_new(parts, True)
            if found is not None:
                return *found, None
        observation = self.validator.build(
            entity, patch, observed_at=observed_at, now=now, kind=kind, priority=priority, source=source, causes=causes,
            cleared=cleared, retracts=retracts, link=link, subject=subject, allow_future=allow_future, blobs=blobs,
        )  # fmt: skip
        return *self.codec.encode_identified(observation), observation


class Hole(NamedTuple):
    """An offset of `.schemas` that registers nothing; registered_at in milliseconds."""

    offset: int
    registered_at: int


class Registry:
    """Definitions by offset, name, fingerprint and wire id. Not thread-safe.

    Its length is the next offset of `.schemas`, holes included; all other methods skip holes.
    """

    def __init__(self, rulings: Rulings | None = None) -> None:
        """
        Args:
            rulings: The records of the log that are set aside, if the log can have such.
        """
        self.rulings = Rulings() if rulings is None else rulings
        self._entries: list[TypeVersion | Hole] = []
        self._by_wire_id: dict[int, TypeVersion] = {}
        self._by_name: dict[str, list[TypeVersion]] = {}
        self._given: dict[int, tuple[str, object]] = {}  # wire id -> (type, schema), of every derived schema
        self._out_from: dict[int, int] = {}  # offset of a version set aside -> from which place on
        self._aside: set[bytes] = set()  # fingerprints of what is set aside
        self._pending: dict[int, TypeVersion] = {}  # by the offset of its definition
        self._pending_ids: dict[int, TypeVersion] = {}
        self._pending_prints: set[bytes] = set()
        self._remembered: Callable[[bytes], Observation] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TypeVersion]:
        return (place for place in self._entries if isinstance(place, TypeVersion))

    def entries(self) -> Iterator[TypeVersion | Hole]:
        """The entry at every offset of `.schemas`, in order."""
        return iter(self._entries)

    def find(self, definition: TypeDefinition) -> TypeVersion | None:
        """The version in effect with this fingerprint, if any."""
        fingerprint, below = definition.fingerprint, len(self)  # asked for each observation, so no list is made
        for version in self._by_name.get(definition.name, ()):
            if version.definition.fingerprint == fingerprint and self.is_in_effect(version, below):
                return version
        return None

    def is_aside(self, definition: TypeDefinition) -> bool:
        """Whether this definition is set aside. It cannot be registered until it is restored."""
        return definition.fingerprint in self._aside

    def pending(self) -> list[TypeVersion]:
        """The definitions that wait to be activated, by offset. Until then none is a version of its type."""
        return list(self._pending.values())

    def pending_at(self, offset: int) -> TypeVersion | None:
        """The definition at an offset that waits to be activated, if one does."""
        return self._pending.get(offset)

    def is_pending(self, definition: TypeDefinition) -> bool:
        """Whether a definition with this fingerprint waits to be activated."""
        return definition.fingerprint in self._pending_prints

    def pending_writer(self, wire_id: int) -> TypeVersion | None:
        """The pending definition whose observations are written under an id, where no version in effect has that id."""
        return None if wire_id in self._by_wire_id else self._pending_ids.get(wire_id)

    def in_effect(self, name: str, below: int | None = None) -> list[TypeVersion]:
        """A type's versions registered below an offset, or all, without those set aside below it."""
        below = len(self) if below is None else below
        return [each for each in self._by_name.get(name, ()) if self.is_in_effect(each, below)]

    def is_in_effect(self, version: TypeVersion, below: int) -> bool:
        """Whether a version is registered below an offset of `.schemas`, and not set aside below it."""
        return version.offset < below <= self._out_from.get(version.offset, below)

    def check(self, definition: TypeDefinition, wire_ids: WireIds | None = None) -> None:
        """Raise SchemaError if the definition cannot be added.

        Without wire_ids, a log that uses a Schema Registry checks only the definition, before it requests the ids.
        """
        check_evolution((each.definition for each in self.in_effect(definition.name)), definition)
        if wire_ids is not None:
            self._check_given(definition, wire_ids)
            return
        codec = ObservationCodec(definition)
        clash = self._by_wire_id.get(codec.wire_id)
        if clash is not None and clash.wire_ids is None and clash.codec.text != codec.text:
            raise SchemaError(f"{definition.name}: its schema has the 31-bit id of one of {clash.definition.name}; "
                              "change any doc-free part of it, such as the order of its fields")  # fmt: skip

    def conflicts_with(self, version: TypeVersion, definition: TypeDefinition, wire_ids: WireIds | None = None) -> bool:
        """Whether this version alone prevents a definition from being added."""
        if not self.is_in_effect(version, len(self)):
            return False
        alone = Registry()
        alone.add(version.definition, wire_ids=version.wire_ids)
        try:
            alone.check(definition, wire_ids)
        except SchemaError:
            return True
        return False

    def _check_given(self, definition: TypeDefinition, wire_ids: WireIds) -> None:
        """Refuse an id that already belongs to another schema: a registry that was emptied or replaced assigns ids
        again.
        """
        mine: dict[int, object] = {}
        for wire_id, schema in zip(wire_ids, _schemas_of(definition), strict=True):
            name, known = self._given.get(wire_id, (definition.name, mine.get(wire_id, schema)))
            if known != schema:
                raise SchemaError(f"{definition.name}: the Schema Registry gave its schema the id {wire_id}, which is "
                                  f"that of another schema in this log, of {name}; was the registry emptied or "
                                  "replaced? Restore it, or create a log under another prefix")  # fmt: skip
            mine[wire_id] = schema

    def add(self, definition: TypeDefinition, registered_at: int = 0, wire_ids: WireIds | None = None) -> TypeVersion:
        """Register a definition at the next offset.

        Args:
            definition: The definition; `check` accepts it.
            registered_at: Milliseconds since 1970, by the log's clock.
            wire_ids: Its ids from a Schema Registry; None for the 31-bit ids of its schemas.
        """
        version = TypeVersion(definition, len(self._entries), registered_at, wire_ids)
        self._entries.append(version)
        self._by_name.setdefault(definition.name, []).append(version)
        self._take_ids(version)
        return version

    def _take_ids(self, version: TypeVersion) -> None:
        self._by_wire_id.setdefault(version.codec.wire_id, version)
        if version.wire_ids is not None:
            for wire_id, schema in zip(version.wire_ids, _schemas_of(version.definition), strict=True):
                self._given.setdefault(wire_id, (version.definition.name, schema))

    def set_aside(self, version: TypeVersion, registered_at: int = 0) -> None:
        """At the next offset, set a definition aside, at all offsets where it was registered."""
        definition, place = version.definition, len(self)
        before = self.in_effect(definition.name)
        alike = [each for each in before if each.definition.fingerprint == definition.fingerprint]
        if not alike:
            self.skip(registered_at)
            return
        self._aside.add(definition.fingerprint)
        # By offset: below the next offset it is still in effect.
        self._out_from.update((each.offset, place) for each in alike)
        left = [each for each in before if each not in alike]
        if left and before[-1] in alike:
            again = TypeVersion(left[-1].definition, place, registered_at, left[-1].wire_ids)
            self._entries.append(again)
            self._by_name[definition.name].append(again)
        else:
            self.skip(registered_at)
        self._by_wire_id.clear()
        self._given.clear()
        for each in self:
            if self.is_in_effect(each, len(self)):
                self._take_ids(each)

    def restore(self, version: TypeVersion, registered_at: int = 0) -> None:
        """At the next offset, register again a definition that was set aside; a hole if it is incompatible now."""
        definition = version.definition
        try:
            self.check(definition, version.wire_ids)
        except SchemaError:
            self.skip(registered_at)
            return
        if definition.fingerprint not in self._aside:
            self.skip(registered_at)
            return
        self._aside.discard(definition.fingerprint)
        self.add(definition, registered_at, version.wire_ids)

    def suspend(self, definition: TypeDefinition, registered_at: int = 0, wire_ids: WireIds | None = None) -> None:
        """Add a definition at the next offset as pending: a hole for every reader until it is activated."""
        version = TypeVersion(definition, len(self), registered_at, wire_ids)
        self._pending[version.offset] = version
        self._pending_ids.setdefault(version.codec.wire_id, version)
        self._pending_prints.add(definition.fingerprint)
        self.skip(registered_at)

    def activate(self, offset: int, registered_at: int = 0) -> None:
        """At the next offset, register the definition that is pending at another offset; a hole if it is
        incompatible.
        """
        version = self._pending.get(offset)
        if version is None or self.is_aside(version.definition):
            self.skip(registered_at)
            return
        try:
            self.check(version.definition, version.wire_ids)
        except SchemaError:
            self.skip(registered_at)
            return
        del self._pending[offset]
        self._pending_prints.discard(version.definition.fingerprint)
        self._pending_ids = {each.codec.wire_id: each for each in reversed(self._pending.values())}
        self.add(version.definition, registered_at, version.wire_ids)

    def skip(self, registered_at: int = 0) -> None:
        """Add a hole at the next offset."""
        self._entries.append(Hole(len(self._entries), registered_at))

    def versions(self, name: str) -> list[TypeVersion]:
        """Every version of a type, oldest first, including those set aside."""
        return list(self._by_name.get(name, ()))

    def schemas_offset_at(self, time_ms: int) -> int:
        """The offset below which every entry was registered at or before a time, in milliseconds."""
        later = (offset for offset, place in enumerate(self._entries) if place.registered_at > time_ms)
        return next(later, len(self._entries))

    def newest(self, name: str, below: int | None = None) -> TypeVersion:
        """The newest version of a type, or the newest registered below an offset.

        Raises:
            SchemaError: The log has no such type.
        """
        found = self.in_effect(name, below)
        if found:
            return found[-1]
        known = ", ".join(sorted(self._by_name)) or "none yet"
        raise SchemaError(f"unknown type {name!r}; this log knows: {known}. Add its .avsc file with --types")

    def decode(self, data: bytes) -> Observation:
        """Decode the observation in a framed message by its writer's schema.

        Raises:
            UndecodableError: It is not an observation.
            UnknownWireId: Its schema is not registered.
        """
        return (self._remembered or self._decode)(data)

    def _decode(self, data: bytes) -> Observation:
        wire_id = framed_id(data)
        version = self._by_wire_id.get(wire_id)
        if version is None:
            raise UnknownWireId(wire_id)
        return version.codec.decode_observation(data)

    @contextmanager
    def remembering(self, observations_max: int) -> Iterator[None]:
        """Within the block, decode messages with the same bytes once.

        Args:
            observations_max: How many observations are kept: those that were decoded or asked for last.
        """
        self._remembered = lru_cache(observations_max)(self._decode)
        try:
            yield
        finally:
            self._remembered = None

    def identified(self, data: bytes) -> tuple[Observation, bytes]:
        """Like `decode`, and also return the observation's id.

        Raises:
            UnknownWireId: No definition has the message's id.
        """
        version = self._by_wire_id.get(framed_id(data))
        if version is None:
            raise UnknownWireId(framed_id(data))
        return version.codec.identified(data)

    def at(self, offset: int) -> TypeVersion | None:
        """The version registered at an offset below the next one; None for a hole."""
        place = self._entries[offset]
        return place if isinstance(place, TypeVersion) else None

    def writer(self, data: bytes) -> TypeVersion | None:
        """The first version with the schema of a framed message, or None. Raises UndecodableError without a frame."""
        return self._by_wire_id.get(framed_id(data))

    def writers(self) -> list[TypeVersion]:
        """The first version of each schema; its codec reads the schema's messages."""
        return list(self._by_wire_id.values())

    def with_derived_id(self, data: bytes) -> bytes:
        """A framed message with the derived wire id, as a log without a Schema Registry holds it."""
        version = self.writer(data)
        if version is None or version.wire_ids is None:
            return data
        return reframed(data, derived_wire_id(version.codec.text))

    def fingerprints(self, below: int | None = None) -> dict[str, bytes]:
        """The fingerprint of each type's newest version, or newest below an offset."""
        below = len(self) if below is None else below
        found = (each.definition for each in self if self.is_in_effect(each, below))
        return {each.name: each.fingerprint for each in found}

    def digest(self, below: int | None = None) -> bytes:
        """SHA-256 over each type's name and the fingerprint of its newest version: 32 bytes."""
        return hashlib.sha256(encode(self.fingerprints(below))).digest()


def _schemas_of(definition: TypeDefinition) -> list[object]:
    """A type's schemas without aliases: some registries assign one id to schemas that differ only in aliases."""
    return [json.loads(text, object_hook=_without_aliases) for text in schemas_of(definition)]


def _without_aliases(schema: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in schema.items() if key != "aliases"}
