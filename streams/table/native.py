"""The part of a batch that the kernel folds (avro/kernel.py).

The kernel takes whole entities: an entity's stored state and all of its records in the batch. An entity that it cannot
fold is left to Python as a whole, so that one of the two folds all of its records, in log order. Left to Python are
- records that retract, that clear or append out of order, or were written by another definition of the type;
- fields with a custom reducer, and sums that need more than 128 bits;
- states with more than 64 ids that are retracted and not seen yet;
- records that only the timeline can recognise as new or repeated, while the indexes have gaps;
- damaged states: Python reports the damage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from refold.avro.errors import SchemaError
from refold.avro.kernel import Doubtful, EntityRecords, FoldedEntity, Kernel, Replayed, StoredRecords, TypeFolder
from refold.avro.observation import Observation, type_of
from refold.streams.log.port import Record
from refold.streams.rocks.batch import WriteSet
from refold.streams.table.folds import Folds

Lookup = Callable[[Sequence[bytes]], Sequence[bytes | None]]
NOTHING_TOLD: Mapping[int, bool] = {}


class NativeFolder:
    """Lets the kernel fold the entities of a batch that it can. `records`: the number of records that it folded."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.records = 0

    def fold(
        self, folds: Folds, grouped: Mapping[str, Sequence[tuple[Record, Observation | None]]],
        stored: Sequence[bytes | None], through: Mapping[int, int], write: WriteSet, timeline: Lookup | None,
    ) -> dict[str, FoldedEntity | tuple[()]]:  # fmt: skip
        """Return the result of each entity that the kernel folded, by name.

        All its rows but the state are put into `write`.

        Args:
            stored: The entities' states, in the order of `grouped`.
            through: The batch's next offset by partition.
            timeline: Reads the rows of some keys; None where it lacks some.
        """
        entities = []
        for (name, decoded), packed in zip(grouped.items(), stored, strict=True):
            records = [record for record, _ in decoded]
            entities.append((name, packed, through[records[0].partition], records, NOTHING_TOLD))
        found: dict[str, FoldedEntity | tuple[()]] = {}
        for type_folder, some in _by_type_folder(self._kernel, folds, entities):
            doubtful = self._fold(type_folder, some, write, found)
            if doubtful and timeline is not None:
                self._fold(type_folder, _with_lookups(some, doubtful, timeline), write, found)
        return found

    def _fold(
        self, type_folder: TypeFolder, entities: Sequence[EntityRecords], write: WriteSet,
        found: dict[str, FoldedEntity | tuple[()]],
    ) -> list[Doubtful]:  # fmt: skip
        folded, timeline, arrivals, ids, checkpoints, doubtful = type_folder.fold(entities)
        write.put_pairs("timeline", timeline)
        write.put_pairs("arrivals", arrivals)
        write.put_keys("ids", ids)
        write.put_pairs("checkpoints", checkpoints)
        for (name, _, _, taken, _), each in zip(entities, folded, strict=True):
            if each is not None:
                found[name] = each
                self.records += len(taken)
        return doubtful


def _with_lookups(
    entities: Sequence[EntityRecords], doubtful: Sequence[Doubtful], timeline: Lookup
) -> list[EntityRecords]:
    """The entities whose records are in doubt, with what the timeline holds of these."""
    rows = iter(timeline([key for _, asked in doubtful for _, key in asked]))
    answered: list[EntityRecords] = []
    for place, asked in doubtful:
        name, packed, through, records, _ = entities[place]
        answered.append((name, packed, through, records, {record: next(rows) is not None for record, _ in asked}))
    return answered


def replay(kernel: Kernel, folds: Folds, entities: Iterable[StoredRecords]) -> dict[str, Replayed]:
    """Fold entities from nothing by the kernel.

    Args:
        kernel: The native kernel.
        folds: The folds of their types.
        entities: Each entity with all its records.

    Returns:
        By name, the new state of each entity that the kernel folded; Python folds the rest.
    """
    found: dict[str, Replayed] = {}
    for type_folder, some in _by_type_folder(kernel, folds, entities):
        for (name, _, _), each in zip(some, type_folder.replay(some), strict=True):
            if each is not None:
                found[name] = each
    return found


Given = TypeVar("Given", EntityRecords, StoredRecords)


def _by_type_folder(
    kernel: Kernel, folds: Folds, entities: Iterable[Given]
) -> Iterator[tuple[TypeFolder, list[Given]]]:  # fmt: skip
    """The entities of each type that the kernel can fold, with the kernel's object for the type."""
    by_type: dict[str, list[Given]] = {}
    for each in entities:
        by_type.setdefault(type_of(each[0]), []).append(each)
    for type_name, some in by_type.items():
        type_folder = None
        with suppress(SchemaError):  # raised again when Python folds an entity of the type
            type_folder = folds.of(type_name).native(kernel)
        if type_folder is not None:
            yield type_folder, some
