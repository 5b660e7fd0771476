"""What the native kernel confirms for verify, and which entities Python checks in spite of that.

The kernel confirms only what is right; Python checks everything else, and names what is wrong. A kernel that is wrong
could confirm too much. Therefore Python also checks all records, states, changes and checkpoints of some entities,
others at each verify.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from itertools import compress

from refold.avro.kernel import IndexRows, RecordChecker, find_kernel
from refold.avro.registry import Registry
from refold.streams.log.port import Record

CHECKED_RECORDS = 2_000
"""About the number of records of the entities that Python checks."""

Choose = Callable[[str], bool]
"""Whether an entity is selected."""


def some_entities(records: int) -> Choose:
    """Select entities with about CHECKED_RECORDS of a log's records, at random; all entities if the log has fewer than
    twice as many records.
    """
    share, salt = max(1, records // CHECKED_RECORDS), int.from_bytes(os.urandom(4), "big")
    return lambda name: zlib.crc32(name.encode(), salt) % share == 0


class RecordConfirmer:
    """Lets the kernel check records, apart from those of entities that Python checks."""

    def __init__(self, registry: Registry, partitions: int, checks: Choose) -> None:
        self._registry = registry
        self._partitions = partitions
        self._checks = checks
        self._kernel = find_kernel().kernel
        self._native: RecordChecker | None = None
        self._known = -1

    def confirmed(self, records: Sequence[Record]) -> list[bool]:
        """Whether each record is certainly right: see the kernel's `confirm`."""
        native = self._checker()
        if native is None:
            return [False] * len(records)
        given = self._left_to_kernel(records)
        found = iter(native.confirm(list(compress(records, given))))
        return [each and next(found) for each in given]

    def rows(self, records: Sequence[Record]) -> tuple[list[Record], list[Record], IndexRows | None]:
        """Let the kernel make the rows of records in the indexes.

        Returns:
            The records that Python has to check, the others, and the others' rows.
        """
        native = self._checker()
        if native is None:
            return [*records], [], None
        given = self._left_to_kernel(records)
        found = native.rows(list(compress(records, given)))
        answers = iter(found[0])
        confirmed = [each and next(answers) for each in given]
        rest = [record for record, is_confirmed in zip(records, confirmed, strict=True) if not is_confirmed]
        return rest, list(compress(records, confirmed)), found

    def _left_to_kernel(self, records: Iterable[Record]) -> list[bool]:
        checks = self._checks
        return [not checks(record.entity) for record in records]

    def _checker(self) -> RecordChecker | None:
        """The kernel's checker, with the readers of all definitions that are known by now."""
        if self._kernel is not None and len(self._registry) != self._known:
            self._known = len(self._registry)
            natives = (each.codec.native for each in self._registry.writers())
            readers = [each for each in natives if each is not None]
            self._native = self._kernel.RecordChecker(readers, self._partitions)
        return self._native
