"""The laws of the fold, checked by Hypothesis: of one custom reducer, or of a whole type.

A reducer:  gives the same result for the same input, does not change its input, and its result fits its field's type.
A type:     the state depends on the set of observations alone: not on their order of arrival, nor on repeats, nor on
            whether they were folded one by one or all at once.

`histories` draws the observations: values by a type's definition, with deliberate collisions.
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
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import RefoldError
from refold.avro.ids import identify
from refold.avro.nodes import Node, allows, value_of
from refold.avro.observation import Observation, Source
from refold.avro.shipped import load_type
from refold.reducers.cells import Assertion, AssertionEnvelope
from refold.reducers.custom import Custom, Function, code_of
from refold.reducers.entity import Entity, pack, unpack
from refold.reducers.failed import refusing
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import order_key
from refold.reducers.state import hash_state, state_tree

NUMBERS: dict[str, SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3),
    "long": st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.1, -0.1, 1e16, 1.0]),
    "bytes": st.binary(max_size=4),
    "string": st.text(max_size=4) | st.sampled_from(["a", "b"]),
}
LOGICAL: dict[str, SearchStrategy[Any]] = {
    "uuid": st.uuids().map(str),
    "date": st.integers(-(10**6), 10**6),
    "refold-json": st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
        max_leaves=4,
    ),
}
AGENTS = ("", "a", "b")
RUNS = ("", "r")


def values_of(node: Node) -> SearchStrategy[Any]:
    """Values that `observe` accepts for a schema node: small, and often equal."""
    strategy = _plain(value_of(node))
    return st.none() | strategy if allows(node, "null") else strategy


def _plain(node: dict[str, Any]) -> SearchStrategy[Any]:
    kind, logical = node["type"], node.get("logicalType")
    if logical == "decimal":
        bound = 10 ** node["precision"] - 1
        return st.integers(-bound, bound).map(lambda unscaled: {"unscaled": unscaled, "scale": node["scale"]})
    if logical in LOGICAL:
        return LOGICAL[logical]
    if logical is not None:
        return st.integers(0, 86_399_999)  # within every time of day, date and timestamp
    if kind == "enum":
        return st.sampled_from(node["symbols"])
    if kind == "fixed":
        return st.binary(min_size=node["size"], max_size=node["size"])
    if kind == "array":
        return st.lists(values_of(node["items"]), max_size=3)
    if kind == "map":
        return st.dictionaries(st.sampled_from(["x", "y", "z"]), values_of(node["values"]), max_size=2)
    if kind == "record":
        return st.fixed_dictionaries({field["name"]: values_of(field["type"]) for field in node["fields"]})
    return NUMBERS[kind]


@st.composite
def _patches(draw: st.DrawFn, definition: TypeDefinition) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(sorted(definition.fields)), min_size=1, max_size=4, unique=True))
    # null asserts nothing, so neither a field's null nor JSON's null is generated.
    given = {name: _plain(value_of(definition.fields[name].node)) for name in names}
    return {name: draw(values.filter(lambda value: value is not None)) for name, values in given.items()}


@st.composite
def histories(
    draw: st.DrawFn, definition: TypeDefinition, *, entity_id: str = "e", max_size: int = 12
) -> Sequence[Observation]:
    """Distinct observations of one entity, with equal times, priorities, clears, and retractions, also of later
    observations.

    Args:
        definition: The entity's type.
        entity_id: The part of its name after the slash.
        max_size: How many observations at most.
    """
    door = ObservationValidator(definition)
    found: dict[bytes, Observation] = {}
    seqs: dict[tuple[str, str], int] = {}
    for _ in range(draw(st.integers(1, max_size))):
        agent, run = draw(st.sampled_from(AGENTS)), draw(st.sampled_from(RUNS))
        seq = seqs[agent, run] = seqs.get((agent, run), -1) + 1
        retracts = draw(st.lists(st.sampled_from(sorted(found)), max_size=1)) if found else []
        observation = door.build(
            f"{definition.name}/{entity_id}",
            draw(_patches(definition)),
            observed_at=draw(st.integers(0, 5)),
            now=0,
            priority=draw(st.integers(-1, 1)),
            source=Source(agent, run, seq=seq),
            cleared=draw(st.lists(st.sampled_from(sorted(definition.fields)), max_size=1))
            if draw(st.booleans())
            else [],
            retracts=retracts,
            blobs={},
        )
        found[identify(observation)] = observation
    return list(found.values())


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
    """Check a type with all its reducers against the laws.

    Args:
        source: A definition, or the path of its .avsc file.
        examples: How many random histories to fold.

    Raises:
        BrokenLaw: A law does not hold. The message shows the history.
    """
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
    expected = _folded_at_once(fold, name, _as_seen(history))
    one_by_one = _folded_one_by_one(fold, name, _as_seen(arrival))
    for how, entity in (("at once", _folded_at_once(fold, name, _as_seen(arrival))), ("one by one", one_by_one)):
        if hash_state(fold, entity) != hash_state(fold, expected):
            raise BrokenLaw(
                f"another order of arrival, folded {how}, gave another state: {state_tree(fold, entity)} "
                f"instead of {state_tree(fold, expected)}"
            )


def _as_seen(observations: Sequence[Observation]) -> list[Seen]:
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
