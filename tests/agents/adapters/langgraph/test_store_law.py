"""Any sequence of operations has the same results in a RefoldStore as in LangGraph's InMemoryStore."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.store.base import GetOp, Item, ListNamespacesOp, MatchCondition, Op, PutOp, Result, SearchOp
from langgraph.store.memory import InMemoryStore

from refold.langgraph import RefoldStore

pytestmark = pytest.mark.outside

Namespace = tuple[str, ...]
EVERYTHING = 10_000
_roots = count()

LABELS = st.sampled_from(["a", "b", "a#b", "ü%"])
NAMESPACES = st.lists(LABELS, max_size=2).map(tuple)
KEYS = st.sampled_from(["", "a", "b", "#", "tab\there"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
VALUES = st.fixed_dictionaries({"n": st.integers(0, 3) | st.sampled_from([0.5, 1.0])}, optional={"x": JSON})
EQUAL = st.dictionaries(st.sampled_from(["$eq", "$ne"]), JSON)
ORDERED = st.dictionaries(st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), st.integers(0, 3), min_size=1)
FILTERS = st.dictionaries(st.sampled_from("nx"), st.integers(0, 3) | EQUAL, max_size=1) | st.fixed_dictionaries(
    {"n": ORDERED}
)
PATHS = st.lists(LABELS | st.just("*"), max_size=3).map(tuple)
CONDITIONS = st.lists(
    PATHS.map(lambda path: MatchCondition("prefix", path)) | PATHS.map(lambda path: MatchCondition("suffix", path))
)
OPS: st.SearchStrategy[Op] = (
    st.tuples(NAMESPACES, KEYS, VALUES | st.none()).map(lambda each: PutOp(*each))
    | st.tuples(NAMESPACES, KEYS, VALUES).map(lambda each: PutOp(*each))
    | st.tuples(NAMESPACES, KEYS).map(lambda each: GetOp(*each))
    | st.tuples(NAMESPACES, FILTERS).map(lambda each: SearchOp(each[0], each[1], EVERYTHING))
    | st.tuples(CONDITIONS.map(tuple), st.none() | st.integers(1, 3)).map(
        lambda each: ListNamespacesOp(each[0], each[1], EVERYTHING)
    )
)


class Reference(InMemoryStore):
    """LangGraph's store without its empty namespaces, which its stores on databases do not list either."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        asked = [*ops]
        for empty in [name for name, items in self._data.items() if not items]:
            del self._data[empty]
        listed = {
            at: super(Reference, self).batch([op])[0] for at, op in enumerate(asked) if isinstance(op, ListNamespacesOp)
        }
        found = super().batch(asked)
        return [listed.get(at, each) for at, each in enumerate(found)]


@pytest.fixture(scope="module")
def handles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RefoldStore]]:
    url = f"file:{tmp_path_factory.mktemp('store') / 'log'}"
    with RefoldStore(url) as one, RefoldStore(url) as other:
        yield [one, other]


def below(root: str, op: Op) -> Op:
    """Return the same operation in a namespace that no other example uses."""
    if isinstance(op, (GetOp, PutOp)):
        return op._replace(namespace=(root, *op.namespace))
    if isinstance(op, SearchOp):
        return op._replace(namespace_prefix=(root, *op.namespace_prefix))
    return op._replace(match_conditions=(MatchCondition("prefix", (root,)), *(op.match_conditions or ())))


def shown(result: Result) -> Any:
    """Return a result for comparison. Each store has an order of its own for what it finds."""
    if isinstance(result, Item):
        return (result.namespace, result.key, result.value)
    if isinstance(result, list) and result and isinstance(result[0], Item):
        return sorted(map(shown, result), key=lambda each: each[:2])
    return result


@settings(max_examples=30, deadline=None)
@given(batches=st.lists(st.tuples(st.integers(0, 1), st.lists(OPS, min_size=1, max_size=5)), max_size=10))
def test_answers_match_langgraphs_own_store(
    handles: list[RefoldStore], batches: Sequence[tuple[int, list[Op]]]
) -> None:
    reference, root = Reference(), f"example {next(_roots)}"
    for which, ops in batches:
        asked = [below(root, op) for op in ops]
        assert [*map(shown, handles[which].batch(asked))] == [*map(shown, reference.batch(asked))], asked
    whole, expected = handles[0].search((root,), limit=EVERYTHING), reference.search((root,), limit=EVERYTHING)
    assert shown(whole) == shown(expected)
    assert shown(handles[1].search((root,), limit=EVERYTHING)) == shown(whole)
    assert [each.updated_at for each in whole] == sorted((each.updated_at for each in whole), reverse=True)
    for item in whole:
        assert item.created_at <= item.updated_at
        assert handles[1].get(item.namespace, item.key) == Item(
            value=item.value, key=item.key, namespace=item.namespace, created_at=item.created_at,
            updated_at=item.updated_at,
        )  # fmt: skip


@pytest.mark.parametrize("number", [2.0**53, 2.0**63, 2.0**64, -(2.0**64), 3e20, 1e21, 2**64 - 1, -(2**63)])
def test_whole_numbers_of_any_size_come_back_equal(handles: list[RefoldStore], number: float) -> None:
    handles[0].put(("numbers",), "n", {"x": number})
    item = handles[1].get(("numbers",), "n")
    assert item is not None
    assert item.value == {"x": number}
    assert handles[1].search(("numbers",), filter={"x": {"$eq": number}})


def test_stored_state_matches_a_full_replay_after_the_examples(handles: list[RefoldStore]) -> None:
    assert handles[0].log.verify().mismatches == []
