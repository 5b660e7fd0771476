"""The fields of a run's entities, with their content decrypted: stored in clear, in a blob or sealed with a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from refold.agents.journal.json_fidelity import read
from refold.agents.journal.record import Failure, Plain
from refold.agents.vault import ALL_METADATA, ValueCipher, is_sealed
from refold.avro.errors import NotAnswerable
from refold.avro.jsonform import formatter
from refold.avro.nodes import allows
from refold.streams.view import EntityView

Look: TypeAlias = Callable[[Iterable[str]], Mapping[str, EntityView]]
"""Looks up entities by name. Returns those that exist at a point."""


class PartMissing(NotAnswerable):
    """A run has ended, or is a fork, and a part of its earlier record is missing at this point."""


FAILURE = Failure.__struct_fields__


def links_of(view: EntityView, relation: str) -> list[str]:
    """Return the targets of an entity's links of a relation."""
    return [each["target"] for each in view.links if each["relation"] == relation]


class PlainFields:
    """The fields of one entity that can be read without a key. Methods take a field's first name."""

    def __init__(self, view: EntityView) -> None:
        self.entity = view.entity
        self._view = view
        self._fields = view.fields

    def plain(self, field: str, default: Any = None) -> Any:
        """Return a value that can be read without a key: an id, a name, a number, a time."""
        return self._fields.get(field, default)

    def linked(self, relation: str) -> list[str]:
        """Return the targets of the entity's links of a relation."""
        return links_of(self._view, relation)

    @property
    def recorded_at(self) -> int:
        """The recorded_at of the newest observation that set one of its fields, milliseconds since 1970."""
        return max((self._view.holder(name).recorded_at for name in self._fields), default=0)


class Fields(PlainFields):
    """The fields of one entity. Methods take a field's first name, and return None for a field without a value."""

    def __init__(self, view: EntityView, vault: ValueCipher) -> None:
        super().__init__(view)
        self._vault = vault
        self._definition = view.definition.definition

    @property
    def payloads(self) -> list[str]:
        """The fields that have a value and may be sealed, because they hold content."""
        named = self._definition.by_first_name
        return [name for name in self._fields if allows(named[name].element, "refold.Sealed")]

    def opened(self, field: str) -> Plain:
        """Return a field's content, decrypted.

        Raises:
            NotAnswerable: The content is gone, or no key here opens it.
        """
        stored = self._fields.get(field)
        return None if stored is None else self._vault.open(self.entity, field, stored)

    def exact(self, field: str) -> Plain:
        """Return a field's content with the exact type of each number (journal/json_fidelity.py)."""
        return read(self.opened(field))

    def exact_map(self, field: str) -> dict[str, Plain]:
        """Return the exact content of each element of a map."""
        return {key: read(value) for key, value in self.opened_map(field).items()}

    def opened_map(self, field: str) -> dict[str, Plain]:
        """Return the content of each element of a map, decrypted."""
        stored: Mapping[str, Any] = self._fields.get(field, {})
        return {key: self._vault.open(self.entity, field, value) for key, value in stored.items()}

    def metadata(self) -> dict[str, Plain]:
        """Return a run's metadata. It is sealed as one value under ALL_METADATA, or value by value under clear names.

        Raises:
            NotAnswerable: The content is gone, or no key here opens it.
        """
        found = self.exact_map("metadata")
        whole = found.get(ALL_METADATA)
        if len(found) == 1 and isinstance(whole, dict) and is_sealed(self._fields["metadata"][ALL_METADATA]):
            return whole
        return found

    def every(self, field: str) -> list[Plain]:
        """Return all elements of an append field in order, including those that are no longer in its limited state."""
        definition = self._view.definition.definition.by_first_name[field]
        kept = self._fields.get(field, [])
        if len(kept) >= definition.limit:
            observed = [each.seen for each in self._view.history]
            retracted = {target for seen in observed for target in seen.observation.retracts}
            live = [seen for seen in sorted(observed, key=lambda seen: seen.q) if seen.id not in retracted]
            show = formatter(definition.node, python=True)
            kept = [element for seen in live for element in show(seen.observation.patch.get(field)) or ()]
        return [self._vault.open(self.entity, field, each) for each in kept]

    def failure(self, field: str) -> Failure | None:
        """Return the record of a failure (RunError and its like), in which each text may be sealed separately."""
        record = self.exact(field)
        if record is None:
            return None
        given = {name: record[name] for name in FAILURE if record.get(name) is not None}
        return msgspec.convert({"exception": "", **given}, Failure)
