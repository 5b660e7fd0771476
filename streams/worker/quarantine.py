"""Damaged records, and records that are set aside, as a worker meets them between two batches.

A worker reads old records when it rebuilds a table, brings a table up to the emitted point, fills a table's indexes, or
folds an entity again. If such a record is damaged (log/kafka/damaged.py):
1. The partition waits; the others are folded. The reason is in `/health` and `/status`, in the metric
   `refold_damaged_waiting`, and once in the log. The worker is not ready, and stays healthy: a restart would not help.
2. It is retried when a ruling is recorded, which the worker sees within a second, and every AGAIN_S, because the
   brokers' data may be restored.
3. After a ruling on an offset that a table is past, the table is closed and taken up again, as when the group assigns
   it, and rebuilt without the record, or, if the ruling was undone, with it (start.py). Nothing is emitted for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from refold.avro.errors import DamagedRecord
from refold.avro.quarantine import OBSERVATIONS, Rulings
from refold.streams.worker.partition_fold import PartitionFold

AGAIN_S = 10.0


class DamageWaits:
    """The partitions of one worker that wait at a damaged record while they are taken up. `of` is for any thread."""

    def __init__(self, rulings: Rulings) -> None:
        self._rulings = rulings
        self._waiting: dict[int, tuple[str, Mapping[int, str], float]] = {}

    def of(self, partition: int) -> str:
        """Return the reason why a partition waits; empty for none."""
        found = self._waiting.get(partition)
        return "" if found is None else found[0]

    def wait(self, partition: int, error: DamagedRecord, now_s: float) -> None:
        """Note that a partition could not be taken up.

        Args:
            partition: The partition.
            error: The damaged record that it needs.
            now_s: The service's clock, in seconds.
        """
        self._waiting[partition] = (str(error), self._rulings.of(OBSERVATIONS, partition), now_s + AGAIN_S)

    def is_over(self, partition: int, now_s: float) -> bool:
        """Whether it is time to try again."""
        found = self._waiting.get(partition)
        return found is None or now_s >= found[2] or self._rulings.of(OBSERVATIONS, partition) is not found[1]

    def forget(self, partition: int) -> None:
        """It is taken up, or belongs to another worker."""
        self._waiting.pop(partition, None)

    def unsettled(self, partitions: Mapping[int, PartitionFold]) -> list[int]:
        """Adopt the current rulings; return the partitions whose tables must be rebuilt for them."""
        return [
            number
            for number, each in partitions.items()
            if not each.table.adopt_rulings(self._rulings.of(OBSERVATIONS, number))
        ]
