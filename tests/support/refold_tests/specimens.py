"""Random observations of the type `specimen` (vector_inputs.py), in the form that authors give them, for every Avro
type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from hypothesis import strategies as st

from refold.avro.blob import Blob, Sealed
from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.logical import span_of
from refold.avro.nodes import Node, allows, value_of
from refold.avro.observation import KINDS, Link, Observation, Source
from refold.avro.times import TIME_MAX, TIME_MIN
from refold_tests.vector_inputs import SPECIMEN

Given = dict[str, Any]

INT = st.integers(-(2**31), 2**31 - 1)
LONG = st.integers(-(2**63), 2**63 - 1)
EDGES = st.sampled_from([0.0, -0.0, 0.5, 65504.0, 2.0**-24, 2.0**63, -(2.0**63), 2.0**64, 1e21, 1e300, 5e-324])
DOUBLE = EDGES | st.floats(allow_nan=False, allow_infinity=False) | LONG
FLOAT = st.floats(allow_nan=False, allow_infinity=False, width=32) | st.floats(-1e38, 1e38) | INT
NAME = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
IDS = st.lists(st.binary(min_size=32, max_size=32), max_size=3)
MICROS = st.integers(TIME_MIN, TIME_MAX)
BLOBS = st.builds(Blob, st.binary(min_size=32, max_size=32), st.integers(0, 2**63 - 1), st.text(max_size=8))
SEALEDS = st.builds(Sealed, st.text(max_size=8), st.binary(max_size=24))
JSON_NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | EDGES
JSONS = st.recursive(
    st.booleans() | JSON_NUMBERS | st.text(max_size=12),
    lambda inner: (
        st.lists(st.none() | inner, max_size=4) | st.dictionaries(st.text(max_size=6), st.none() | inner, max_size=4)
    ),
    max_leaves=8,
)


@cache
def specimen() -> TypeDefinition:
    """Return the definition."""
    return parse(SPECIMEN)


@cache
def door() -> ObservationValidator:
    """Return its validator."""
    return ObservationValidator(specimen())


@cache
def codec() -> ObservationCodec:
    """Return its codec."""
    return ObservationCodec(specimen())


def values(node: Node) -> st.SearchStrategy[Any]:
    """Return a strategy for what an author may give for this node of a schema."""
    plain = _plain(value_of(node))
    options = [each for name, each in (("Blob", BLOBS), ("Sealed", SEALEDS)) if allows(node, f"refold.{name}")]
    return st.one_of(plain, *options, *([st.none()] if allows(node, "null") else []))


def _plain(node: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    kind, logical = node["type"], node.get("logicalType")
    if logical == "decimal":
        scale = node["scale"]
        limit = 10 ** node["precision"] - 1
        return st.integers(-limit, limit).map(lambda unscaled: Decimal(f"{unscaled}E-{scale}"))
    if logical == "uuid":
        return st.uuids() | st.uuids().map(str)
    if logical == "refold-json":
        return JSONS
    if logical is not None:
        low, end = span_of(logical)
        return st.integers(low, end - 1)
    simple = {"boolean": st.booleans(), "int": INT, "long": LONG, "float": FLOAT, "double": DOUBLE,
              "string": st.text(max_size=80), "bytes": st.binary(max_size=16)}  # fmt: skip
    if kind in simple:
        return simple[kind]
    if kind == "enum":
        return st.sampled_from(node["symbols"])
    if kind == "fixed":
        return st.binary(min_size=node["size"], max_size=node["size"])
    if kind == "array":
        return st.lists(values(node["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=6) | st.just("__proto__"), values(node["values"]), max_size=4)
    required = {each["name"]: values(each["type"]) for each in node["fields"] if not allows(each["type"], "null")}
    optional = {each["name"]: values(each["type"]) for each in node["fields"] if allows(each["type"], "null")}
    return st.fixed_dictionaries(required, optional=optional)


def patches(definition: TypeDefinition) -> st.SearchStrategy[Given]:
    """Return a strategy for patches of a few fields of a type, none of them null."""
    fields = {
        each.name: values(each.node).filter(lambda value: value is not None) for each in definition.fields.values()
    }
    names = st.lists(st.sampled_from(sorted(fields)), unique=True, min_size=1, max_size=5)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: fields[name] for name in chosen}))


@st.composite
def given_observations(draw: st.DrawFn) -> Given:
    """Draw everything that an author gives: the keywords of ObservationValidator.build, except `now`."""
    kind = draw(st.sampled_from(KINDS))
    given: Given = {
        "entity": f"specimen/{draw(NAME) or 'x'}",
        "observed_at": draw(MICROS),
        "kind": kind,
        "priority": draw(INT),
        "source": Source(draw(NAME), draw(NAME), draw(NAME), draw(NAME), draw(st.integers(0, 2**63 - 1))),
        "causes": draw(IDS),
        "subject": draw(NAME),
    }
    if kind == "assert":
        cleared = st.lists(st.sampled_from([*specimen().fields, "heading"]), max_size=3)
        return {**given, "patch": draw(patches(specimen())), "cleared": draw(cleared), "retracts": draw(IDS)}
    validity = st.none() | MICROS
    link = Link(draw(NAME) or "r", f"specimen/{draw(NAME) or 'x'}", draw(validity), draw(validity))
    return {**given, "patch": None, "link": link}


def built(given: Given, blobs: dict[bytes, bytes] | None = None) -> Observation:
    """Return the observation that the validator builds from it."""
    return door().build(**given, now=TIME_MAX, blobs={} if blobs is None else blobs)


def observations() -> st.SearchStrategy[Observation]:
    """Return a strategy for observations as the validator builds them."""
    return given_observations().map(built)


def typed(*fields: Mapping[str, Any], **attributes: Any) -> TypeDefinition:
    """Return a type `t` with a few fields. The default reducer is latest."""
    every = [{"refold.reducer": "latest", **each} for each in fields]
    return parse({"type": "record", "name": "t", "fields": every, **attributes})


def only(schema: object, **attributes: Any) -> TypeDefinition:
    """Return a type `t` with the single field `a`."""
    return typed({"name": "a", "type": schema, **attributes})


def record(*fields: Any, name: str = "R", **attributes: Any) -> Given:
    """Return a nested record."""
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


def said(definition: TypeDefinition, value: Any, blobs: dict[bytes, bytes] | None = None, **given: Any) -> Observation:
    """Return an observation of t/1 with a value for the field `a`."""
    return ObservationValidator(definition).build(
        "t/1", {"a": value}, observed_at=0, now=0, source=Source(), blobs=blobs, **given
    )


def canonical(schema: object, value: Any, **attributes: Any) -> Any:
    """Return the canonical value that the validator makes of a value for a type."""
    return said(only(schema, **attributes), value, {}).patch["a"]


def plain_json(value: Any) -> Any:
    """Return a value after a round trip through JSON text."""
    return json.loads(json.dumps(value))
