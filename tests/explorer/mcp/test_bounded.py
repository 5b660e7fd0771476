"""Answers of bounded size: following the cursors gives the whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.avro.errors import InputError
from refold.explorer.mcp.bounded import AnswerPart, bounded, fitted, part_at, size_of

NAMES = st.sampled_from(["a", "b/c", "d~e", "f@1", "", "long name of a member"])
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=400) | st.just("\x00\ud83d…" * 200),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=40,
)


def followed(tree: Any, chars: int, part: AnswerPart | None = None) -> Any:
    """Return the whole answer, assembled from parts of at most about `chars` characters."""
    shown, rests = bounded(tree, chars, part)
    for rest in rests:
        base = (part or AnswerPart()).pointer
        later = part_at(rest.cursor)
        steps = later.pointer.removeprefix(base).split("/")[1:]
        more = followed(tree, chars, later)
        shown = joined(shown, steps, more, 0 if part is None else part.offset)
    return shown


def joined(shown: Any, steps: list[str], more: Any, offset: int) -> Any:
    if not steps:
        if isinstance(shown, str):
            assert shown.endswith("…")
            return shown[:-1] + more
        return {**shown, **more} if isinstance(shown, dict) else shown + more
    name = steps[0].replace("~1", "/").replace("~0", "~")
    if isinstance(shown, list):
        number = int(name) - offset
        return [*shown[:number], joined(shown[number], steps[1:], more, 0), *shown[number + 1 :]]
    return {**shown, name: joined(shown[name], steps[1:], more, 0)}


@settings(max_examples=30, deadline=None)
@given(TREES, st.integers(40, 3000))
def test_cursors_lead_to_the_whole_answer(tree: Any, chars: int) -> None:
    assert followed(tree, chars) == tree


@settings(max_examples=20, deadline=None)
@given(TREES)
def test_tree_that_fits_is_whole(tree: Any) -> None:
    assert bounded(tree, size_of(tree)) == (tree, [])


@pytest.mark.parametrize(
    "tree",
    [
        "x" * 10**6, "\x00" * 10**5, "\ud83d" * 10**5, list(range(10**5)), ["y" * 1000] * 1000,
        {str(number): "z" * 100 for number in range(5000)}, [{"a": ["b" * 300] * 40, "c": {"d": "e" * 10**5}}] * 50,
        [[[["deep" * 100] * 30] * 30] * 3] * 3,
    ],
    ids=["text", "controls", "halves", "numbers", "texts", "members", "steps", "nested"],
)  # fmt: skip
def test_no_answer_exceeds_its_bound(tree: Any) -> None:
    for chars in (2_000, 20_000):
        text = fitted({"again": {"at": "cut:x"}}, tree, chars)
        assert chars / 10 < len(text) <= chars
        assert json.loads(text)["more"]


def test_small_members_are_whole_next_to_a_large_one() -> None:
    shown, rests = bounded({"large": "x" * 10_000, "small": "y" * 50, "number": 7}, 1_000)
    assert shown["small"] == "y" * 50
    assert shown["number"] == 7
    assert len(shown["large"]) > 800
    assert [each.cursor.partition("@")[0] for each in rests] == ["/large"]


@pytest.mark.parametrize("cursor", ["", "x@1", "/a", "/a@", "/a@-1", "/a@²", "/a@" + "9" * 20, "@1x"])
def test_invalid_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(InputError, match="cursor"):
        part_at(cursor)


@pytest.mark.parametrize("cursor", ["/b@0", "/a/9@0", "/a/x@0", "/a/0/0@0", "/n@1"])
def test_missing_part_is_refused(cursor: str) -> None:
    with pytest.raises(InputError, match="no such part"):
        bounded({"a": ["x"], "n": 1}, 100, part_at(cursor))
