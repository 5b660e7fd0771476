"""Limits of a view: entities by type or by name, and closed entities by when they closed.

`types` and `entities` together say which entities are wanted; without both, all are. `since` excludes entities that
closed before it: those of a type with `refold.closed_by` whose closing field is set at the cut, by an observation that
was observed before `since`. It never excludes an open entity, or one of a type that does not close.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from refold.avro.envelope import check_entity
from refold.avro.errors import InputError, SchemaError
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.streams.snapshots.closed_entities import Closing, closed_at, closings, month_of

MONTH = re.compile(r"\d{4}-\d{2}\Z")


@dataclass(frozen=True, slots=True)
class RebuildLimits:
    """since: in microseconds. closing: by type name, what closes it at the cut."""

    types: frozenset[str] | None = None
    entities: frozenset[str] | None = None
    since: int | None = None
    closing: Mapping[str, Closing] = field(default_factory=dict)

    @property
    def by_name_alone(self) -> bool:
        """Whether each entity that can be wanted is known by name."""
        return self.types is None and self.entities is not None

    def reads(self, type_name: str, month: str) -> bool:
        """Whether what is wanted can be among the closed entities of a type and month."""
        if self.types is not None and type_name not in self.types:
            return False
        first = "" if self.since is None else month_of(self.since)
        return not (MONTH.match(first) and MONTH.match(month)) or month >= first

    def wants(self, name: str) -> bool:
        """Whether an entity is wanted, by its name."""
        return self.of_type(name) or (self.entities is not None and name in self.entities)

    def of_type(self, name: str) -> bool:
        """Whether an entity is wanted for its type."""
        if self.types is None:
            return self.entities is None
        return type_of(name) in self.types

    def keeps(self, name: str, packed: bytes) -> bool:
        """Whether a wanted entity, as it stands at the cut, is not left out for having been closed before `since`."""
        if self.since is None:
            return True
        closed = closed_at(self.closing, name, packed)
        return closed is None or closed >= self.since


def limits_of(
    registry: Registry, schemas: int, types: Iterable[str] | None = None, entities: Iterable[str] | None = None,
    since: int | None = None,
) -> RebuildLimits | None:  # fmt: skip
    """The limits of a view at a cut with this offset of `.schemas`; None where nothing is limited.

    InputError where a type is not known to the log, an entity is not written TYPE/ID, or nothing is named.
    """
    if types is None and entities is None and since is None:
        return None
    wanted_types = _named("types", types)
    wanted_entities = _named("entities", entities)
    for name in sorted(wanted_types or ()):
        _require_known(registry, name, name)
    for name in sorted(wanted_entities or ()):
        _require_known(registry, type_of(check_entity(name)), name)
    return RebuildLimits(wanted_types, wanted_entities, since, {} if since is None else closings(registry, schemas))


def _named(what: str, given: Iterable[str] | None) -> frozenset[str] | None:
    if given is None:
        return None
    names = frozenset((given,) if isinstance(given, str) else given)
    if not names:
        raise InputError(f"{what}: name at least one, or leave {what} out to have all")
    return names


def _require_known(registry: Registry, type_name: str, asked: str) -> None:
    known = registry.fingerprints()
    if type_name not in known:
        shown = ", ".join(sorted(known)) or "none yet"
        raise SchemaError(f"{asked}: nothing of the type {type_name!r} was recorded here; this log has {shown}")
