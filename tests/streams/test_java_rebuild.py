"""An independent rebuild: a Java program written only from docs/FORMAT.md finds refold's root of every cut."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator
from refold.avro.ids import identify
from refold.avro.observation import Observation, Source
from refold.avro.shipped import shipped_types
from refold.avro.times import TIME_MAX
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Fold
from refold.reducers.state import hash_state
from refold.streams.cut import Cut
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.port import AppendedObservation
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.registry.ids import SchemaIds
from refold.streams.registry.settings import RegistrySettings
from refold.streams.snapshots.chunk import Member
from refold_tests import specimens
from refold_tests.brokers import SharedKafka
from refold_tests.epochs import SMALL_EPOCHS
from refold_tests.folding import await_folded, await_sealed, opened, running, url_of
from refold_tests.histories import SOURCES, Plan, Regime, build, drawn_plan
from refold_tests.java import run_java
from refold_tests.kafka_epochs import Flipping, ReplayedTable, Sealing
from refold_tests.sample_types import THING, defined, document, said
from refold_tests.shipped_types import drawn

PARTITIONS = 2
DAY_MICROS = 24 * 3_600 * 1_000_000
CUSTOM = "folded"
GREATEST = {"last": {"type": "long", "refold.reducer": "max"}}


def plain(name: str, closed_by: str = "", /, **fields: dict[str, Any]) -> TypeDefinition:
    """`everything` under a name, without its custom reducer."""
    every = [each for each in document(name, **fields)["fields"] if each["name"] != CUSTOM]
    closing = {"refold.closed_by": closed_by} if closed_by else {}
    return defined({**document(name), "fields": every, **closing})


PLAIN = [plain("plain"), plain("job", "start"), plain("task", "attrs")]
LATER = [plain("plain", **GREATEST), plain("task", more={"type": "string", "refold.reducer": "latest"})]


WILD = Regime(
    entities=4, sources=60, tick_chance=0.5, past_chance=0.1, late_chance=0.3, late_max=100, copy_chance=0.3,
    clear_chance=0.05, retract_chance=0.1, unknown_chance=0.1, link_chance=0.1, priority_chance=0.2,
)  # fmt: skip


def plain_history(rng: random.Random, length: int, regime: Regime, kind: str) -> list[Observation]:
    """Observations of PLAIN in arrival order, some late, some more than once, over some months."""
    names = [f"{rng.choice(PLAIN).name}/{kind}-{number}" for number in range(regime.entities)]
    sources = [*SOURCES, *((f"agent-{number}", "r") for number in range(60))][: regime.sources]
    made: list[Plan] = []
    now = 0
    for index in range(length):
        now += rng.choice((0, 1, DAY_MICROS)) if rng.random() < regime.tick_chance else 0
        plan = drawn_plan(rng, regime, index, now, rng.choice(names), rng.choice(sources))
        patch = {name: value for name, value in plan.patch.items() if name != CUSTOM}
        cleared = tuple(name for name in plan.cleared if name != CUSTOM)
        if plan.kind == "assert" and not (patch or cleared or plan.retracts):
            patch = {"hits": 1}
        made.append(replace(plan, patch=patch, cleared=cleared))
    return build(made)


def of_every_type(seed: int) -> list[Observation]:
    """A few observations of each shipped type, and of `specimen`, which has a field of every Avro type."""
    found: list[Observation] = []
    for number, definition in enumerate(shipped_types().values()):
        door = ObservationValidator(definition)
        for index, patch in enumerate(drawn(definition, seed + number, 6)):
            source = Source("shipped", "", seq=index)
            entity, at = f"{definition.name}/{index % 2}", index * DAY_MICROS
            found.append(door.build(entity, patch, observed_at=at, now=TIME_MAX, source=source, blobs={}))

    @seeded(seed)
    @settings(max_examples=40, database=None, phases=[Phase.generate])
    @given(specimens.given_observations(), st.integers(0, 5))
    def draw(parts: specimens.Given, number: int) -> None:
        found.append(specimens.built({**parts, "entity": f"specimen/{number}"}))

    draw()
    return found


def append(log: KafkaLog, observations: Iterable[Observation]) -> None:
    """Append observations of any registered types, acknowledged on return."""
    for each in observations:
        data, observation_id = log.registry.newest(each.type).codec.encode_identified(each)
        log.append(AppendedObservation(each.entity, observation_id, data))
    log.flush()
    log.refresh()


def cut_at(
    log: KafkaLog, offsets: Mapping[int, int] | None = None, schemas: int | None = None, until: int | None = None
) -> Cut:
    """A cut, where the log ends and under all its definitions unless others are given; until: observed, in micros."""
    schemas = len(log.registry) if schemas is None else schemas
    return Cut(log.log_id, offsets or log.ends(), schemas, log.registry.digest(schemas), until)


def poison(log: KafkaLog) -> None:
    """Append a record that is no observation."""
    producer = log.clients.producer()
    producer.produce(log.topics.observations, key=b"no", value=b"message", partition=0)
    assert producer.flush(60) == 0


def rebuilt(log: KafkaLog, cuts: Sequence[Cut]) -> list[dict[str, Any]]:
    """Return the Java program's answer for each cut."""
    prefix = log.topics.observations.removesuffix(".observations")
    lines = run_java("refold.rebuild.RebuildCut", log.clients.servers, prefix, *map(str, cuts))
    return [json.loads(line) for line in lines.splitlines()]


