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
from typing import NamedTuple

from refold.avro.errors import SchemaError
from refold.avro.kernel import (
    Doubtful,
    GroupedRecords,
    Kernel,
    PartitionOutcome,
    Replayed,
    StoredRecords,
    TypeFolder,
)
from refold.avro.observation import type_of
from refold.streams.rocks.batch import WriteSet
from refold.streams.table.folds import Folds

Lookup = Callable[[Sequence[bytes]], Sequence[bytes | None]]


class NativeOutcome(NamedTuple):
    """What the kernel folded of a batch.

    Attributes:
        partitions: The outcome of each partition of the batch.
        left: The numbers of the entities that Python has to fold.
        records: The number of records that the kernel folded.
    """

    partitions: Sequence[PartitionOutcome]
    left: Sequence[int]
    records: int


def fold_groups(
    kernel: Kernel, folds: Folds, groups: GroupedRecords, keys: list[bytes], stored: Sequence[bytes | None],
    through: Mapping[int, int], write: WriteSet, timeline: Lookup | None,
) -> NativeOutcome | None:  # fmt: skip
    """Fold the entities of a batch that the kernel can, and put their states and rows into a write.

    Args:
        kernel: The native kernel.
        folds: The folds of the types.
        groups: The batch's records.
        keys: The keys of the entities' states.
        stored: These states.
        through: The batch's next offset by partition.
        write: The write.
        timeline: Reads the rows of some keys; None where it lacks some.

    Returns:
        The outcome; its partitions are those of `through`, in order. None if the kernel panicked: nothing is done.
    """
    folders = [_folder_of(kernel, folds, name) for name in groups.types]
    ends = dict(through)
    found = groups.fold(folders, keys, stored, ends, None)
    if found is None:
        return None
    rows, partitions, left, doubtful, count = found
    _put_rows(write, *rows)
    if not doubtful or timeline is None:
        return NativeOutcome(partitions, left, count)
    told = _told(doubtful, timeline)
    found = groups.fold(folders, keys, stored, ends, told)
    if found is None:
        return NativeOutcome(partitions, left, count)
    rows, more, still_left, _, more_count = found
    _put_rows(write, *rows)
    order = {key: number for number, key in enumerate(keys)}
    merged: list[PartitionOutcome] = []
    for (first, (new, observations, late)), (second, others) in zip(partitions, more, strict=True):
        changes = sorted([*first, *second], key=lambda change: order[change[0]])
        merged.append((changes, (new + others[0], observations + others[1], late + others[2])))
    still = {*still_left}
    return NativeOutcome(merged, [each for each in left if each not in told or each in still], count + more_count)


def _told(doubtful: Sequence[Doubtful], timeline: Lookup) -> dict[int, dict[int, bool]]:
    """Return for each doubtful entity whether the timeline holds its records, by their places."""
    rows = iter(timeline([key for _, asked in doubtful for _, key in asked]))
    return {entity: {record: next(rows) is not None for record, _ in asked} for entity, asked in doubtful}


def _put_rows(
    write: WriteSet, states: Sequence[bytes], timeline: Sequence[bytes], arrivals: Sequence[bytes],
    ids: Sequence[bytes], checkpoints: Sequence[bytes],
) -> None:  # fmt: skip
    write.put_pairs("state", states)
    write.put_pairs("timeline", timeline)
    write.put_pairs("arrivals", arrivals)
    write.put_keys("ids", ids)
    write.put_pairs("checkpoints", checkpoints)


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
