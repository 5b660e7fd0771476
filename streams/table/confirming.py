"""What the native kernel confirms for verify, and which entities Python checks in spite of that.

The kernel confirms only what is right; Python checks everything else, and names what is wrong. A kernel that is wrong
could confirm too much. Therefore Python also checks all records, states, changes and checkpoints of some entities,
others at each verify.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Sequence
from itertools import compress
from typing import NamedTuple

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


class Confirmation(NamedTuple):
    """The records of a batch that the kernel confirms, and their rows in the indexes, if they were asked for."""

    are_confirmed: list[bool]
    confirmed: list[Record]
    rows: IndexRows | None


class RecordConfirmer:
    """Lets the kernel check records, apart from those of entities that Python checks."""

    def __init__(self, registry: Registry, partitions: int, checks: Choose) -> None:
        self._registry = registry
        self._partitions = partitions
        self._checks = checks
        self._kernel = find_kernel().kernel
        self._native: RecordChecker | None = None
        self._known = -1

    def confirm(self, records: Sequence[Record], *, with_rows: bool) -> Confirmation:
        """Find out which records are certainly right (see the kernel's `confirm`).

        Args:
            records: The records.
            with_rows: Whether their rows in the indexes are needed.
        """
        native = self._checker()
        if native is None:
            return Confirmation([False] * len(records), [], None)
        checks = self._checks
        are_given = [not checks(record.entity) for record in records]
        given = list(compress(records, are_given))
        rows = native.rows(given) if with_rows else None
        answers = iter(native.confirm(given) if rows is None else rows[0])
        are_confirmed = [is_given and next(answers) for is_given in are_given]
        return Confirmation(are_confirmed, list(compress(records, are_confirmed)), rows)

    def _checker(self) -> RecordChecker | None:
        """The kernel's checker, with the readers of all definitions that are known by now."""
        if self._kernel is not None and len(self._registry) != self._known:
            self._known = len(self._registry)
            natives = (each.codec.native for each in self._registry.writers())
            readers = [each for each in natives if each is not None]
            self._native = self._kernel.RecordChecker(readers, self._partitions)
        return self._native
