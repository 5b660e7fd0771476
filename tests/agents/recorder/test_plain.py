"""What is recorded is restored unchanged, or is refused when it is recorded."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.recorder.plain import DEPTH_MAX, Shape, decoded, encoded, kept, shape_of
from refold.avro.canonical import encode, json_tree
from refold.avro.errors import InputError

integers = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
scalars = st.none() | st.booleans() | integers | st.floats(allow_nan=False, allow_infinity=False) | texts
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=4) | st.dictionaries(texts, t, max_size=4), max_leaves=12)


@dataclasses.dataclass
class Point:
    x: float
    tags: tuple[str, ...] = ()


class Pair(NamedTuple):
    left: int
    right: str


class Model:
    """Like pydantic's models: private parts are compared by ==, and are not dumped."""

    def __init__(self, text: str, private: object = None) -> None:
        self.text = text
        self.private = private

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and (self.text, self.private) == (other.text, other.private)

    def __hash__(self) -> int:
        return hash(self.text)

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"text": self.text}

    @classmethod
    def model_validate(cls, tree: dict[str, Any]) -> Model:
        return cls(tree["text"])


class Loose:
    """A class without its own ==, and without a way to create it from JSON."""


class Colour(enum.StrEnum):
    RED = "red"


def types_of(tree: Any) -> Any:
    """Return the tree with the type of every value in it."""
    if isinstance(tree, dict):
        return dict, [(key, types_of(value)) for key, value in tree.items()]
    if isinstance(tree, list):
        return list, [types_of(each) for each in tree]
    return type(tree), repr(tree)


@given(trees)
def test_json_values_round_trip_with_types_and_key_order(tree: Any) -> None:
    assert types_of(decoded(kept(tree, "it"))) == types_of(tree)
    assert types_of(Shape(None, "it").served(decoded(Shape(None, "it").recorded(tree)))) == types_of(tree)


def type_name(value: object) -> str:
    """Return a parameter's name for test ids; it is the same in every process, which its repr need not be."""
    return value.__name__ if isinstance(value, type) else type(value).__name__


@pytest.mark.parametrize(
    "value",
    [
        math.nan, math.inf, [-math.inf], {"a": math.nan}, "\ud800", {"\udfff": 1}, 2**64, -(2**63) - 1, [2**70],
        10**400, 1 + 2j, object(), Loose(), Point(math.nan), OrderedDict(a=1), defaultdict(list), lambda: None, ...,
        range(3), iter([]), memoryview(b"x"), Exception("x"), Model("a"), Point, {(1, 2): Loose()}, {1, math.inf},
    ],
    ids=type_name,
)  # fmt: skip
def test_unserializable_value_is_neither_state_nor_answer(value: Any) -> None:
    with pytest.raises(InputError, match=r"run\.state"):
        kept(value, "run.state")
    with pytest.raises(InputError, match="the tool t"):
        Shape(None, "the tool t").recorded(value)


def test_cyclic_value_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(InputError, match="cannot be recorded"):
        kept(circle, "it")


@given(st.integers(1, DEPTH_MAX * 2 + 10), st.sampled_from("[{"))
def test_stored_values_have_a_greatest_depth(levels: int, kind: str) -> None:
    tree: Any = 1.0
    for _ in range(levels):
        tree = [tree] if kind == "[" else {"refold.float": tree}
    if levels > DEPTH_MAX:
        with pytest.raises(InputError, match="levels"):
            kept(tree, "it")
    else:
        assert decoded(kept(tree, "it")) == tree
        encode(json_tree(tree))


def test_many_brackets_in_text_do_not_count_as_depth() -> None:
    wide = {"text": "[{" * 1000, "rows": [[each] for each in range(1000)], "number": "1" * 40}
    assert decoded(kept(wide, "it")) == wide