def check(log: KafkaLog, cuts: Sequence[Cut]) -> list[dict[str, Any]]:
    """Check that the Java program starts from the same epochs and gets the same roots; returns its answers."""
    answers = rebuilt(log, cuts)
    for cut, answer in zip(cuts, answers, strict=True):
        found = rebuild(log, cut, parallel=False)
        assert (answer.get("root"), answer.get("entities")) == (found.root().hex(), found.entities), (cut, answer)
        assert answer["epochs"] == found.source()["snapshot_epochs"]
        assert bool(answer["fallbacks"]) == bool(found.source()["fallbacks"]), answer
    return answers


@pytest.fixture
def log(kafka: SharedKafka, prefix: str) -> Iterator[KafkaLog]:
    with opened(url_of(kafka.bootstrap, prefix, PARTITIONS)) as found:
        yield found


@pytest.mark.timeout(600)
def test_java_computes_the_roots_of_cuts_before_at_and_after_epochs(log: KafkaLog, tmp_path: Path, seed: int) -> None:
    """Types that close and change, verdicts, a worker's bases and deltas, and records that it has not reached yet."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    for each in (*PLAIN, specimens.specimen(), *shipped_types().values()):
        log.register(each)
    many = replace(Regime.draw(rng), entities=60)
    pairs = zip(plain_history(rng, 200, WILD, "few"), plain_history(rng, 200, many, "many"), strict=False)
    rest = iter([*chain.from_iterable(pairs), *of_every_type(seed)])
    often = replace(SMALL_EPOCHS, epoch_records=1)
    with running(log.url, tmp_path, snapshots=often, epoch_every_ms=0) as worker:
        for length in (150, 10, 10, 100):
            append(log, islice(rest, length))
            await_sealed(log, worker)
        for each in LATER:
            log.register(each)
        poison(log)
        for length in (50, 10):
            append(log, islice(rest, length))
            await_sealed(log, worker)
        sealed = log.ends()
    with running(log.url, tmp_path, snapshots=replace(SMALL_EPOCHS, epoch_records=10**9)) as worker:
        append(log, islice(rest, 50))
        await_folded(log, worker)
    append(log, rest)
    first_epochs = {each: log.snapshots.epochs(each)[0].offset for each in sealed}
    cuts = [
        cut_at(log, {partition: rng.randrange(offset) for partition, offset in first_epochs.items()}),
        cut_at(log, sealed),
        cut_at(log),
        cut_at(log, until=rng.choice((0, 20, 10 * DAY_MICROS))),
    ]
    for length in (1, 2, 4, 6, 9, 15):  # after a long tail most entities have been reopened
        epochs = [rng.choice(log.snapshots.epochs(each)) for each in sealed]
        offsets = {each.partition: min(each.offset + length, log.ends()[each.partition]) for each in epochs}
        cuts.append(cut_at(log, offsets, max(each.schemas for each in epochs)))
    before, at, after, observed, *_ = check(log, cuts)
    assert (before["epochs"], observed["epochs"]) == ({}, {})
    assert at["epochs"] == after["epochs"] == {str(key): offset for key, offset in sealed.items()}
    assert (at["direct"], at["reopened"]) == (0, 0)
    assert after["direct"] > 0
    assert after["reopened"] > 0


class Flipped(ReplayedTable):
    """A table with one changed value for each entity, and matching hashes."""

    def members(self, place: int) -> list[Member]:
        return [(key, flipped(key.decode(), body)) for key, body in super().members(place)]

    def groups(self) -> Iterator[tuple[int, list[Member]]]:
        return ((place, self.members(place)) for place, _ in super().groups())


def flipped(name: str, body: bytes) -> bytes:
    entity: Entity = unpack(name, body)
    entity.cells["last"][0] ^= 1
    entity.state_hash = hash_state(Fold(PLAIN[0]), entity)
    return pack(entity)


def test_java_starts_from_an_epoch(log: KafkaLog) -> None:
    """An intact snapshot with other values than the log gives another root."""
    log.register(PLAIN[0])
    tail = [said(f"plain/{number}", 20 + number, hits=1) for number in range(10)]
    early = said("plain/0", 19)._replace(patch={}, retracts=(identify(tail[0]),))
    append(log, [*(said(f"plain/{number}", number) for number in range(20)), early])
    with Sealing(log) as sealing:
        sealing.seal(Flipped)
    append(log, tail)
    (answer,) = check(log, [cut_at(log)])
    assert (answer["fallbacks"], answer["direct"], answer["reopened"]) == ([], 10, 0)
    assert answer["root"] != rebuild(log, cut_at(log), full=True).root().hex()


def test_java_writes_numbers_in_their_shortest_form(log: KafkaLog) -> None:
    """Ids cover it, and messages carry the ids."""
    log.register(PLAIN[0])
    halves = (0.5, -1.5, 65472.25, 2.0**-14, 3 * 2.0**-24, 2.0**-24, 1023 * 2.0**-24)
    others = (2.0**-25, 2049 * 2.0**-24, 0.1, 2.0**-149, 1e300, 5e-324, 2.0**64)
    append(log, [said(f"plain/{number}", number, low=value, total=value)
                 for number, value in enumerate((*halves, *others, 2**63, -(2**63)))])  # fmt: skip
    check(log, [cut_at(log)])


def test_java_detects_a_flipped_bit_and_starts_from_an_older_epoch(log: KafkaLog) -> None:
    log.register(PLAIN[0])
    append(log, [said(f"plain/{number}", number) for number in range(20)])
    with Sealing(log, Flipping) as sealing:
        assert isinstance(sealing.store, Flipping)
        whole = sealing.seal()
        append(log, [said(f"plain/{number}", 20 + number) for number in range(10)])
        sealing.store.is_flipping = True
        assert sealing.seal() != whole
    log.refresh()
    (answer,) = check(log, [cut_at(log)])
    assert answer["epochs"] == {str(each.partition): each.offset for each in whole}
    assert (len(answer["fallbacks"]), answer["direct"], answer["reopened"]) == (PARTITIONS, 10, 0)
    assert answer["root"] == rebuild(log, cut_at(log), full=True).root().hex()


def test_java_refuses_what_it_cannot_fold(log: KafkaLog) -> None:
    log.register(THING)
    append(log, [said(f"{THING.name}/a", 1)])
    without = cut_at(log)
    append(log, [said(f"{THING.name}/a", 2, folded=2)])
    first, *others = rebuilt(log, [without, cut_at(log), replace(without, log_id=bytes(16))])
    assert first["root"] == rebuild(log, without).root().hex()
    assert [each["refused"] for each in others] == ["the custom reducer of the field folded", "a cut of another log"]


def test_java_finds_schemas_by_registry_ids(kafka: SharedKafka, prefix: str, schema_registry: str, seed: int) -> None:
    print(f"seed {seed}")
    url = parse_url(url_of(kafka.bootstrap, prefix, PARTITIONS))
    with SchemaIds(RegistrySettings((schema_registry,))) as ids, closing(KafkaLog(url, schema_ids=ids)) as log:
        for each in PLAIN:
            log.register(each)
        append(log, plain_history(random.Random(seed), 50, WILD, "few"))
        check(log, [cut_at(log)])
