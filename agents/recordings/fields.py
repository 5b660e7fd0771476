"""The fields of a run's entities, with their content opened, whether it is stored in clear, in a blob or under a
key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from refold.agents.journal.json_fidelity import read
from refold.agents.journal.record import Failure, Plain
from refold.agents.vault import ALL_METADATA, ValueCipher, is_sealed
from refold.avro.errors import NotAnswerable
from refold.avro.jsonform import shower
from refold.avro.nodes import allows
from refold.streams.view import EntityView

Look: TypeAlias = Callable[[Iterable[str]], Mapping[str, EntityView]]
"""Looks up entities by name; returns those that exist at a point."""


class PartMissing(NotAnswerable):
    """A run has ended, or diverged from its parent, and a part of its earlier record is missing at this point."""


FAILURE = Failure.__struct_fields__


class Fields:
    """One entity's fields. field: of the entity, by first name; None for a field without a value."""

    def __init__(self, view: EntityView, vault: ValueCipher) -> None:
        self.entity = view.entity
        self._view = view
        self._fields = view.fields
        self._vault = vault
        self._definition = view.definition.definition

    @property
    def payloads(self) -> list[str]:
        """The fields with a value that may be sealed: those with content."""
        named = self._definition.by_first_name
        return [name for name in self._fields if allows(named[name].element, "refold.Sealed")]

    def plain(self, field: str, default: Any = None) -> Any:
        """Return a value that can be read without any key: an id, a name, a number, a time."""
        return self._fields.get(field, default)

    def opened(self, field: str) -> Plain:
        """A field's content."""
        stored = self._fields.get(field)
        return None if stored is None else self._vault.open(self.entity, field, stored)

    def exact(self, field: str) -> Plain:
        """A field's content, to the type of each number (journal/json_fidelity.py)."""
        return read(self.opened(field))

    def exact_map(self, field: str) -> dict[str, Plain]:
        """The content of each element of a map, likewise."""
        stored: Mapping[str, Any] = self._fields.get(field, {})
        return {key: read(self._vault.open(self.entity, field, value)) for key, value in stored.items()}

    def metadata(self) -> dict[str, Plain]:
        """A run's metadata: sealed as one value under ALL_METADATA, or value by value under clear names."""
        found = self.exact_map("metadata")
        whole = found.get(ALL_METADATA)
        if len(found) == 1 and isinstance(whole, dict) and is_sealed(self._fields["metadata"][ALL_METADATA]):
            return whole
        return found

    def every(self, field: str) -> list[Plain]:
        """All elements of an append field in their order, also those before the newest that it keeps."""
        definition = self._view.definition.definition.by_first_name[field]
        kept = self._fields.get(field, [])
        if len(kept) >= definition.limit:
            observed = [each.seen for each in self._view.history]
            retracted = {target for seen in observed for target in seen.observation.retracts}
            live = [seen for seen in sorted(observed, key=lambda seen: seen.q) if seen.id not in retracted]
            show = shower(definition.node, python=True)
            kept = [element for seen in live for element in show(seen.observation.patch.get(field)) or ()]
        return [self._vault.open(self.entity, field, each) for each in kept]

    def failure(self, field: str) -> Failure | None:
        """Return the record of a failure (RunError and its like), in which each text may be sealed separately."""
        record = self.exact(field)
        if record is None:
            return None
        given = {name: record[name] for name in FAILURE if record.get(name) is not None}
        return msgspec.convert({"exception": "", **given}, Failure)
