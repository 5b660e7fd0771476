"""The fold against the naive reference: any arrival, duplicates, batching and stored form, the same state.

Histories hold clears, retractions (also before their target), corrections, late arrivals, links, priorities, conflicts
and a custom reducer; small domains make them collide. The reference was written apart from the implementation.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.definition import parse
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.cells import Mutation
from refold.reducers.conflicts import conflicts
from refold.reducers.custom import code_of
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key, split_order_key
from refold.reducers.state import hash_state, state_tree
from refold_tests.histories import EVERYTHING, EVERYTHING_AVSC, histories, random_history, with_offsets
from refold_tests.reference import (
    encode,
    reference_conflicts,
    reference_hash,
    reference_mutations,
    reference_state,
    reference_true_at,
)

FOLD = Fold(parse(json.loads(EVERYTHING_AVSC), code_of))
Log = Sequence[tuple[int, Observation]]


def distinct(entity: str, log: Log) -> list[Seen]:
    found: dict[bytes, Seen] = {}
    for offset, observation in log:
        if observation.entity == entity:
            observation_id = identify(observation)
            found.setdefault(observation_id, Seen(offset, order_key(observation, observation_id), observation))
    return list(found.values())


def folded_one_by_one(entity: str, log: Log, stored_each: int = 1) -> tuple[Entity, list[list[Mutation]]]:
    """Through every path a table has: what the dedup state says, direct folds, reopening, the stored form between."""
    state = Entity(entity)
    done: dict[bytes, Seen] = {}
    steps: list[list[Mutation]] = []
    for number, (offset, observation) in enumerate(each for each in log if each[1].entity == entity):
        observation_id = identify(observation)
        seen = Seen(offset, order_key(observation, observation_id), observation)
        known = seen.q in done
        if state.dedup_state.certainly_new(seen.q):
            assert not known, "certainly new, and yet it was folded before"
        if observation_id in state.dedup_state.last_ids:
            assert known
        if known:
            continue
        history = list(done.values())
        state, mutations = FOLD.step(state, seen, lambda history=history: history)  # type: ignore[misc]
        done[seen.q] = seen
        steps.append(mutations)
        if number % stored_each == 0:
            state = unpack(entity, pack(state))
    return state, steps


def shown(mutation: Mutation, offset: int, version: int, by: bytes) -> bytes:
    """A mutation in the reference's form, encoded, for comparison as a set."""
    key = mutation.key
    if isinstance(key, tuple) and isinstance(key[0], bytes):
        place = split_order_key(key[0])
        key = [[*place[:4], place.id.hex()], key[1]]
    elif isinstance(key, tuple):
        key = list(key)
    return encode(
        [offset, version, mutation.field, key, mutation.op, mutation.old, mutation.new, mutation.observation, by]
    )


def check_everything(log: Log) -> None:
    for entity in {observation.entity for _, observation in log}:
        history = distinct(entity, log)
        expected = reference_state(EVERYTHING, entity, log)
        at_once = FOLD.from_nothing(entity, history)
        one_by_one, steps = folded_one_by_one(entity, log)
        assert state_tree(FOLD, at_once) == expected
        assert hash_state(FOLD, at_once) == reference_hash(expected)
        assert state_tree(FOLD, one_by_one) == expected
        assert hash_state(FOLD, one_by_one) == reference_hash(expected)
        one_by_one.state_hash = at_once.state_hash
        assert comparable(one_by_one) == comparable(at_once), "the dedup state depends on the path"
        mine = sorted(
            shown(mutation, seen.offset, version, seen.id)
            for version, (seen, mutations) in enumerate(zip(history, steps, strict=True), start=1)
            for mutation in mutations
        )
        theirs = sorted(
            encode(
                [
                    m["offset"],
                    m["version"],
                    m["field"],
                    m["key"],
                    m["op"],
                    m["old"],
                    m["new"],
                    m["observation"],
                    m["by"],
                ]
            )
            for m in reference_mutations(EVERYTHING, entity, log)
        )
        assert mine == theirs


def comparable(entity: Entity) -> tuple[object, ...]:
    dedup_state = entity.dedup_state
    sources = list(dedup_state.sources.items())
    parts = (dedup_state.greatest, sources, dedup_state.floor, dedup_state.last_ids, dedup_state.pending)
    offsets = (dedup_state.lowest_offset, dedup_state.highest_offset)
    return (entity.version, entity.cells, entity.links, entity.clears, *parts, *offsets)


@given(histories(), st.randoms(use_true_random=False))
def test_any_arrival_order_gives_the_references_state_dedup_state_and_mutations(
    history: list[Observation], rng: random.Random
) -> None:
    check_everything(with_offsets(history))
    shuffled = [*history, *rng.sample(history, len(history) // 2)]
    rng.shuffle(shuffled)
    check_everything(with_offsets(shuffled, start=100, gap=3))


@pytest.mark.parametrize(
    ("number", "length"), [*((number, 60) for number in range(30)), (30, 400), (31, 400), (32, 400)]
)
def test_long_random_histories(number: int, length: int, seed: int) -> None:
    """The long ones evict sources and retract more unseen ids than are kept."""
    check_everything(with_offsets(random_history(seed + number, length)))


@given(histories(), st.integers(-2, 4))
def test_true_at_filters_by_observed_time_under_all_retractions(history: list[Observation], until: int) -> None:
    log = with_offsets(history)
    for entity in {observation.entity for observation in history}:
        found = FOLD.from_nothing(entity, distinct(entity, log), until)
        expected = reference_true_at(EVERYTHING, entity, log, until)
        assert (state_tree(FOLD, found) if found.version else None) == expected


@given(histories(fields=("last", "start", "attrs")))
def test_conflicts_match_the_reference(history: list[Observation]) -> None:
    log = with_offsets(history)
    for entity in {observation.entity for observation in history}:
        seen = distinct(entity, log)
        found = conflicts(FOLD, FOLD.from_nothing(entity, seen), seen)
        expected, total = reference_conflicts(EVERYTHING, entity, log)
        assert found.total == total
        assert [(each.field, each.key, each.agent, each.observation, each.value) for each in found.losers] == [
            (each["field"], each.get("key"), each["agent"], each["observation"], each["value"]) for each in expected
        ]
