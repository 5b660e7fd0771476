"""Stored entities as columns: what each whole one says, and a name for one that cannot be read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given

from refold.avro.definition import parse
from refold.avro.errors import CorruptionError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.columns import ColumnReader
from refold.reducers.custom import code_of
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state, state_tree
from refold_tests.histories import EVERYTHING_AVSC, histories, random_history

FOLD = Fold(parse(json.loads(EVERYTHING_AVSC), code_of))
READER = ColumnReader(FOLD.reducers)


def stored(observations: Sequence[Observation]) -> list[tuple[str, bytes]]:
    """The entities of a history, as tables and snapshots hold them."""
    states: dict[str, Entity] = {}
    done: dict[str, dict[bytes, Seen]] = {}
    for offset, observation in enumerate(observations):
        name, q = observation.entity, order_key(observation, identify(observation))
        seen = done.setdefault(name, {})
        if q not in seen:
            new = Seen(offset, q, observation)
            states[name], _ = FOLD.step(states.get(name) or Entity(name), new, seen.values)
            seen[q] = new
    for state in states.values():
        state.state_hash = hash_state(FOLD, state)
    return [(name, pack(state)) for name, state in states.items()]


@given(histories())
def test_columns_match_each_entity(observations: list[Observation]) -> None:
    check(stored(observations))


def test_columns_of_long_histories(seed: int) -> None:
    for number in range(20):
        check(stored(random_history(seed + number, 120)))


def check(every: list[tuple[str, bytes]]) -> None:
    whole = [unpack(*each) for each in every]
    trees: list[Any] = [state_tree(FOLD, each) for each in whole]
    found = READER.read(every)
    assert found.versions == [each.version for each in whole]
    assert found.state_hashes == [each.state_hash for each in whole]
    assert found.links == [[{k: v for k, v in link.items() if k != "by"} for link in each["links"]] for each in trees]
    assert list(found.values) == list(FOLD.reducers)
    for name, column in found.values.items():
        said = [each["fields"].get(name) for each in trees]
        assert said == (column or [None] * len(every)), name


def test_unreadable_stored_form_is_named(seed: int) -> None:
    every = stored(random_history(seed, 40))
    name, data = every[-1]
    other = msgspec.msgpack.decode(data)
    for broken in (data[:-1], data[:60], b"", msgspec.msgpack.encode([9, *other[1:]]), b"\xff" * 40):
        with pytest.raises(CorruptionError, match=f"the stored state of {name} "):
            READER.read([*every[:-1], (name, broken)])


def test_no_entities_give_no_rows() -> None:
    found = READER.read([])
    assert (found.versions, found.links) == ([], [])
    assert set(found.values.values()) == {None}
