"""Readers of `.schemas`: whatever is between definitions, all readers get the same registry."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from refold.avro.definition import TypeDefinition
from refold.avro.errors import SchemaError
from refold.avro.nodes import MAX_DEPTH
from refold.avro.registry import Registry, WireIds
from refold.streams.log.kafka.foreign_records import ForeignRecords
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.range_reader import RawRecord
from refold.streams.log.kafka.schemas import SchemaFollower, readable_definition, schema_record
from refold_tests.junk import Junk, random_definition_like, unreadable_definitions
from refold_tests.sample_types import OTHER, THING, defined, document, versions

PLACE = KafkaPartition("agents.schemas", 0)
Sequence = list[Junk]


class Topic:
    """`.schemas` without a broker: the records below an end that grows."""

    def __init__(self, records: Iterable[Junk]) -> None:
        self.raws = [RawRecord(offset, 1_000 + offset, *each) for offset, each in enumerate(records)]
        self.end = 0

    def ends(self, places: list[KafkaPartition]) -> dict[KafkaPartition, int]:
        return dict.fromkeys(places, self.end)

    def records(self, place: KafkaPartition, start: int, end: int) -> Iterator[RawRecord]:
        return iter(self.raws[start:end])

    def decision_of(self, token: bytes) -> None:
        return None

    activated = decision_of


def sent(definition: TypeDefinition, ids: WireIds | None = None) -> Junk:
    found = schema_record(PLACE, definition, ids)
    return Junk(None, found.value, found.headers)


def read(records: Sequence, ends: Iterable[int] = ()) -> tuple[list[tuple[str, int]], bytes, bool, int]:
    """The result of a reader that reads to these ends and the last: places, digest, whether bound, foreign count."""
    topic, registry, foreign = Topic(records), Registry(), ForeignRecords()
    given: Any = topic
    schemas = SchemaFollower(PLACE, registry, given, given, foreign, given, given)
    for topic.end in (*ends, len(records)):
        schemas.read_new()
    places = [(type(each).__name__, each.registered_at) for each in registry.entries()]
    return (
        places,
        registry.digest(),
        schemas.is_bound,
        sum(each.records for each in foreign.found({}, 0, given, given, 0)),
    )


@pytest.mark.parametrize("number", range(len(unreadable_definitions())))
def test_junk_is_never_a_definition(number: int) -> None:
    with pytest.raises(SchemaError):
        readable_definition(RawRecord(7, 0, *unreadable_definitions()[number]))


def test_leading_junk_does_not_decide_the_id_space() -> None:
    junk = unreadable_definitions()
    places, _, is_bound, foreign = read([*junk, sent(THING), sent(OTHER, WireIds(1, 2, 3)), sent(OTHER)])
    assert [kind for kind, _ in places] == ["Hole"] * len(junk) + ["TypeVersion", "Hole", "TypeVersion"]
    assert (is_bound, foreign) == (False, len(junk))
    assert read([*junk, sent(THING, WireIds(1, 2, 3)), sent(OTHER)])[2]


def test_random_junk_between_definitions_gives_every_reader_the_same_registry(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    fixed = unreadable_definitions()
    for _ in range(40):
        valid = [sent(each) for each in (*versions(3), OTHER, THING)]
        records, alone = [], []
        for each in valid:
            for _ in range(rng.randrange(6)):
                records.append(
                    rng.choice(fixed) if rng.random() < 0.3 else random_definition_like(rng, valid[0].value or b"")
                )
            records.append(each)
        whole = read(records)
        ends = sorted(rng.randrange(len(records)) for _ in range(rng.randrange(5)))
        assert read(records, ends) == whole
        # Junk made from a definition may still be one; all others are the same as without junk.
        for number, each in enumerate(records):
            try:
                readable_definition(RawRecord(number, 0, *each))
            except SchemaError:
                continue
            alone.append(each)
        assert read(alone)[1:3] == whole[1:3]
        assert whole[3] == len(records) - len(alone)


def test_definitions_do_not_depend_on_the_readers_stack_depth() -> None:
    """The bounds are far below the limit of Python's stack."""
    deep: Any = "long"
    for _ in range(MAX_DEPTH - 2):
        deep = {"type": "array", "items": deep}
    definition = defined(document(deep={"type": deep, "refold.reducer": "latest"}))
    found: list[bytes] = []

    def down(depth: int) -> None:
        if depth:
            down(depth - 1)
        else:
            found.append(readable_definition(RawRecord(0, 0, *sent(definition)))[1].fingerprint)

    for depth in (0, sys.getrecursionlimit() - 600):
        thread = threading.Thread(target=down, args=(depth,))
        thread.start()
        thread.join()
    assert found == [definition.fingerprint] * 2
