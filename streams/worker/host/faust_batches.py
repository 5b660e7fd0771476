"""Batches as aiokafka fetches them: one that cannot be read comes as so many records that say so.

Left alone, aiokafka raises at such a batch wherever it stands in what was fetched. What was read before it in the same
call is then given to nobody: records of its own partition come again and fail again, and those of other partitions
count as read and never come. So each batch is looked at before any of its records is given out:
1. One that cannot be unpacked has one record for each of its offsets, whose value is an UnreadableValue. They come in
   their place, after everything before them, and whoever is given one decides. Its checksum is not checked, as by no
   other reader: a record that can be read is not set aside.
2. A codec that is not installed is no damage: that is raised.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from aiokafka.consumer.fetcher import FetchResult
from aiokafka.errors import UnsupportedCodecError

from refold.avro.errors import CorruptionError, StorageError
from refold.avro.quarantine import LENGTH_MAX


class UnreadableValue(bytes):
    """The value of a record whose batch cannot be read; empty. why: what is wrong with the batch."""

    why: str

    @classmethod
    def of(cls, why: str) -> UnreadableValue:
        """One that says why."""
        found = cls()
        found.why = why
        return found


class _Record(NamedTuple):
    """A record as aiokafka takes it from a batch."""

    offset: int
    value: bytes
    timestamp: int = -1
    timestamp_type: int = 0
    key: bytes | None = None
    headers: tuple[Any, ...] = ()
    checksum: None = None


class _Batch:
    """A batch as aiokafka takes it, with the records that are given out of it."""

    is_control_batch = False

    def __init__(self, batch: Any, records: Iterable[Any]) -> None:
        self.base_offset: int = batch.base_offset
        self.next_offset: int = batch.next_offset
        self.producer_id: int | None = batch.producer_id
        self.is_transactional: bool = batch.is_transactional
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        return iter(self._records)


class CheckedBatches:
    """The batches of one fetch, each looked at; as aiokafka reads them."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def has_next(self) -> bool:
        """Whether there is another batch."""
        return bool(self._batches.has_next())

    def next_batch(self) -> Any:
        """The next batch, as it is or with records that say what is wrong with it.

        Raises:
            CorruptionError: A damaged batch does not say how many records it has.
            StorageError: The codec of a batch is not installed.
        """
        batch = self._batches.next_batch()
        if batch.is_control_batch:
            return batch
        try:
            records = list(batch)
        except UnsupportedCodecError as error:
            raise StorageError(f"agents cannot unpack a batch: {error}; install refold[kafka] again") from error
        except Exception as error:  # each codec raises its own
            return _unreadable(batch, f"it cannot be unpacked: {error}")
        return _Batch(batch, records)


class CheckedFetches(OrderedDict[Any, Any]):
    """What aiokafka fetched and did not give out yet, by partition: its batches are looked at."""

    def __setitem__(self, partition: Any, fetched: Any) -> None:
        if isinstance(fetched, FetchResult):
            records = fetched._partition_records
            records._records = CheckedBatches(records._records)
        super().__setitem__(partition, fetched)


def _unreadable(batch: Any, why: str) -> _Batch:
    """A batch of as many records as one that cannot be read. Of a transaction that was aborted it is passed over."""
    first, end = batch.base_offset, batch.next_offset
    if not 0 < end - first <= LENGTH_MAX:
        raise CorruptionError(f"the batch at offset {first} is damaged, and so is its own length; restore the "
                              "brokers' data")  # fmt: skip
    value = UnreadableValue.of(why)
    return _Batch(batch, (_Record(offset, value) for offset in range(first, end)))
