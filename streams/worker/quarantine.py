"""Damaged records and what is set aside, as a worker meets them between two batches.

A worker reads old records when it rebuilds a table, brings a table up to the emitted point, fills a table's indexes, or
folds an entity again. If such a record is damaged (log/kafka/damaged.py):
1. The partition waits; the others are folded on. What it waits for is in `/health` and `/status`, in the metric
   `refold_damaged_waiting`, and once in the log. The worker is not ready, and stays healthy: a restart mends nothing.
2. It is tried again when a ruling comes, which the worker sees within a second, and every AGAIN_S, for the brokers'
   data may be restored.
3. A ruling on an offset that a table is past: the table is let go of and taken up anew, as when the group takes it,
   and made again without the record, or, where the ruling was taken back, with it (start.py). Nothing is emitted for
   it.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.avro.errors import DamagedRecord
from refold.avro.quarantine import OBSERVATIONS, Rulings
from refold.streams.worker.partition import Partition

AGAIN_S = 10.0


class Settling:
    """The partitions of one worker that wait at a damaged record while they are taken up. `of` is for any thread."""

    def __init__(self, rulings: Rulings) -> None:
        self._rulings = rulings
        self._waiting: dict[int, tuple[str, Mapping[int, str], float]] = {}

    def of(self, partition: int) -> str:
        """What a partition waits at; empty for nothing."""
        found = self._waiting.get(partition)
        return "" if found is None else found[0]

    def wait(self, partition: int, error: DamagedRecord, now_s: float) -> None:
        """It could not be taken up."""
        self._waiting[partition] = (str(error), self._rulings.of(OBSERVATIONS, partition), now_s + AGAIN_S)

    def is_over(self, partition: int, now_s: float) -> bool:
        """Whether it is time to try again."""
        found = self._waiting.get(partition)
        return found is None or now_s >= found[2] or self._rulings.of(OBSERVATIONS, partition) is not found[1]

    def forget(self, partition: int) -> None:
        """It is taken up, or somebody else's."""
        self._waiting.pop(partition, None)

    def unsettled(self, partitions: Mapping[int, Partition]) -> list[int]:
        """Those whose tables have to be made again for what is set aside by now."""
        return [
            number
            for number, each in partitions.items()
            if not each.table.look_aside(self._rulings.of(OBSERVATIONS, number))
        ]
