"""`diff` and conflicts on both logs at any cuts, drawn by Hypothesis, against the naive reference fold.

Observations are late, repeated, before those they retract, with clears and priorities, and the type is redefined on the
way. Cuts are of next offsets, each also less what was observed after a time. The reference is asked for each of two
cuts what stands below it; nothing of the code under test says what differs.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from refold.avro.errors import NotAnswerable, UnknownEntity
from refold.avro.observation import Observation
from refold.streams.changes import Row
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.runtime_context import RuntimeContext
from refold_tests.brokers import SharedKafka
from refold_tests.folding import opened, url_of
from refold_tests.histories import ENTITIES, EVERYTHING, Plan, build, histories
from refold_tests.offsets_below import Offsets, below, names, records
from refold_tests.opening import PARTITIONS, open_log, take
from refold_tests.reference import encode, reference_conflicts, reference_difference
from refold_tests.reference_fold import Definition, Seen, distinct, fold, reference_hash, retracted_ids
from refold_tests.sample_types import OTHER, THING, defined, document, reference_definition

ANEW = (
    THING,
    defined(document(last={"type": "long", "refold.reducer": "max"})),
    defined(
        document(last={"type": "long", "refold.reducer": "max"}, start={"type": "string", "refold.reducer": "latest"})
    ),
)
"""The type's first definition, and its later one."""

ON_KAFKA, ON_KAFKA_SOAK = 5, 200
"""The number of histories tested on a broker."""


class Drawn(NamedTuple):
    """A history, the number of observations after which the type is redefined, and two cuts.

    Cuts are parts of each partition in 1/12, and a time of observation.
    """

    history: Sequence[Observation]
    anew: tuple[int, ...]
    cuts: tuple[tuple[int, int, int | None], ...]


PARTS = st.just(12) | st.integers(0, 12)
CUTS = st.tuples(PARTS, PARTS, st.none() | st.integers(-1, 4))


def drawn(made: st.SearchStrategy[list[Observation]]) -> st.SearchStrategy[Drawn]:
    return st.builds(Drawn, made, st.lists(st.integers(0, 12), max_size=2).map(tuple), st.tuples(CUTS, CUTS))


class Side(NamedTuple):
    """A cut, and the reference's result for it."""

    cut: Cut
    records: Offsets
    until: int | None

    def seen(self, entity: str) -> list[Seen]:
        """An entity's observations that count here."""
        every = distinct(entity, self.records)
        gone = retracted_ids(every)
        return every if self.until is None else [
            one for one in every if one.observation.observed_at <= self.until and one.id not in gone
        ]  # fmt: skip


def written(log: Log, drawn: Drawn) -> None:
    """Record the history with a flush after each observation, and redefine the type at the drawn position."""
    later = iter(ANEW[1:])
    for number, each in enumerate(drawn.history):
        if number in drawn.anew:
            log.register(next(later))
        take(log, [each])


