"""Values as people read them (agents/adapters/langgraph/readable.py): a log accepts them, and they are short."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage

from refold.agents.adapters.langgraph.readable import BYTES_MAX, readable, readable_json
from refold.avro.canonical import json_text

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.binary(), st.datetimes(),
    st.text(st.characters(codec=None, categories=None)), st.text(st.characters(codec=None), min_size=300),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner), st.tuples(inner), st.dictionaries(st.one_of(st.text(), st.integers()), inner),
        st.sets(st.integers() | st.text()),
    ),
)  # fmt: skip


@given(VALUES)
def test_any_value_is_shown_as_json_that_a_log_accepts(value: Any) -> None:
    shown = readable(value)
    text = json_text(shown, "shown")
    assert len(text.encode()) <= BYTES_MAX
    written = readable_json(value)
    assert (None if shown is None else text) == (written and written.text)


@dataclass
class Order:
    number: int
    lines: list[str]


class Failing(dict[str, Any]):
    def items(self) -> Any:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (AIMessage("hello", id="m"), {"type": "ai", "content": "hello", "id": "m"}),
        (Order(7, ["a"] * 9), {"number": 7, "lines": ["... 3 earlier", *["a"] * 6]}),
        ({"x": b"1234", 5: 2**60}, {"x": "(4 bytes)", "5": str(2**60)}),
        ("x" * 400, "x" * 300 + "... (400 characters)"),
        ([Failing()], "(list)"),
    ],
    ids=["message", "dataclass", "bytes and large numbers", "long text", "an object that fails"],
)
def test_shown_form_of_values(value: Any, shown: Any) -> None:
    assert readable(value) == shown
