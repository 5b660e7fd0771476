"""Batches that aiokafka fetched: what cannot be read comes in its place, after everything before it."""

from __future__ import annotations

from typing import Any

import pytest
from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.structs import TopicPartition

from refold.avro.errors import CorruptionError, StorageError
from refold.streams.worker.host.faust_batches import CheckedFetches, UnreadableValue

PLACE = TopicPartition("changes", 0)
LZ4 = 3
_FIRST, _ATTRIBUTES, _LAST_DELTA, _RECORDS = 0, 22, 23, 61


def batch(first: int, *values: bytes, codec: int = LZ4) -> bytearray:
    """A batch of records from an offset on."""
    built = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, value in enumerate(values):
        assert built.append(offset, 1000 + offset, b"key", value, []) is not None
    found = bytearray(built.build())
    found[_FIRST : _FIRST + 8] = first.to_bytes(8, "big")
    return found


def damaged(found: bytearray) -> bytearray:
    """A batch whose packed bytes are others; its checksum is not looked at."""
    return found[:_RECORDS] + b"\xff" * (len(found) - _RECORDS)


def read(*batches: bytearray, begin: int = 0) -> list[tuple[int, Any]]:
    """(offset, value) of what is given out of fetched batches."""
    records = PartitionRecords(PLACE, MemoryRecords(b"".join(batches)), [], begin, None, None, False, READ_COMMITTED)
    fetches = CheckedFetches()
    fetches[PLACE] = FetchResult(PLACE, assignment=None, partition_records=records, backoff=0)
    return [(each.offset, each.value) for each in records]


def offsets_unreadable(found: list[tuple[int, Any]]) -> list[int]:
    return [offset for offset, value in found if isinstance(value, UnreadableValue) and value.why]


def test_a_batch_that_cannot_be_read_comes_in_its_place() -> None:
    found = read(batch(0, b"a", b"b"), damaged(batch(2, b"c", b"d", b"e")), batch(5, b"f"))
    assert [offset for offset, _ in found] == [0, 1, 2, 3, 4, 5]
    assert offsets_unreadable(found) == [2, 3, 4]
    assert [bytes(value) for _, value in found] == [b"a", b"b", b"", b"", b"", b"f"]


def test_who_begins_within_such_a_batch_is_given_the_rest_of_it() -> None:
    found = read(damaged(batch(2, b"c", b"d", b"e")), batch(5, b"f"), begin=4)
    assert ([offset for offset, _ in found], offsets_unreadable(found)) == ([4, 5], [4])


def test_a_length_of_a_record_that_leads_nowhere_makes_its_batch_unreadable() -> None:
    wounded = batch(0, b"a" * 100, b"b", codec=0)
    wounded[_RECORDS] = 0x7E
    assert offsets_unreadable(read(wounded, batch(2, b"c"))) == [0, 1]


def test_a_codec_that_is_not_known_is_no_damage() -> None:
    odd = batch(0, b"a")
    odd[_ATTRIBUTES] = 7
    with pytest.raises(StorageError, match="cannot unpack"):
        read(odd)


def test_a_batch_that_does_not_say_how_long_it_is_is_an_error() -> None:
    odd = damaged(batch(7, b"a"))
    odd[_LAST_DELTA : _LAST_DELTA + 4] = b"\xff" * 4
    with pytest.raises(CorruptionError, match="offset 7"):
        read(odd)
