"""The kernel decides fetched records as Python does, and leaves to it what is no plain observation."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from refold.avro.kernel import DecidedRecords, find_kernel
from refold.avro.observation import Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.streams.log.kafka.range_reader import Headers, RawRecord
from refold.streams.log.kafka.records import ID
from refold.streams.log.port import Record
from refold.streams.partitioner import PLACE_BYTES, partition_of
from refold.streams.table.checked import CheckedRecord, checked_records, last_record
from refold.streams.worker.fetcher import UnreadableOffsets
from refold.streams.worker.pending_commit import NextBatch
from refold.streams.worker.verdicts import Decider, MissingSchema
from refold_tests.encoded_entities import place
from refold_tests.histories import TEXTS
from refold_tests.random_types import damaged_bytes

PARTITIONS = 4


@pytest.fixture
def chosen() -> random.Random:
    seed = int(os.environ["REFOLD_SEED"])
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.fixture
def registry() -> Registry:
    found = Registry()
    for each in shipped_types().values():
        found.add(each)
    return found


def missing(wire_id: int) -> MissingSchema:
    return MissingSchema("unknown", f"no schema {wire_id}")


def raws(registry: Registry, chosen: random.Random, count: int) -> Iterator[RawRecord]:
    """Records as writers write them, and some that are damaged, misplaced, misidentified, or of an unusual form."""
    codec = registry.newest("tool_config").codec
    for offset in range(count):
        entity = f"tool_config/{chosen.choice(['a', 'bb', 'ccc', 'dddd', 'Ωmega', 'x' * 40])}{offset % 9}"
        made = Observation(
            entity, offset, source=Source("a", "r", "", "", offset), patch={"tool": chosen.choice(TEXTS)}
        )
        if chosen.random() < 0.1:
            made = replace_kind(made, chosen)
        data, own = codec.encode_identified(made)
        key = entity.encode()
        headers: Headers = [(ID, own)]
        match chosen.randrange(14):
            case 0:
                data = damaged_bytes(data, chosen)
            case 1:
                key = damaged_bytes(key, chosen)
            case 2:
                headers = [(ID, damaged_bytes(own, chosen))]
            case 3:
                headers = []
            case 4:
                headers = [("other", b"1"), *headers]
            case 5:
                headers = [(ID, chosen.choice([None, own[:31], own + b"0"]))]
            case 6:
                headers = [(chosen.choice(["other", "réfold"]), own)]
        yield RawRecord(offset, chosen.randrange(1_000_000), key, data, headers)


def replace_kind(made: Observation, chosen: random.Random) -> Observation:
    """The observation with something that is not plain."""
    return chosen.choice([made._replace(cleared=("enabled",)), made._replace(retracts=(bytes(32),))])


def test_each_decision_matches_python_or_is_deferred(registry: Registry, chosen: random.Random) -> None:
    given = list(raws(registry, chosen, 3_000))
    plain = 0
    for partition in range(PARTITIONS):
        decider = Decider(registry, missing, partition, PARTITIONS)
        found = decider.decide_plain(given, 5)
        assert found is not None
        assert len(found) == len(given)
        recorded_at, bytes_found = 5, 0
        for raw, each in zip(given, checked_records(found), strict=True):
            recorded_at = max(recorded_at, raw.timestamp)
            own = decider.decide(raw, recorded_at)
            if each is not None:
                plain += 1
                bytes_found += len(each.record.data)
                assert isinstance(own, CheckedRecord)
                assert each.record == own.record
        assert bytes_found == found.size_bytes
    assert plain > len(given) // 2  # most are plain, each in one of the partitions


def test_unusual_record_ends_the_decided_prefix(registry: Registry, chosen: random.Random) -> None:
    given = list(raws(registry, chosen, 3))
    decider = Decider(registry, missing, 0, 1)
    for odd in (UnreadableOffsets(3, 5), RawRecord(3, 0, None, b"", []), RawRecord(3, 0, b"", None, [])):
        found = decider.decide_plain([*given, odd, *given], 0)
        assert found is not None
        assert len(found) == len(given)


def test_definitions_registered_later_are_used(registry: Registry) -> None:
    definition = shipped_types()["tool_config"]
    made = Observation("tool_config/a", 1, source=Source("a", "r", "", "", 0), patch={"tool": "x"})
    data, own = registry.newest(definition.name).codec.encode_identified(made)
    raw, empty = RawRecord(0, 7, b"tool_config/a", data, [(ID, own)]), Registry()
    decider = Decider(empty, missing, 0, 1)
    found = decider.decide_plain([raw], 0)
    assert found is not None
    assert (found.records(), found.size_bytes, found.is_plain, last_record(found)) == ([None], 0, False, None)
    empty.add(definition)
    found = decider.decide_plain([raw], 0)
    assert found is not None
    record = Record(0, 0, 7, "tool_config/a", own, data)
    assert checked_records(found) == [CheckedRecord(record, None)]
    assert (found.size_bytes, found.is_plain, last_record(found)) == (len(data), True, record)


def test_next_batch_has_each_observation_once_and_in_order(registry: Registry) -> None:
    """Whatever part of it was decided by the kernel at once, and whatever record by record."""
    codec = registry.newest("tool_config").codec
    given = []
    for offset in range(9):
        made = Observation("tool_config/a", offset, source=Source("a", "r", "", "", offset), patch={"tool": "x"})
        given.append(RawRecord(offset, 1, b"tool_config/a", codec.encode_identified(made)[0], []))
    decider = Decider(registry, missing, 0, 1)

    def decided(raws: list[RawRecord]) -> DecidedRecords:
        found = decider.decide_plain(raws, 0)
        assert found is not None
        return found

    batch = NextBatch()
    batch.add_decided(decided(given[:2]))
    batch.add_decided(decided(given[2:4]))
    assert ([len(each) for each in batch.decided], batch.observations, len(batch)) == ([2, 2], [], 4)
    one = decider.decide(given[4], 1)
    assert isinstance(one, CheckedRecord)
    batch.add(one)
    batch.add_decided(decided(given[5:8]))
    another = decider.decide(given[8], 1)
    assert isinstance(another, CheckedRecord)
    batch.add(another)
    assert (batch.decided, len(batch)) == ([], 9)
    assert [each.record.offset for each in batch.observations] == list(range(9))


def test_entities_are_placed_identically(chosen: random.Random) -> None:
    kernel = find_kernel().kernel
    assert kernel is not None
    names = [f"t/{chosen.choice(TEXTS)}{'é' * chosen.randrange(9)}{number}" for number in range(500)]
    assert kernel.placed(names) == [place(each).to_bytes(PLACE_BYTES, "big") + each.encode() for each in names]
    assert {partition_of(each, PARTITIONS) for each in names} == set(range(PARTITIONS))
