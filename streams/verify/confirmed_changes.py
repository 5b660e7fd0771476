"""Changes that the native kernel confirms: it folds the records of a stored change again, onto the state before it, and
gets the same bytes.

1. Of a list of changes, take those up to the second one of an entity, or up to the end.
2. Leave to Python: an entity that Python checks, one whose state before the change is not known, and a change that is
   not of its entity's next observations, or was made by a new definition alone.
3. Read the records of the other changes, in one pass, and let the kernel compare each change.
4. When the caller has taken all of these changes, continue with 1.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from refold.avro.errors import SchemaError, StorageError
from refold.avro.kernel import ChangeHead, StoredChange, TypeFolder, find_kernel
from refold.avro.observation import type_of
from refold.avro.registry import Registry
from refold.reducers.entity import stored_hash
from refold.streams.log.port import ChangeRecord, Record
from refold.streams.table.confirming import Choose
from refold.streams.table.folds import TypeFold
from refold.streams.verify.stored_records import StoredRecords

RECORDS_MAX = 50_000
"""So many offsets between the first and the last record of some changes are read at once."""

Firsts = Mapping[str, "array[int]"]
"""The offsets of the first records of each entity's distinct observations, for one partition."""


class Reached(NamedTuple):
    """The end of a chain; packed is None if it could not be folded."""

    version: int
    hash: bytes | None
    definition: bytes
    packed: bytes | None


BEGIN = Reached(0, None, b"", None)


class ConfirmedChange(NamedTuple):
    """A confirmed change: its `through`, the offsets of its first and last record, and the state after it."""

    entity: str
    through: int
    first: int
    last: int
    reached: Reached


class ChangeConfirmer:
    """Confirms changes of one partition. Call `begin` with some changes, then `next` for each of them, in order."""

    def __init__(self, registry: Registry, firsts: Firsts, records: StoredRecords, checks: Choose) -> None:
        self._firsts = firsts
        self._records = records
        self._checks = checks
        self._kernel = find_kernel().kernel
        self._versions = {each.definition.fingerprint: each for each in registry}
        self._folders: dict[bytes, TypeFolder | None] = {}
        self._changes: list[ChangeRecord] = []
        self._heads: list[ChangeHead | None] = []
        self._at = 0
        self._found: list[ConfirmedChange | None] = []
        self._begin = 0

    def begin(self, changes: list[ChangeRecord]) -> None:
        """Continue with these changes; with none, the next changes are not confirmed."""
        self._changes = changes
        self._heads = [] if self._kernel is None else self._kernel.change_heads([each.data for each in changes])
        self._at = self._begin = 0
        self._found = []

    def next(self, reached: Mapping[str, Reached]) -> ConfirmedChange | None:
        """The next change, if it is confirmed.

        Args:
            reached: By entity, the ends of the chains of all changes before it.
        """
        if not self._heads:
            return None
        if self._at == self._begin + len(self._found):
            self._begin = self._at
            self._found = self._confirm(self._at, self._end_of(self._at), reached)
        found = self._found[self._at - self._begin]
        self._at += 1
        return found

    def _end_of(self, begin: int) -> int:
        """The place of the first change whose entity has another one from `begin` on."""
        known: set[str] = set()
        for place, head in enumerate(islice(self._heads, begin, None), begin):
            if head is None:
                return place if place > begin else place + 1
            if head[0] in known:
                return place
            known.add(head[0])
        return len(self._heads)

    def _confirm(self, begin: int, end: int, reached: Mapping[str, Reached]) -> list[ConfirmedChange | None]:
        found: list[ConfirmedChange | None] = [None] * (end - begin)
        wanted: list[tuple[int, ChangeHead, TypeFolder, array[int]]] = []
        for place in range(begin, end):
            head = self._heads[place]
            folder = None if head is None else self._folder_for(head, reached.get(head[0], BEGIN))
            if head is not None and folder is not None:
                wanted.append((place, head, folder, self._firsts[head[0]][head[2] : head[3]]))
        if not wanted:
            return found
        first, last = min(each[3][0] for each in wanted), max(each[3][-1] for each in wanted)
        if last - first >= RECORDS_MAX:
            return found
        records: dict[int, Record] = {}
        with suppress(StorageError):  # Python names it
            records = {each.offset: each for each in self._records.between(first, last + 1)}
        by_folder: dict[int, tuple[TypeFolder, list[int], list[StoredChange]]] = {}
        for number, (place, head, folder, offsets) in enumerate(wanted):
            some = [records[offset] for offset in offsets if offset in records]
            if len(some) == len(offsets):
                _, numbers, given = by_folder.setdefault(id(folder), (folder, [], []))
                numbers.append(number)
                given.append((head[0], reached.get(head[0], BEGIN).packed, some, self._changes[place].data))
        for folder, numbers, given in by_folder.values():
            for number, state in zip(numbers, folder.check_changes(given), strict=True):
                if state is not None:
                    place, head, _, offsets = wanted[number]
                    found[place - begin] = _confirmed(head, offsets, state)
        return found

    def _folder_for(self, head: ChangeHead, before: Reached) -> TypeFolder | None:
        """The kernel's object that can fold a change onto the state before it; None if Python has to check it."""
        entity, definition, from_version, to_version, _ = head
        is_next = before.version == from_version < to_version <= len(self._firsts.get(entity, ()))
        is_known = not from_version or (before.definition == definition and before.packed is not None)
        if not is_next or not is_known or self._checks(entity):
            return None
        if definition not in self._folders:
            self._folders[definition] = None
            version = self._versions.get(definition)
            if self._kernel is not None and version is not None:
                with suppress(SchemaError):  # Python names it
                    self._folders[definition] = TypeFold(version).native(self._kernel)
        version = self._versions.get(definition)
        return self._folders[definition] if version is not None and version.definition.name == type_of(entity) else None


def _confirmed(head: ChangeHead, offsets: Sequence[int], state: bytes) -> ConfirmedChange:
    entity, definition, _, to_version, through = head
    reached = Reached(to_version, stored_hash(state), definition, state)
    return ConfirmedChange(entity, through, offsets[0], offsets[-1], reached)
