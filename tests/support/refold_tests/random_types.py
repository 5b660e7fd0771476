"""Random types of a few fields, nearly all of them of kinds that the native kernel folds, and observations of them."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st

from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import ObservationValidator
from refold.avro.observation import Link, Observation, Source
from refold.avro.times import TIME_MAX, TIME_MIN
from refold_tests.histories import SOURCES
from refold_tests.specimens import NAME, patches

MOMENTS = st.sampled_from((0, 1, 2, 3, -1, 2**40, TIME_MIN, TIME_MAX)) | st.integers(TIME_MIN, TIME_MAX)
TYPES: dict[str, Any] = {
    "string": "string",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "date": {"type": "int", "logicalType": "date"},
    "instant": {"type": "long", "logicalType": "timestamp-micros"},
    "json": {"type": "string", "logicalType": "refold-json"},
    "uuid": {"type": "string", "logicalType": "uuid"},
    "enum": {"type": "enum", "name": "Mood", "symbols": ["good", "bad", "neither"]},
    "optional": ["null", "string", "refold.Blob", "refold.Sealed"],
    "sealed": ["long", "null", "refold.Sealed"],
    "bytes": "bytes",
    "texts": {"type": "array", "items": "string"},
}
ORDERED = ("string", "int", "long", "float", "double", "date", "instant")
REDUCERS = {"latest": tuple(TYPES), "first": tuple(TYPES), "min": ORDERED, "max": ORDERED, "sum": ORDERED[1:5],
            "count": tuple(TYPES), "union": ("texts",)}  # fmt: skip


@st.composite
def definitions(draw: st.DrawFn) -> TypeDefinition:
    """Types of a few fields, of any kind and reducer; most of them ones that the kernel folds."""
    fields = []
    for number in range(draw(st.integers(1, 6))):
        reducer = draw(st.sampled_from(("latest", "latest", *REDUCERS)))
        kind = draw(st.sampled_from(REDUCERS[reducer]))
        name = draw(st.sampled_from(("a", "b", "field", "a_field_of_a_long_name"))) + str(number)
        schema = TYPES[kind]
        if kind == "enum":
            schema = {**schema, "name": f"Mood{number}"}
        fields.append({"name": name, "type": schema, "refold.reducer": reducer})
    return parse({"type": "record", "name": "t", "fields": fields})


@st.composite
def observations(draw: st.DrawFn, definition: TypeDefinition, example: int = 0) -> Observation:
    """An observation of one of an example's three entities: nearly always an assert of fields alone."""
    agent, run = draw(st.sampled_from(SOURCES))
    given: dict[str, Any] = {
        "patch": draw(patches(definition)),
        "priority": draw(st.sampled_from((0, 0, 0, 1, -1, 2**31 - 1))),
        "causes": draw(st.sampled_from(((), (), (b"c" * 32,), (b"c" * 32, b"d" * 32)))),
        "subject": draw(st.sampled_from(("", "", "t/1"))),
    }
    odd = draw(st.integers(0, 29))
    if odd == 0:
        given["cleared"] = [draw(st.sampled_from(sorted(definition.fields)))]
    elif odd == 1:
        given["retracts"] = [b"r" * 32]
    elif odd == 2:
        given |= {"kind": "link", "patch": None, "link": Link("about", "document/x")}
    return ObservationValidator(definition).build(
        f"t/{example}-{draw(st.sampled_from(('1', '2', 'é')))}", observed_at=draw(MOMENTS), now=TIME_MAX,
        source=Source(agent, run, draw(NAME), draw(NAME), draw(st.integers(0, 3))), blobs={}, **given,
    )  # fmt: skip


def damaged_bytes(data: bytes, chosen: random.Random, start: int = 0) -> bytes:
    """The bytes with a few of them changed, put in or taken out, from a place on."""
    place = chosen.randrange(start, len(data) + 1)
    return data[:place] + chosen.randbytes(chosen.randrange(3)) + data[place + chosen.randrange(3) :]
