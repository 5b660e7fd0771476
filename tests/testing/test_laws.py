"""refold.testing finds what breaks a law, and lets pass what keeps them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from refold import Assertion
from refold.avro.shipped import shipped_types
from refold.testing import BrokenLaw, check_reducer, check_type

LONGS = {"type": "array", "items": "long"}
_calls = itertools.count()


def loudest(value: int | None, assertion: Assertion) -> int:
    return max(value or 0, int(assertion.value))


def last_two(value: list[int] | None, assertion: Assertion) -> list[int]:
    return [*(value or []), int(assertion.value)][-2:]


def counts_calls(value: int | None, assertion: Assertion) -> int:
    return next(_calls)


def changes_its_input(value: list[int] | None, assertion: Assertion) -> list[int]:
    result = value if value is not None else []
    result.append(int(assertion.value))
    return result


def gives_text(value: str | None, assertion: Assertion) -> str:
    return f"{value}{assertion.value}"


def gives_infinity(value: float | None, assertion: Assertion) -> float:
    return float("inf") if assertion.value > 5 else 1.0


@pytest.mark.parametrize(("function", "type_"), [(loudest, "long"), (last_two, LONGS)])
def test_pure_reducer_passes(function: Callable[..., Any], type_: object) -> None:
    check_reducer(function, values=st.integers(0, 9), type=type_, examples=50)


@pytest.mark.parametrize(
    ("function", "type_", "says"),
    [
        (counts_calls, "long", "the same input gave"),
        (changes_its_input, LONGS, "the input was changed"),
        (gives_text, "long", "gave what its type forbids"),
        (gives_infinity, "double", "gave what its type forbids"),
    ],
)
def test_broken_reducer_is_found(function: Callable[..., Any], type_: object, says: str) -> None:
    with pytest.raises(BrokenLaw, match=says):
        check_reducer(function, values=st.integers(0, 9), type=type_, examples=50)


@pytest.mark.parametrize("name", ["document", "effect", "entity_graph", "tool_config"])
def test_shipped_types_keep_the_laws(name: str) -> None:
    check_type(shipped_types()[name], examples=15)