def sides(log: Log, drawn: Drawn) -> list[Side]:
    every, found = records(log), []
    for first, second, until in drawn.cuts:
        ends = {partition: len(every[partition]) * part // 12 for partition, part in enumerate((first, second))}
        cut = log.point(f"offset:0={ends[0]},1={ends[1]}").cut
        found.append(Side(cut if until is None else cut.until(until), below(every, ends.items()), until))
    return found


def definition_of(log: Log, schemas: int) -> Definition:
    return reference_definition(log.port.registry.newest(THING.name, max(schemas, 1)).definition)


def in_any_order(mutations: Sequence[dict[str, Any]]) -> list[bytes]:
    return sorted(encode(each) for each in mutations)


def as_mutation(row: Row) -> dict[str, Any]:
    """A row in the form of the reference."""
    names_of = ("offset", "version", "field", "op", "key", "old", "new")
    ids = {"observation": bytes.fromhex(row.observation), "by": bytes.fromhex(row.by)}
    return {**{name: getattr(row, name) for name in names_of}, **ids}


def expected_difference(definition: Definition, entity: str, a: Side, b: Side) -> list[dict[str, Any]]:
    before, after = a.seen(entity), b.seen(entity)
    states = [fold(definition, entity, seen) for seen in (before, after)]
    if reference_hash(states[0]) == reference_hash(states[1]):
        return []
    further = max((distinct(entity, each.records) for each in (a, b)), key=len)
    return reference_difference(definition, before, after, further[-1])


def check_difference(log: Log, drawn: Drawn) -> None:
    """The differences between two cuts are those of the reference."""
    written(log, drawn)
    a, b = sides(log, drawn)
    definition = definition_of(log, max(a.cut.schemas, b.cut.schemas))
    rows = log.diff(a.cut, b.cut)
    known = names(a.records) | names(b.records)
    assert {row.entity for row in rows} <= known
    for entity in known:
        own = [as_mutation(row) for row in rows if row.entity == entity]
        if not a.seen(entity) and not b.seen(entity):
            assert own == []
            continue
        assert in_any_order(own) == in_any_order(expected_difference(definition, entity, a, b))
        assert [as_mutation(row) for row in log.diff(a.cut, b.cut, entity)] == own


@given(drawn(histories()))
def test_difference_matches_the_reference(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder, open_log(Path(folder)) as log:
        check_difference(log, drawn)


SPOKEN = st.sampled_from(({"last": 1}, {"last": 2}, {"start": "a"}, {"start": "b"}, {"attrs": {"a": "x"}},
                          {"attrs": {"a": "y", "b": None}}, {"attrs": {"b": "x"}}))  # fmt: skip
RARELY = st.integers(0, 5).map(lambda number: number == 5)
DISPUTES = st.lists(
    st.builds(
        Plan,
        entity=st.just(ENTITIES[0]),
        observed_at=st.integers(0, 3),
        priority=st.sampled_from((0, 0, 1)),
        source=st.sampled_from((("a", "r"), ("a", "s"), ("b", "r"), ("c", ""))),
        patch=SPOKEN,
        cleared=st.tuples(RARELY, st.sampled_from(("last", "start", "attrs"))).map(lambda drawn: drawn[1:] * drawn[0]),
        retracts=st.tuples(RARELY, st.integers(1, 4)).map(lambda drawn: drawn[1:] * drawn[0]),
        causes=st.sampled_from(((), (), (1,), (2,))),
        delay=st.integers(0, 4),
    ),
    min_size=6,
    max_size=14,
).map(build)
"""Few agents that contradict one another about one entity: in the histories of all fields conflicts are rare."""


def check_conflicts(log: Log, drawn: Drawn) -> None:
    """The conflicts at two cuts are those of the reference."""
    written(log, drawn)
    for side in sides(log, drawn):
        definition = definition_of(log, side.cut.schemas)
        for entity in names(side.records):
            seen = side.seen(entity)
            try:
                found = log.state(entity, side.cut).conflicts
            except (UnknownEntity, NotAnswerable):
                assert not seen
                continue
            losers, total = reference_conflicts(definition, entity, [(one.offset, one.observation) for one in seen])
            assert found.total == total
            assert [
                (each.field, each.key, each.agent, each.observation, encode(each.value)) for each in found.losers
            ] == [
                (each["field"], each.get("key"), each["agent"], each["observation"], encode(each["value"]))
                for each in losers
            ]


@given(drawn(DISPUTES))
def test_conflicts_match_the_reference_at_any_cut(drawn: Drawn) -> None:
    with tempfile.TemporaryDirectory() as folder, open_log(Path(folder)) as log:
        check_conflicts(log, drawn)


@contextmanager
def on_kafka(kafka: SharedKafka, prefix: str) -> Iterator[Log]:
    """A log on Kafka, of as many partitions, read without a worker."""
    number = count()
    around = RuntimeContext(lambda: time.time_ns() // 1000, lambda: f"run-{next(number)}", "tests")
    with opened(url_of(kafka.bootstrap, prefix, PARTITIONS)) as port:
        yield Log(port, {each.name: each for each in (THING, OTHER)}, set(), around)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("check", "made"),
    [
        pytest.param(check_difference, histories(), id="difference"),
        pytest.param(check_conflicts, DISPUTES, id="conflicts"),
    ],
)
def test_conflicts_of_a_log_on_kafka_match_the_reference(
    kafka: SharedKafka,
    prefix: str,
    check: Callable[[Log, Drawn], None],
    made: st.SearchStrategy[list[Observation]],
    is_soak: bool,
) -> None:
    numbers = count()
    examples = ON_KAFKA_SOAK if is_soak else ON_KAFKA

    # Each example creates a log, so there are few, and a failing one is not shrunk.
    @settings(max_examples=examples, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(drawn(made))
    def checked(drawn: Drawn) -> None:
        with on_kafka(kafka, f"{prefix}.{next(numbers)}") as log:
            check(log, drawn)

    checked()
    assert next(numbers) >= examples


def test_reference_covers_every_field() -> None:
    assert all(reference_definition(each).keys() == EVERYTHING.keys() for each in ANEW)