def test_requests_may_contain_any_json() -> None:
    assert decoded(encoded({"at": dt.date(2026, 1, 2), "pair": (1, 2)}, "it")) == {"at": "2026-01-02", "pair": [1, 2]}
    with pytest.raises(InputError, match="what search was called with: client: an object cannot be recorded"):
        encoded({"kwargs": {"client": object()}}, "what search was called with")
    with pytest.raises(InputError, match=r"what search was called with: argument 2\[0\]: a function"):
        encoded({"args": [1, [print]], "kwargs": {}}, "what search was called with")
    assert encoded({"kwargs": {"at": Path("a/b"), "names": {"b", "c", "a"}}}, "it") == (
        b'{"kwargs":{"at":{"refold.path":"a/b"},"names":{"refold.set":["a","b","c"]}}}'
    )
    assert encoded({"names": {"b", "c", "a"}}, "it") == b'{"names":["a","b","c"]}'
    with pytest.raises(InputError, match="64 bits"):
        encoded({"n": 2**64}, "it")


@pytest.mark.parametrize(
    ("returns", "answer"),
    [
        (Point, Point(1.5, ("a", "b"))), (Pair, Pair(1, "a")), (list[Point], [Point(1.0), Point(2.0)]),
        (Point | None, Point(1.0)), (Point | None, None), (dt.datetime, dt.datetime(2026, 1, 1, 5, tzinfo=dt.UTC)),
        (dt.datetime | None, dt.datetime(2026, 1, 1, tzinfo=dt.UTC)), (dt.date | int, 5), (bytes, b"\x00\xff"),
        (set[str], {"b", "a", "c"}), (frozenset[int], frozenset({3, 1})), (tuple[int, ...], (1, 2)),
        (dict[int, str], {1: "a"}), (Colour, Colour.RED), (dict[str, Point], {"a": Point(0.0)}), (Model, Model("a")),
        (Model, Model("a", private="id")), (list[Model], [Model("a")]), (int | str, "5"),
    ],
    ids=type_name,
)  # fmt: skip
def test_objects_of_a_named_type_round_trip(returns: Any, answer: Any) -> None:
    shape = Shape(returns, "the tool t")
    again = shape.served(decoded(shape.recorded(answer)))
    assert type(again) is type(answer)
    assert (again.text == answer.text) if isinstance(answer, Model) else again == answer


@pytest.mark.parametrize(
    ("returns", "answer"),
    [
        (Point, {"x": 1.0}), (Point, Pair(1, "a")), (dict[str, Any], {"a": (1,)}), (list[Any], [dt.date(2026, 1, 1)]),
        (dt.datetime, "2026-01-01T00:00:00Z"), (int, "5"), (Point, 5), (tuple[Any, ...], ((1, 2),)), (float, 1),
        (Model, {"text": "a"}), (Point, {"refold.answer": 1.0}), (dict[str, Any], {"refold.answer": 1.0}),
        (Any, {"refold.answer": (1,)}),
        (Point, {"refold.tuple": [1]}),
    ],
    ids=type_name,
)  # fmt: skip
def test_answer_of_another_type_than_named_is_restored_as_its_own(returns: Any, answer: Any) -> None:
    shape = shape_of(lambda: None, returns, "the tool t")
    again = shape.served(decoded(shape.recorded(answer)))
    assert again == answer
    assert types_of(again) == types_of(answer)


def test_unserializable_answer_of_a_named_type_is_refused() -> None:
    for returns, answer in [(Point, Point(math.nan)), (Loose, Loose()), (list[Loose], [Loose()])]:
        with pytest.raises(InputError, match="the tool t: its answer"):
            shape_of(lambda: None, returns, "the tool t").recorded(answer)


def test_set_elements_are_sorted_and_key_order_is_kept() -> None:
    assert Shape(set[str], "it").recorded({"b", "c", "a"}) == b'["a","b","c"]'
    assert Shape(list[dict[str, dt.date]], "it").recorded([{"b": dt.date(2026, 1, 1), "a": dt.date(2026, 1, 1)}]) == (
        b'[{"b":"2026-01-01","a":"2026-01-01"}]'
    )
