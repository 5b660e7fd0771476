"""Hypothesis strategies made from a type's definition: values, and histories with deliberate collisions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from refold.avro.definition import TypeDefinition
from refold.avro.envelope import ObservationValidator
from refold.avro.ids import identify
from refold.avro.nodes import Node, allows, value_of
from refold.avro.observation import Observation, Source

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
