"""Laws of comparing, on generated runs: hashes are equal exactly if nothing is found, and both directions report the
same step."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.compare.compare import compare
from refold.agents.compare.differences import differences
from refold.agents.compare.render import describe
from refold.agents.journal.delta import is_same
from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording, Step
from refold_tests.recordings import run

LEAVES = st.sampled_from([None, True, 0, 1, 1.0, 0.5, "", "a", '{"a": 1}', '{"a": 2}'])
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
FAILURES = st.none() | st.builds(Failure, exception=st.sampled_from(["A", "B"]))
ASKED = st.builds(
    RecordedRequest, kind=st.sampled_from(["tool", "read", "now", "decide", "observe"]), name=st.sampled_from("xy"),
    request=st.sampled_from([None, {"args": [1], "kwargs": {}}, {"args": [], "kwargs": {"n": 1}}]),
)  # fmt: skip
CALLS = st.builds(Call, asked=ASKED, answer=st.sampled_from([None, 1, "ok", {"cut": "c", "version": 1}]),
                  failure=FAILURES)  # fmt: skip
ATTEMPTS = st.builds(Attempt, calls=st.lists(CALLS, max_size=3).map(tuple), failure=FAILURES)
STEPS: st.SearchStrategy[Step] = st.builds(
    Step, number=st.just(0), name=st.sampled_from(["", "n"]), attempts=st.lists(ATTEMPTS, max_size=2).map(tuple),
    delta=st.sampled_from([(), (["set", ["x"], 1],), (["set", ["x"], 2],)]), result=st.sampled_from([None, 1]),
    outcome=st.sampled_from(["succeeded", "failed"]),
)  # fmt: skip
RUNS: st.SearchStrategy[Recording] = st.lists(STEPS, max_size=4).map(lambda steps: run(*steps))


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[Recording, Recording]:
    """Two runs that are mostly alike: in the second some steps are replaced, removed, inserted or moved."""
    a = draw(RUNS)
    steps = list(a.steps)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(steps)))
        match draw(st.sampled_from(["put in", "leave out", "replace", "move"])):
            case "put in":
                steps.insert(at, draw(STEPS))
            case "replace":
                steps[at : at + 1] = [draw(STEPS)]
            case "move" if steps[at:]:
                steps.append(steps.pop(at))
            case _:
                del steps[at : at + 1]
    return a, run(*steps)


@given(_pairs())
def test_difference_exists_exactly_where_hashes_differ(pair: tuple[Recording, Recording]) -> None:
    a, b = pair
    assert (compare(a, b, exact=True) is None) == (a.hash == b.hash)
    if a.hash == b.hash:
        assert compare(a, b) is None


@given(_pairs(), st.booleans())
def test_first_different_step_is_the_first_with_another_hash(
    pair: tuple[Recording, Recording], is_conversation: bool
) -> None:
    a, b = (msgspec.structs.replace(each, has_code=not is_conversation) for each in pair)
    found, back = compare(a, b, exact=True), compare(b, a, exact=True)
    hashes = [[step.hash for step in each.steps] for each in (a, b)]
    shorter = min(map(len, hashes))
    equal = next((n for n in range(shorter) if hashes[0][n] != hashes[1][n]), shorter)
    if found is None or back is None:
        assert found is back is None
        assert equal == len(hashes[0]) == len(hashes[1])
        return
    assert found.step == back.step == equal + 1
    assert list(describe(found))[2] == ""


@given(TREES, TREES)
def test_equal_trees_have_no_differing_path_and_others_have_one(a: Any, b: Any) -> None:
    found = differences(a, b)
    assert (found == []) == is_same(a, b)
    assert all(each.op == "set" or (each.a is None) == (each.op == "add") or each.op == "remove" for each in found)


def test_paths_are_written_as_in_code() -> None:
    a = {"flights": [{"date": 1}, {"date": 2}], "a key": {"x": 1}, "text": '[1, {"b": 2}]', "gone": 0}
    b = {"flights": [{"date": 1}, {"date": 3}, {"date": 4}], "a key": {"x": 2}, "text": '[1, {"b": 3}]', "new": [1]}
    found = {(each.path, each.op, str(each.a), str(each.b)) for each in differences(a, b)}
    assert found == {
        ("gone", "remove", "0", "None"),
        ("flights[1].date", "set", "2", "3"),
        ("flights[2]", "add", "None", "{'date': 4}"),
        ("a key.x", "set", "1", "2"),
        ("text#[1].b", "set", "2", "3"),
        ("new", "add", "None", "[1]"),
    }
