"""Custom reducers that fail: every order of arrival gives the state of a fold that leaves those assertions out."""

from __future__ import annotations

import random
from typing import Any

import pytest

from refold.avro.errors import SchemaError
from refold.avro.ids import identify
from refold.reducers import failed
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.registered import register
from refold.reducers.state import hash_state
from refold_tests.sample_types import A, defined, document, said


def spoiling(value: list[str] | None, assertion: Any) -> list[str]:
    """Changes what it was given before it fails, and gives what its type forbids."""
    value = value if value is not None else []
    value.append(assertion.value[0])
    if assertion.value[0] == "bad":
        raise ValueError("not that")
    if assertion.value[0] == "forbidden":
        return [1]  # type: ignore[list-item]
    if assertion.value[0] == "process":
        raise MemoryError
    return value


@pytest.fixture
def fold() -> Fold:
    register(spoiling)
    field = {"type": {"type": "array", "items": "string"}, "refold.reducer": "custom",
             "refold.function": f"{__name__}:spoiling"}  # fmt: skip
    return Fold(defined(document(spoilt=field)))


def folded(fold: Fold, values: list[tuple[int, str]]) -> tuple[Entity, bytes]:
    entity, history = Entity(A), list[Seen]()
    for offset, (number, value) in enumerate(values):
        observation = said(A, number, spoilt=[value])
        seen = Seen(offset, order_key(observation, identify(observation)), observation)
        entity, _ = fold.step(entity, seen, lambda: history)
        history.append(seen)
    return entity, hash_state(fold, entity)


def test_every_order_gives_the_fold_without_the_failed_assertions(fold: Fold, seed: int) -> None:
    rng = random.Random(seed)
    values = [(number, rng.choice(["a", "b", "bad", "forbidden"])) for number in range(20)]
    hashes = set()
    for _ in range(30):
        rng.shuffle(values)
        entity, found = folded(fold, values)
        hashes.add(found)
        assert entity.cells["spoilt"][0] == [value for _, value in sorted(values) if value in ("a", "b")] or None
    assert len(hashes) == 1


def test_process_failure_raises_and_so_does_every_refusable_failure(fold: Fold) -> None:
    before = failed.total()
    with pytest.raises(SchemaError, match="spoilt failed: MemoryError"):
        folded(fold, [(1, "process")])
    for value in ("bad", "forbidden"):
        with failed.refusing(), pytest.raises(SchemaError, match="spoilt"):
            folded(fold, [(1, value)])
    assert failed.total() == before
    folded(fold, [(1, "bad")])
    assert failed.total() == before + 1
