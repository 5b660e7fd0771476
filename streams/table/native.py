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

from refold.avro.errors import SchemaError
from refold.avro.kernel import (
    Doubtful,
    EntityRecords,
    FoldedGroups,
    FoldResult,
    GroupedRecords,
    Kernel,
    Replayed,
    StoredRecords,
    TypeFolder,
)
from refold.avro.observation import type_of
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
        self, folds: Folds, grouped: Mapping[str, Sequence[Record]], stored: Sequence[bytes | None],
        through: Mapping[int, int], write: WriteSet, timeline: Lookup | None,
        doubtful: Mapping[int, Sequence[tuple[int, bytes]]] | None = None,
    ) -> Sequence[FoldResult]:  # fmt: skip
        """Return the result of each entity that the kernel folded, in the order of `grouped`; None for the others.

        All its rows but the state are put into `write`.

        Args:
            stored: The entities' states, in the order of `grouped`.
            through: The batch's next offset by partition.
            timeline: Reads the rows of some keys; None where it lacks some.
            doubtful: If the kernel tried these entities before: those that it folds once the timeline is asked, by
                their place in `grouped`, with what to ask. The others are not tried again.
        """
        entities: list[EntityRecords] = [
            (name, packed, through[records[0].partition], records, NOTHING_TOLD)
            for (name, records), packed in zip(grouped.items(), stored, strict=True)
        ]
        found: list[FoldResult] = [None] * len(entities)
        for type_folder, places in _by_type_folder(self._kernel, folds, grouped):
            some = entities if len(places) == len(entities) else [entities[place] for place in places]
            if doubtful is None:
                asked = self._fold(type_folder, some, places, write, found)
            else:
                asked = [(at, doubtful[place]) for at, place in enumerate(places) if place in doubtful]
            if asked and timeline is not None:
                again = [places[at] for at, _ in asked]
                self._fold(type_folder, _with_lookups(some, asked, timeline), again, write, found)
        return found

    def fold_groups(
        self, folds: Folds, groups: GroupedRecords, keys: list[bytes], stored: Sequence[bytes | None], through: int,
        write: WriteSet,
    ) -> FoldedGroups | None:  # fmt: skip
        """Fold the grouped records of one partition. The rows of the folded ones and their states go into `write`.

        Args:
            folds: The folds of their types.
            groups: The records.
            keys: The keys of the entities' states.
            stored: These states.
            through: The batch's next offset.
            write: The write of the batch.

        Returns:
            What the batch changes; None if the kernel panicked.
        """
        folders = [_folder_of(self._kernel, folds, name) for name in groups.types]
        found = groups.fold(folders, keys, stored, through)
        if found is not None:
            states, *rows = found[0]
            write.put_pairs("state", states)
            _put_index_rows(write, *rows)
            self.records += found[-1]
        return found

    def _fold(
        self, type_folder: TypeFolder, entities: Sequence[EntityRecords], places: Sequence[int], write: WriteSet,
        found: list[FoldResult],
    ) -> list[Doubtful]:  # fmt: skip
        """Fold entities, and put the results at their places; returns those that the timeline must be asked about."""
        folded, timeline, arrivals, ids, checkpoints, doubtful = type_folder.fold(entities)
        _put_index_rows(write, timeline, arrivals, ids, checkpoints)
        for place, each in zip(places, folded, strict=True):
            found[place] = each
        self.records += sum([len(entity[3]) for entity, each in zip(entities, folded, strict=True) if each is not None])
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
    every = list(entities)
    found: dict[str, Replayed] = {}
    for type_folder, places in _by_type_folder(kernel, folds, [name for name, _, _ in every]):
        some = [every[place] for place in places]
        for (name, _, _), each in zip(some, type_folder.replay(some), strict=True):
            if each is not None:
                found[name] = each
    return found


def _by_type_folder(
    kernel: Kernel, folds: Folds, names: Iterable[str]
) -> Iterator[tuple[TypeFolder, Sequence[int]]]:  # fmt: skip
    """Yield the kernel's object for each type that it can fold, and the places of the entities of this type."""
    by_type: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        by_type.setdefault(type_of(name), []).append(place)
    for type_name, places in by_type.items():
        type_folder = _folder_of(kernel, folds, type_name)
        if type_folder is not None:
            yield type_folder, places


def _folder_of(kernel: Kernel, folds: Folds, type_name: str) -> TypeFolder | None:
    with suppress(SchemaError):  # raised again when Python folds an entity of the type
        return folds.of(type_name).native(kernel)
    return None


def _put_index_rows(
    write: WriteSet, timeline: Sequence[bytes], arrivals: Sequence[bytes], ids: Sequence[bytes],
    checkpoints: Sequence[bytes],
) -> None:  # fmt: skip
    write.put_pairs("timeline", timeline)
    write.put_pairs("arrivals", arrivals)
    write.put_keys("ids", ids)
    write.put_pairs("checkpoints", checkpoints)
