"""The laws of the fold, checked by Hypothesis: of one custom reducer, or of a whole type.

A reducer:  gives the same result for the same input, does not change its input, and its result fits its field's type.
A type:     the state depends on the set of observations alone: not on their order of arrival, nor on repeats, nor on
            whether they were folded one by one or all at once.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from refold.avro.canonical import encode
from refold.avro.definition import TypeDefinition, parse
from refold.avro.errors import RefoldError
from refold.avro.ids import identify
from refold.avro.observation import Observation, Source
from refold.avro.shipped import load_type
from refold.reducers.cells import Assertion, AssertionEnvelope
from refold.reducers.custom import Custom, Function, code_of
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.failed import refusing
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state, state_tree
from refold.testing.strategies import histories

EXAMPLES = 200


class BrokenLaw(AssertionError):
    """A reducer or a type breaks a law; the message names the law and the example."""


def check_reducer(
    function: Function, *, values: SearchStrategy[Any], type: object = "string", examples: int = EXAMPLES
) -> None:
    """Check a custom reducer against its laws.

    Args:
        function: The reducer.
        values: Draws lists of values to assert.
        type: The field's Avro type, as in the .avsc file.
        examples: How many examples to draw.

    Raises:
        BrokenLaw: A law does not hold; the message has the smallest example found.
    """
    field = {"name": "field", "type": type, "refold.reducer": "latest"}
    definition = parse({"type": "record", "name": "checked", "fields": [field]})
    reducer = Custom("field", function, definition.fields["field"].node)

    @settings(max_examples=examples, deadline=None)
    @given(st.lists(values, min_size=1, max_size=8))
    def hold(asserted: list[Any]) -> None:
        _check_purity(function, reducer, asserted)

    hold()


def _check_purity(function: Function, reducer: Custom, asserted: Sequence[Any]) -> None:
    cell: Any = None
    for number, value in enumerate(asserted):
        q = number.to_bytes(40, "big")
        envelope = AssertionEnvelope(0, q, q[-32:], number, Source())
        assertion = Assertion(value, *envelope)
        before = None if cell is None else cell[0]
        kept, kept_value = copy.deepcopy(before), copy.deepcopy(value)
        first = function(copy.deepcopy(before), assertion)
        second = function(before, assertion)
        if not _same(first, second):
            raise BrokenLaw(f"the same input gave {first!r} and then {second!r}: value {before!r}, assertion {value!r}")
        if not _same(before, kept) or not _same(value, kept_value):
            raise BrokenLaw(f"the input was changed: {kept!r} became {before!r}, {kept_value!r} became {value!r}")
        try:
            with refusing():  # else a failure leaves the value as it was
                cell = reducer.fold(cell, value, envelope, [])
        except RefoldError as error:
            raise BrokenLaw(str(error)) from error


def check_type(source: str | os.PathLike[str] | TypeDefinition, *, examples: int = EXAMPLES) -> None:
    """Check a type with all its reducers against the laws; `source` is a definition or the path of its .avsc file."""
    definition = source if isinstance(source, TypeDefinition) else load_type(Path(source), code_of)
    fold = Fold(definition)

    @settings(max_examples=examples, deadline=None)
    @given(st.data())
    def hold(data: DataObject) -> None:
        history = data.draw(histories(definition))
        arrival = data.draw(st.permutations(history))
        repeats = data.draw(st.lists(st.sampled_from(history), max_size=3))
        with refusing():
            _check_set(fold, history, [*arrival, *repeats])

    hold()


def _check_set(fold: Fold, history: Sequence[Observation], arrival: Sequence[Observation]) -> None:
    name = history[0].entity
    expected = _folded_at_once(fold, name, _seen(history))
    one_by_one = _folded_one_by_one(fold, name, _seen(arrival))
    for how, entity in (("at once", _folded_at_once(fold, name, _seen(arrival))), ("one by one", one_by_one)):
        if hash_state(fold, entity) != hash_state(fold, expected):
            raise BrokenLaw(
                f"another order of arrival, folded {how}, gave another state: {state_tree(fold, entity)} "
                f"instead of {state_tree(fold, expected)}"
            )


def _seen(observations: Sequence[Observation]) -> list[Seen]:
    found: dict[bytes, Seen] = {}
    for offset, observation in enumerate(observations):
        observation_id = identify(observation)
        found.setdefault(observation_id, Seen(offset, order_key(observation, observation_id), observation))
    return list(found.values())


def _folded_at_once(fold: Fold, name: str, history: Sequence[Seen]) -> Entity:
    return fold.from_nothing(name, history)


def _folded_one_by_one(fold: Fold, name: str, history: Sequence[Seen]) -> Entity:
    entity = Entity(name)
    for index, seen in enumerate(history):
        # Encoded and decoded every time, as between batches.
        entity, _ = fold.step(unpack(name, pack(entity)), seen, lambda until=index: history[:until])  # type: ignore[misc]
    return entity


def _same(left: Any, right: Any) -> bool:
    return encode(left) == encode(right)
