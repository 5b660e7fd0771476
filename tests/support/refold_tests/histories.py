"""Random histories of one test type that has a field for each reducer: by Hypothesis, or from a seed.

Both draw plans, which are small records without ids, and `build` turns them into observations. A plan refers to
another by how many plans ago it was made, because an id can be named only once it exists. Arrival is independent
of this: each plan has a delay, in places, and a number of repeats, so a retraction often arrives before its
target. Hypothesis can shrink every reference, delay and copy on its own.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from refold.avro.ids import identify
from refold.avro.observation import Kind, Link, Observation, Source
from refold_tests.reference_cbor import canonical_number
from refold_tests.reference_fold import Assertion, FieldSpec

TYPE = "everything"
APPEND_LIMIT = 3
FOLDED_MODULUS = 2**31


def folded(value: int | None, assertion: Assertion) -> int | None:
    """The custom reducer of the test type: depends on the order of its observations, and is absent at 0."""
    return ((value or 0) * 3 + int(assertion.value)) % FOLDED_MODULUS or None


EVERYTHING: dict[str, FieldSpec] = {
    "last": FieldSpec("latest"),
    "start": FieldSpec("first"),
    "low": FieldSpec("min"),
    "high": FieldSpec("max"),
    "total": FieldSpec("sum"),
    "hits": FieldSpec("count"),
    "tags": FieldSpec("union"),
    "log": FieldSpec("append", limit=APPEND_LIMIT),
    "attrs": FieldSpec("map"),
    "folded": FieldSpec("custom", function=folded),
}

_TYPES: dict[str, Any] = {
    "last": "long",
    "start": "string",
    "low": "double",
    "high": "long",
    "total": "double",
    "hits": "long",
    "tags": {"type": "array", "items": "string"},
    "log": {"type": "array", "items": "long"},
    "attrs": {"type": "map", "values": ["null", "string"]},
    "folded": "long",
}
_ATTRIBUTES: dict[str, dict[str, Any]] = {
    "log": {"refold.limit": APPEND_LIMIT},
    "folded": {"refold.function": "refold_tests.histories:folded"},
}

EVERYTHING_AVSC = json.dumps(
    {
        "type": "record",
        "name": TYPE,
        "namespace": "refold.types",
        "doc": "A field for each reducer.",
        "fields": [
            {"name": name, "type": _TYPES[name], "refold.reducer": spec.reducer, **_ATTRIBUTES.get(name, {})}
            for name, spec in EVERYTHING.items()
        ],
    },
    indent=2,
)

ENTITIES = (f"{TYPE}/1", f"{TYPE}/2", f"{TYPE}/\u00e9")
# Some are prefixes of one another, and two differ in their order in UTF-16 and UTF-8.
SOURCES = (
    ("a", "r"),
    ("a", "s"),
    ("b", "r"),
    ("", ""),
    ("ab", ""),
    ("a!", "r"),
    ("\uffff", "r"),
    ("\U00010000", "r"),
)
RELATIONS = ("about", "in")
TARGETS = (f"{TYPE}/2", "document/x")
LONGS = (0, 1, 2, -1, 2**63 - 1, -(2**63))
TEXTS = ("", "a", "b", "\uffff", "\U00010000")
KEYS = ("", "a", "b", "\uffff", "\U00010000")
# Half an ulp, ties, cancellation, the limits of the integer range, subnormals, overflow and back.
DOUBLES = tuple(
    canonical_number(value)
    for value in (
        0.0, -0.0, 1.0, -1.0, 0.5, 0.1, 0.2, -0.3, 1e16, -1e16, 2.0**53, 2.0**-53, 2.0**-106, 2.0**63,
        -(2.0**63), 2.0**64, 1e300, -1e300, 1.7976931348623157e308, -1.7976931348623157e308, 2.0**970,
        5e-324, -5e-324,
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """One observation to be made.

    `retracts` and `causes` count plans back from it: 1 is the plan before. 0, or a number beyond the first plan, is an
    id that no log has. `stutter` repeats the previous seq. The observation arrives `delay` places late, and once more
    after each of `copies` further places.
    """

    kind: Kind = "assert"
    entity: str = ENTITIES[0]
    observed_at: int = 0
    priority: int = 0
    source: tuple[str, str] = SOURCES[0]
    step: str = ""
    patch: Mapping[str, Any] = field(default_factory=dict)
    cleared: tuple[str, ...] = ()
    retracts: tuple[int, ...] = ()
    causes: tuple[int, ...] = ()
    link: Link | None = None
    stutter: bool = False
    delay: int = 0
    copies: tuple[int, ...] = ()


def build(plans: Sequence[Plan]) -> list[Observation]:
    """Return the observations of the plans in the order in which they arrive, including duplicates."""
    made: list[Observation] = []
    ids: list[bytes] = []
    next_seq: dict[tuple[str, str], int] = {}
    arrivals: list[tuple[int, Observation]] = []
    for index, plan in enumerate(plans):
        seq = next_seq.get(plan.source, 0)
        next_seq[plan.source] = seq if plan.stutter else seq + 1
        agent, run = plan.source
        observation = Observation(
            entity=plan.entity,
            observed_at=plan.observed_at,
            kind=plan.kind,
            priority=plan.priority,
            source=Source(agent=agent, run=run, step=plan.step, seq=seq),
            causes=_ids(ids, plan.causes),
            patch=plan.patch,
            cleared=tuple(sorted(set(plan.cleared))),
            retracts=_ids(ids, plan.retracts),
            link=plan.link,
        )
        made.append(observation)
        ids.append(identify(observation))
        place = index + plan.delay
        arrivals.append((place, observation))
        for further in plan.copies:
            place += further
            arrivals.append((place, observation))
    return [observation for _, observation in sorted(arrivals, key=lambda arrival: arrival[0])]


def _ids(ids: Sequence[bytes], backs: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(sorted({ids[-back] if 0 < back <= len(ids) else unknown_id(back) for back in backs}))


def unknown_id(number: int) -> bytes:
    """Return an id that no observation has."""
    return hashlib.sha256(b"no observation %d" % number).digest()


def with_offsets(observations: Sequence[Observation], start: int = 0, gap: int = 1) -> list[tuple[int, Observation]]:
    """Return a log with these observations in this order. A gap above 1 is what transactions leave on Kafka."""
    return [(start + index * gap, observation) for index, observation in enumerate(observations)]


_PATCHES: dict[str, st.SearchStrategy[Any]] = {
    "last": st.sampled_from(LONGS),
    "start": st.sampled_from(TEXTS),
    "low": st.sampled_from(DOUBLES),
    "high": st.sampled_from(LONGS),
    "total": st.sampled_from(DOUBLES),
    "hits": st.sampled_from(LONGS),
    "tags": st.lists(st.sampled_from(TEXTS), max_size=3),
    "log": st.lists(st.sampled_from(LONGS), max_size=APPEND_LIMIT + 1),
    "attrs": st.dictionaries(st.sampled_from(KEYS), st.sampled_from((None, "x", "y")), max_size=3),
    "folded": st.sampled_from(LONGS),
}


def _patches(fields: Sequence[str]) -> st.SearchStrategy[dict[str, Any]]:
    entries = st.sampled_from(fields).flatmap(lambda name: st.tuples(st.just(name), _PATCHES[name]))
    return st.lists(entries, max_size=3, unique_by=lambda entry: entry[0]).map(dict)


def _backs(size_max: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, 6), max_size=size_max).map(tuple)


def plans(fields: Sequence[str] = tuple(EVERYTHING), entities: Sequence[str] = ENTITIES) -> st.SearchStrategy[Plan]:
    """Return a strategy for one plan. `fields`: the only fields that are asserted and cleared."""
    common: dict[str, st.SearchStrategy[Any]] = {
        "entity": st.sampled_from(entities),
        "observed_at": st.sampled_from((0, 1, 2, 3, -1, 2**40)),
        "priority": st.sampled_from((0, 0, 0, 1, 2, -1)),
        "source": st.sampled_from(SOURCES),
        "step": st.sampled_from(("", "", "1")),
        "causes": _backs(2),
        "stutter": st.booleans(),
        "delay": st.integers(0, 8),
        "copies": st.lists(st.integers(0, 8), max_size=2).map(tuple),
    }
    asserting = st.builds(
        Plan,
        kind=st.just("assert"),
        patch=_patches(fields),
        cleared=st.lists(st.sampled_from(fields), max_size=2).map(tuple),
        retracts=st.one_of(st.just(()), _backs(2)),
        **common,
    ).filter(lambda plan: bool(plan.patch or plan.cleared or plan.retracts))
    linking = st.builds(
        Plan,
        kind=st.sampled_from(("link", "unlink")),
        link=st.builds(
            Link,
            relation=st.sampled_from(RELATIONS),
            target=st.sampled_from(TARGETS),
            valid_from=st.sampled_from((None, 0, 1)),
            valid_to=st.sampled_from((None, 0, 2)),
        ),
        **common,
    )
    return st.one_of(asserting, asserting, asserting, linking)


def histories(
    size_max: int = 14, fields: Sequence[str] = tuple(EVERYTHING), entities: Sequence[str] = ENTITIES[:2]
) -> st.SearchStrategy[list[Observation]]:
    """Return a strategy for observations of at most `size_max` plans, in arrival order, with duplicates.

    It shrinks to few and simple observations.
    """
    return st.lists(plans(fields, entities), min_size=1, max_size=size_max).map(build)


@dataclass(frozen=True, slots=True)
class Regime:
    """The character of a long random history. Chances are per plan."""

    entities: int
    sources: int
    tick_chance: float
    past_chance: float
    late_chance: float
    late_max: int
    copy_chance: float
    clear_chance: float
    retract_chance: float
    unknown_chance: float
    link_chance: float
    priority_chance: float

    @classmethod
    def draw(cls, rng: random.Random) -> Regime:
        """Draw a regime: from calm to wild, from all in order to almost nothing, from one source to sixty."""
        return cls(
            entities=rng.choice((1, 1, 2, 4)),
            sources=rng.choice((1, 2, 4, 20, 60)),
            tick_chance=rng.choice((0.0, 0.2, 0.9)),
            past_chance=rng.choice((0.0, 0.02, 0.3)),
            late_chance=rng.choice((0.0, 0.05, 0.5)),
            late_max=rng.choice((3, 30, 300)),
            copy_chance=rng.choice((0.0, 0.1, 0.4)),
            clear_chance=rng.choice((0.0, 0.02, 0.2)),
            retract_chance=rng.choice((0.0, 0.02, 0.3)),
            unknown_chance=rng.choice((0.0, 0.1, 0.9)),
            link_chance=rng.choice((0.0, 0.1, 0.4)),
            priority_chance=rng.choice((0.0, 0.05, 0.5)),
        )


def random_history(seed: int, length: int, regime: Regime | None = None) -> list[Observation]:
    """Return observations of `length` plans in arrival order, with duplicates. It depends only on the arguments."""
    rng = random.Random(seed)
    chosen = regime or Regime.draw(rng)
    entities = [f"{TYPE}/{number}" for number in range(chosen.entities)]
    sources = [*SOURCES, *((f"agent-{number}", "r") for number in range(60))][: chosen.sources]
    made: list[Plan] = []
    now = 0
    for index in range(length):
        now += rng.random() < chosen.tick_chance
        made.append(drawn_plan(rng, chosen, index, now, rng.choice(entities), rng.choice(sources)))
    return build(made)


def drawn_plan(rng: random.Random, regime: Regime, index: int, now: int, entity: str, source: tuple[str, str]) -> Plan:
    def chance(probability: float) -> bool:
        return rng.random() < probability

    linking = chance(regime.link_chance)
    retracting = not linking and chance(regime.retract_chance)
    patch: dict[str, Any] = {}
    # Some retractions are corrections, others only retract.
    if not linking and not (retracting and chance(0.5)):
        patch = {name: _random_value(rng, name) for name in rng.sample(list(EVERYTHING), rng.choice((1, 1, 2, 4)))}
    retracts: tuple[int, ...] = ()
    if retracting:
        retracts = tuple(_random_back(rng, regime, index) for _ in range(rng.choice((1, 1, 1, 3))))
    link = None
    if linking:
        validity = rng.choice((None, 0, 1)), rng.choice((None, 0, 2))
        link = Link(rng.choice(RELATIONS), rng.choice(TARGETS), *validity)
    clearing = not linking and chance(regime.clear_chance)
    return Plan(
        kind=rng.choice(("link", "unlink")) if linking else "assert",
        entity=entity,
        observed_at=now - rng.randrange(50) if chance(regime.past_chance) else now,
        priority=rng.choice((1, 2, -1)) if chance(regime.priority_chance) else 0,
        source=source,
        step=rng.choice(("", "1")),
        patch=patch,
        cleared=tuple(rng.sample(list(EVERYTHING), rng.choice((1, 2)))) if clearing else (),
        retracts=retracts,
        causes=tuple(rng.randrange(1, 9) for _ in range(rng.choice((0, 0, 1, 2)))),
        link=link,
        stutter=chance(0.05),
        delay=rng.randrange(1, regime.late_max + 1) if chance(regime.late_chance) else 0,
        copies=(rng.randrange(regime.late_max + 1),) if chance(regime.copy_chance) else (),
    )


def _random_back(rng: random.Random, regime: Regime, index: int) -> int:
    """Draw a reference: usually a recent plan, sometimes any plan, or an id that no log has and that differs each
    time.
    """
    if rng.random() < regime.unknown_chance:
        return index + 1
    return rng.randrange(1, 9) if rng.random() < 0.8 else rng.randrange(1, index + 2)


def _random_value(rng: random.Random, name: str) -> Any:
    if name in ("low", "total"):
        return rng.choice(DOUBLES)
    if name == "start":
        return rng.choice(TEXTS)
    if name == "tags":
        return [rng.choice(TEXTS) for _ in range(rng.randrange(4))]
    if name == "log":
        return [rng.choice(LONGS) for _ in range(rng.randrange(APPEND_LIMIT + 2))]
    if name == "attrs":
        return {rng.choice(KEYS): rng.choice((None, "x", "y")) for _ in range(rng.randrange(4))}
    return rng.choice(LONGS)
