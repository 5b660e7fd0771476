"""There are no differences exactly if the trees are the same, and differences name their paths."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.journal.delta import is_same
from refold.agents.journal.difference import ABSENT, Difference, differences

TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=10,
)


@given(TREES, TREES)
def test_difference_exists_exactly_where_trees_differ(left: Any, right: Any) -> None:
    found = differences(left, right)
    assert bool(found) != is_same(left, right)
    places = {each.path: (each.left, each.right) for each in found}
    assert places == {each.path: (each.right, each.left) for each in differences(right, left)}
    assert len(places) == len(found)


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [("a.b", 1, 2)]),
        ({"a": 1}, {"b": None}, [("a", 1, ABSENT), ("b", ABSENT, None)]),
        ([1, 2, 3], [1, 9, 2, 3], [("[1]", ABSENT, 9)]),
        ({"m": [{"c": "x"}, {"c": "y"}]}, {"m": [{"c": "x"}, {"c": "z"}]}, [("m[1].c", "y", "z")]),
        ([1], 1, [("", [1], 1)]),
        (True, 1, [("", True, 1)]),
    ],
)
def test_paths_are_named(left: Any, right: Any, found: list[tuple[str, Any, Any]]) -> None:
    assert differences(left, right) == [Difference(*each) for each in found]


def test_long_texts_are_shown_at_their_first_difference() -> None:
    left, right = "x" * 500 + "seventeen" + "y" * 500, "x" * 500 + "eighteen" + "y" * 500
    line = Difference("messages[0].content", left, right).line("asked", "recorded")
    assert "xseventeen" in line
    assert "xeighteen" in line
    assert len(line) < 300
    assert Difference("k", 18, ABSENT).line("asked", "recorded") == "k: 18 asked, nothing recorded"
