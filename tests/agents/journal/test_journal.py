"""The laws of edits, exact numbers and the chain."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.journal import json_fidelity
from refold.agents.journal.chain import broken, start_hash, state_hash, step_hash
from refold.agents.journal.delta import applied, edits, is_same
from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording, Step, to_tree
from refold.avro.canonical import json_text

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | st.text("abc", max_size=3)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.sampled_from(["a", "b", "c", "refold.float", "refold.object", "refold.keys"]), inner, max_size=3
        )
    ),
    max_leaves=12,
)
LISTS = st.lists(st.integers(0, 3), max_size=8)


def typed(tree: Any) -> Any:
    """Return the tree with the type of each number, and the sign of zero."""
    if isinstance(tree, dict):
        return {key: typed(value) for key, value in tree.items()}
    return [typed(each) for each in tree] if isinstance(tree, list) else repr(tree)


@given(TREES, TREES)
def test_edits_turn_one_value_into_the_other(before: Any, after: Any) -> None:
    kept = copy.deepcopy((before, after))
    changes = edits(before, after)
    assert is_same(applied(before, changes), after)
    assert (before, after) == kept
    assert bool(changes) != is_same(before, after)


@given(LISTS, LISTS, LISTS)
def test_list_edits_cost_only_what_changed(head: list[int], middle: list[int], tail: list[int]) -> None:
    changes = edits([*head, *tail], [*head, *middle, *tail])
    assert applied([*head, *tail], changes) == [*head, *middle, *tail]
    assert len(changes) <= 1
    assert all(len(change[4]) <= len(middle) for change in changes)


@given(TREES)
def test_numbers_and_key_order_are_preserved(tree: Any) -> None:
    stored = json.loads(json_text(json_fidelity.written(tree)))
    assert typed(json_fidelity.read(stored)) == typed(tree)
    assert json.dumps(json_fidelity.read(stored)) == json.dumps(tree)


def test_chain_hash_covers_content_not_time() -> None:
    call = Call(
        asked=RecordedRequest(kind="tool", name="search", request={"kwargs": {"q": "x"}}), answer=[1], started_at=5
    )
    first = Step(
        number=1, name="look", attempts=(Attempt(calls=(call,), started_at=1, ended_at=2),), outcome="succeeded"
    )
    start = start_hash("a", {"q": 1.0}, 7, {})
    assert start == start_hash("a", {"q": 1}, 7, {})
    found = step_hash(start, first)
    later = msgspec.structs.replace(first, attempts=(Attempt(calls=(msgspec.structs.replace(call, started_at=6),)),))
    assert step_hash(start, later) == found
    for other in (
        msgspec.structs.replace(first, name="seek"),
        msgspec.structs.replace(first, delta=(["set", ["a"], 1],)),
        msgspec.structs.replace(first, result=0),
        msgspec.structs.replace(first, attempts=(Attempt(calls=(msgspec.structs.replace(call, answer=[2]),)),)),
        msgspec.structs.replace(first, attempts=(Attempt(calls=(call,), failure=Failure(exception="E")),)),
        msgspec.structs.replace(first, attempts=(Attempt(calls=(call, call)),)),
    ):
        assert step_hash(start, other) != found
    assert state_hash({}) != state_hash({"a": None})


def test_changed_step_is_detected() -> None:
    start = start_hash("a", None, None, {})
    one = Step(number=1, outcome="succeeded", result=1, previous=start)
    one = msgspec.structs.replace(one, hash=step_hash(start, one))
    two = Step(number=2, outcome="succeeded", result=2, previous=one.hash)
    two = msgspec.structs.replace(two, hash=step_hash(one.hash, two))
    whole = Recording(run="r", agent="a", steps=(one, two))
    assert list(broken(whole)) == []
    changed = msgspec.structs.replace(whole, steps=(msgspec.structs.replace(one, result=3), two))
    assert list(broken(changed)) == [1]
    assert msgspec.convert(to_tree(whole), Recording) == whole
