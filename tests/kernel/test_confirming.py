"""What the kernel confirms for verify is right, as Python says, and most of what is right is confirmed."""

from __future__ import annotations

import json
import os
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.canonical import json_text
from refold.avro.codec import ObservationCodec
from refold.avro.errors import UndecodableError
from refold.avro.observation import Link, Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold.streams.client import Log
from refold.streams.log.file.log import FileLog
from refold.streams.log.port import ChangeRecord, Record
from refold.streams.partitioner import partition_of
from refold.streams.table.check import IndexCheck
from refold.streams.table.confirming import RecordConfirmer, some_entities
from refold.streams.verify import changes
from refold.streams.verify.confirmed_changes import ChangeConfirmer, ConfirmedChange
from refold.streams.verify.share import check_records
from refold_tests.both_folds import switched
from refold_tests.mixed_log import fill
from refold_tests.random_types import damaged_bytes

PARTITIONS = 4
TREES: list[Any] = [
    None, True, 0, -7, 10**17, 10**19, 1.5, -0.25, 1e-7, 1e21, 2**63, "", "plain", "é \U0001f600", 'a"b\\c',
    "\n\r\t\b\f", "\x00\x7f", [], {}, [1, [2, {"b": None, "a": 2.5}]], {"é": 1, "z": {"y": []}, "Z": "x"},
    {"a\nb": 1, "a": 2},
]  # fmt: skip


def no_entity(_: str) -> bool:
    return False


@pytest.fixture
def chosen() -> random.Random:
    seed = int(os.environ["REFOLD_SEED"])
    print(f"seed {seed}")
    return random.Random(seed)


def records(registry: Registry, chosen: random.Random, count: int) -> list[Record]:
    """Records with texts, JSON, links and clears; some are damaged, misplaced or misidentified."""
    found = []
    for offset in range(count):
        entity = f"action/{chosen.choice(['a', 'bb', 'Ωmega', 'x' * 40])}{offset % 9}"
        made = Observation(entity, offset, source=Source("a", "r", "", "", offset))
        match chosen.randrange(4):
            case 0:
                made = made._replace(kind="link", link=Link("of", "step/1", None, offset))
            case 1:
                made = made._replace(cleared=("status",))
            case _:
                made = made._replace(patch={"tool": "t", "inputs": json_text(chosen.choice(TREES[1:]))})
        data, own = registry.newest("action").codec.encode_identified(made)
        partition = partition_of(entity, PARTITIONS)
        match chosen.randrange(8):
            case 0:
                data = damaged_bytes(data, chosen)
            case 1:
                own = damaged_bytes(own, chosen)
            case 2:
                partition = chosen.randrange(PARTITIONS)
            case 3:
                entity = f"{entity}x"
        found.append(Record(partition, offset, 1, entity, own, data))
    return found


