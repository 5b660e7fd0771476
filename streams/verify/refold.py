"""Folds one partition from nothing, with a stop at each requested point: one fold for all checks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from refold.avro.errors import RefoldError, SchemaError, StorageError
from refold.avro.observation import type_of
from refold.streams.digest import Digests
from refold.streams.log.port import LogReader, Mismatch
from refold.streams.rebuild.range_fold import RangeFold, ReadRange
from refold.streams.rebuild.result import RebuiltPartition
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.table.confirming import Choose
from refold.streams.table.folds import Folds


class Refold:
    """The entities of one partition at `offset`, by the definitions below `schemas`.

    Args:
        checks: Selects the entities whose kernel fold Python checks.

    Attributes:
        gone: The types whose definition there names custom code that is missing; their entities are not checked.
        touched: The entities with records between the previous point and the last one.
    """

    def __init__(
        self, log: LogReader, partition: int, store: ChunkStore, read: Callable[[int], None], checks: Choose
    ) -> None:  # fmt: skip
        self.partition = partition
        self._registry = log.registry
        self._left: set[str] = set()
        self._range_fold = RangeFold(log, partition, Layers(store), Folds(log.registry, 0), read, self._wants, checks)
        self.offset = 0
        self.schemas = 0
        self.gone: frozenset[str] = frozenset()
        self.touched: set[str] = set()

    def read_from(self, read_range: ReadRange) -> None:
        """From now on read records by this function."""
        self._range_fold.read_range = read_range

    def to(self, offset: int, schemas: int) -> None:
        """Continue the fold to a point.

        Raises:
            RefoldError: That fails; the object cannot be used afterwards.
        """
        try:
            postponed = [] if schemas == self.schemas else self._redefined(schemas)
            self.touched.clear()
            self._range_fold.advance(self.offset, offset, postponed=postponed)
            self._range_fold.finish()
        except StorageError as error:
            raise RefoldError(str(error)) from error
        self.offset, self.schemas = offset, schemas

    def _redefined(self, schemas: int) -> list[str]:
        """Apply the definitions below an offset; returns the entities that have to be folded again."""
        before, after = self._registry.fingerprints(self.schemas), self._registry.fingerprints(schemas)
        self._range_fold.folds = folds = Folds(self._registry, schemas)
        gone = frozenset(name for name in after if _is_gone(folds, name))
        again = {name for name, found in before.items() if after.get(name) != found} - gone
        self.gone = gone
        if not again:
            return []
        names = {name for name in self.layers.names() if type_of(name) in again}
        names.update(name for name in self._left if type_of(name) in again)
        self._left -= names
        return sorted(names)

    def require_all(self) -> None:
        """Raise SchemaError if there are entities that could not be folded."""
        if self.gone:
            for name in (*self._left, *self.layers.names()):
                if self.is_gone(name):
                    self._range_fold.folds.of_entity(name)

    def _wants(self, name: str) -> bool:
        self.touched.add(name)
        if type_of(name) in self.gone:
            self._left.add(name)
            return False
        return True

    @property
    def layers(self) -> Layers:
        """The entities."""
        return self._range_fold.layers

    @property
    def entities(self) -> int:
        """How many there are."""
        return self._range_fold.entities

    @property
    def observations(self) -> int:
        """The number of distinct observations folded."""
        return self._range_fold.observations

    def is_gone(self, name: str) -> bool:
        """Whether an entity's type is one of `gone`."""
        return bool(self.gone) and type_of(name) in self.gone

    def misfolded(self) -> Iterator[Mismatch]:
        """The entities whose states differ between the native kernel and Python."""
        for name in sorted(self._range_fold.misfolded):
            yield Mismatch("kernel", "the native kernel folds it to another state than Python; REFOLD_KERNEL=0", name)

    def digests(self) -> Digests:
        """The digests of the entities."""
        return self.layers.rehash()

    def part(self) -> RebuiltPartition:
        """The entities in the form of a rebuild."""
        return RebuiltPartition(self.layers, self.entities, self.observations)


def _is_gone(folds: Folds, type_name: str) -> bool:
    try:
        folds.of(type_name)
    except SchemaError:
        return True
    return False
