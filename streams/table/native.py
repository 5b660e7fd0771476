"""The part of a batch that the kernel folds (avro/kernel.py).

The kernel takes whole entities: an entity's stored state and all of its records in the batch. What it does not fold is
left to Python, whole entities too, so that one of the two folds all of an entity's records, in log order:
- records that clear, retract or link, or were written by another definition of the type;
- fields with reducers other than latest, first, min and max, and values other than texts, numbers, enums and booleans;
- states that hold links, clears, or ids that are retracted and not seen yet;
- records that only the timeline tells from known ones;
- damaged states: Python says what is wrong with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from refold.avro.errors import SchemaError
from refold.avro.kernel import EntityRecords, Folded, Kernel
from refold.avro.observation import Observation, type_of
from refold.streams.log.port import Record
from refold.streams.rocks.batch import WriteSet
from refold.streams.table.folds import Folds


class NativeFolder:
    """Lets the kernel fold what it takes of each batch. `records`: how many it folded."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self.records = 0

    def fold(
        self, folds: Folds, grouped: Mapping[str, Sequence[tuple[Record, Observation]]],
        stored: Sequence[bytes | None], through: Mapping[int, int], write: WriteSet,
    ) -> dict[str, Folded | tuple[()]]:  # fmt: skip
        """What became of each entity that the kernel folds, by name; its rows but the state are put into `write`.

        stored: the entities' states, in the order of `grouped`. through: the batch's next offset by partition.
        """
        by_type: dict[str, list[EntityRecords]] = {}
        for (name, decoded), packed in zip(grouped.items(), stored, strict=True):
            records = [record for record, _ in decoded]
            by_type.setdefault(type_of(name), []).append((name, packed, through[records[0].partition], records))
        found: dict[str, Folded | tuple[()]] = {}
        for type_name, entities in by_type.items():
            with suppress(SchemaError):  # said when the turn of an entity of the type comes
                folder = folds.of(type_name).native(self._kernel)
                if folder is None:
                    continue
                folded, timeline, arrivals, ids, checkpoints = folder.fold(entities)
                write.put_pairs("timeline", timeline)
                write.put_pairs("arrivals", arrivals)
                write.put_keys("ids", ids)
                write.put_pairs("checkpoints", checkpoints)
                for (name, _, _, taken), each in zip(entities, folded, strict=True):
                    if each is not None:
                        found[name] = each
                        self.records += len(taken)
        return found