class Checked(FileLog):
    """What `check_records` asks of a log."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.partitions = PARTITIONS


def test_confirmed_records_are_right(chosen: random.Random) -> None:
    registry = Registry()
    for each in shipped_types().values():
        registry.add(each)
    given = records(registry, chosen, 2_000)
    found = RecordConfirmer(registry, PARTITIONS, no_entity).confirm(given, with_rows=False).are_confirmed
    right = []
    for record in given:
        with switched(on=False):
            whole = [record._replace(offset=0)]
            wrong = list(check_records(Checked(registry), record.partition, whole, 1, {}, no_entity))
        right.append(not wrong)
    assert not [record for record, ours, own in zip(given, found, right, strict=True) if ours and not own]
    assert sum(found) > 0.8 * sum(right)


def test_confirmed_json_is_canonical(chosen: random.Random) -> None:
    codec = ObservationCodec(shipped_types()["action"])
    with switched(on=False):
        python = ObservationCodec(shipped_types()["action"])
    assert codec.native is not None
    texts = [json_text(tree) for tree in TREES]
    for tree in TREES:
        texts += json.dumps(tree), json.dumps(tree, separators=(",", ":")), json.dumps(tree, indent=1)
    for text in [text for text in texts for _ in range(30)]:
        at = chosen.randrange(len(text) + 1)
        texts.append(text[:at] + chosen.choice('{}[],:"\\0179-.eE+ untrfa') + text[at + chosen.randrange(2) :])
    read = 0
    for text in texts:
        data = codec.encode_observation(Observation("action/a", 1, source=Source("a"), patch={"inputs": text}))
        if codec.native.read(data) is not None:
            read += 1
            assert python.identified(data)[0].patch == {"inputs": text}
    with pytest.raises(UndecodableError):  # what the kernel must leave to Python here is refused
        python.identified(codec.encode_observation(Observation("action/a", 1, patch={"inputs": "[1, 2]"})))
    assert read > len(TREES)


def filled(log: Log, seed: int) -> dict[int, list[Record]]:
    fill(log, seed)
    return {partition: list(log.port.read(partition, 0, end)) for partition, end in log.port.ends().items()}


class Counting:
    """How many of a log's records and changes were left to Python."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = self.changes = 0
        slow_records, slow_change = IndexCheck._check_some, changes._Chains.check

        def of_records(check: IndexCheck, some: list[Record]) -> Any:
            self.records += len(some)
            return slow_records(check, some)

        def of_change(chains: Any, record: Any) -> Any:
            self.changes += 1
            return slow_change(chains, record)

        monkeypatch.setattr(IndexCheck, "_check_some", of_records)
        monkeypatch.setattr(changes._Chains, "check", of_change)


def test_verify_leaves_little_to_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    with refold.open(f"file:{tmp_path}/log") as log:
        every = filled(log, seed)
        count = sum(map(len, every.values()))
        changed = sum(log.port.changes_end(partition) for partition in every)
        counting = Counting(monkeypatch)
        assert log.verify().ok
        assert (counting.records, counting.changes) == (count, changed)  # all entities of a log as small as this
        monkeypatch.setattr("refold.streams.verify.share.some_entities", lambda records: lambda name: False)
        counting.records = counting.changes = 0
        assert log.verify().ok
        assert counting.records < count // 4
        assert counting.changes < changed // 2


def test_python_checks_some_entities() -> None:
    names = [f"run/{number}" for number in range(1_000)]
    checks = some_entities(20_000)
    assert 20 < sum(map(checks, names)) < 300
    other = some_entities(20_000)
    assert [*map(checks, names)] != [*map(other, names)]
    assert all(map(some_entities(3_999), names))


def test_change_that_differs_is_not_confirmed(tmp_path: Path, chosen: random.Random, seed: int) -> None:
    with refold.open(f"file:{tmp_path}/log") as log:
        every = filled(log, seed)
        tried = 0
        for partition, some in every.items():
            firsts: dict[str, array[int]] = {}
            known: set[bytes] = set()
            for record in some:
                if record.id not in known:
                    known.add(record.id)
                    firsts.setdefault(record.entity, array("Q")).append(record.offset)
            records: Any = _Records(some)
            confirmer = ChangeConfirmer(log.port.registry, firsts, records, no_entity)
            for each in log.port.read_changes(partition, 0):
                right = confirmed(confirmer, each)
                for _ in range(5 if right is not None else 0):
                    tried += 1
                    data = damaged_bytes(each.data, chosen)
                    found = confirmed(confirmer, each._replace(data=data))
                    # `through` is part of the change's place, which Python checks.
                    assert data == each.data or found is None or (right and found.through != right.through)
        assert tried > 50


def confirmed(confirmer: ChangeConfirmer, change: ChangeRecord) -> ConfirmedChange | None:
    confirmer.begin([change])
    return confirmer.next({})


class _Records:
    """The records of one partition."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = records

    def between(self, start: int, end: int) -> list[Record]:
        return [each for each in self._records if start <= each.offset < end]
