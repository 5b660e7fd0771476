"""Random types with a few fields, of every kind and reducer that the native kernel folds, and observations of them."""

from __future__ import annotations

import json
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
_RECORD: dict[str, Any] = {
    "type": "record",
    "name": "TheRecord",
    "fields": [
        {"name": "x", "type": ["null", "string"], "default": None},
        {"name": "y", "type": "double"},
        {"name": "z", "type": {"type": "array", "items": ["null", "float"]}},
    ],
}
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
    "enum": {"type": "enum", "name": "TheMood", "symbols": ["good", "bad", "neither"]},
    "optional": ["null", "string", "refold.Blob", "refold.Sealed"],
    "sealed": ["long", "null", "refold.Sealed"],
    "bytes": "bytes",
    "decimal": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
    "fixed": {"type": "fixed", "name": "TheFour", "size": 4},
    "record": _RECORD,
    "contents": ["null", _RECORD, "refold.Blob", "refold.Sealed"],
    "texts": {"type": "array", "items": "string"},
    "numbers": {"type": "array", "items": "double"},
    "records": {"type": "array", "items": [_RECORD, "refold.Blob"]},
    "counts": {"type": "map", "values": ["null", "long"]},
    "notes": {
        "type": "map",
        "values": ["null", {"type": "string", "logicalType": "refold-json"}, "refold.Blob", "refold.Sealed"],
    },
    "table": {"type": "map", "values": ["null", _RECORD]},
}
ORDERED = ("string", "int", "long", "float", "double", "date", "instant")
LISTS = ("texts", "numbers", "records")
MAPS = ("counts", "notes", "table")
REDUCERS = {"latest": tuple(TYPES), "first": tuple(TYPES), "min": ORDERED, "max": ORDERED, "sum": ORDERED[1:5],
            "count": tuple(TYPES), "union": LISTS, "append": LISTS, "map": MAPS}  # fmt: skip


@st.composite
def definitions(draw: st.DrawFn) -> TypeDefinition:
    """Draw types with a few fields, of any kind and with any reducer except custom ones."""
    fields = []
    for number in range(draw(st.integers(1, 6))):
        reducer = draw(st.sampled_from(("latest", "latest", *REDUCERS)))
        kind = draw(st.sampled_from(REDUCERS[reducer]))
        name = draw(st.sampled_from(("a", "b", "field", "a_field_of_a_long_name"))) + str(number)
        schema = json.loads(json.dumps(TYPES[kind]).replace('"The', f'"The{number}'))
        limit = {"refold.limit": draw(st.integers(1, 5))} if reducer == "append" else {}
        fields.append({"name": name, "type": schema, "refold.reducer": reducer, **limit})
    return parse({"type": "record", "name": "t", "fields": fields})


@st.composite
def observations(draw: st.DrawFn, definition: TypeDefinition, example: int = 0) -> Observation:
    """Draw an observation of one of an example's three entities. Most assert fields, some clear, link or retract."""
    agent, run = draw(st.sampled_from(SOURCES))
    given: dict[str, Any] = {
        "patch": draw(patches(definition)),
        "priority": draw(st.sampled_from((0, 0, 0, 1, -1, 2**31 - 1))),
        "causes": draw(st.sampled_from(((), (), (b"c" * 32,), (b"c" * 32, b"d" * 32)))),
        "subject": draw(st.sampled_from(("", "", "t/1"))),
    }
    odd = draw(st.integers(0, 29))
    if odd < 4:
        given["cleared"] = [draw(st.sampled_from(sorted(definition.fields)))]
    elif odd == 4:
        given["retracts"] = [b"r" * 32]
    elif odd < 9:
        valid_from, valid_to = draw(st.sampled_from(((None, None), (1, None), (None, 2**40), (-1, 1))))
        link = Link(draw(st.sampled_from(("about", "é"))), draw(st.sampled_from(("t/x", "tt/x"))), valid_from, valid_to)
        given |= {"kind": "link" if odd < 8 else "unlink", "patch": None, "link": link}
    if odd == 3:
        given["patch"] = None
    return ObservationValidator(definition).build(
        f"t/{example}-{draw(st.sampled_from(('1', '2', 'é')))}", observed_at=draw(MOMENTS), now=TIME_MAX,
        source=Source(agent, run, draw(NAME), draw(NAME), draw(st.integers(0, 3))), blobs={}, **given,
    )  # fmt: skip


def damaged_bytes(data: bytes, chosen: random.Random, start: int = 0) -> bytes:
    """Return the bytes with a few of them changed, inserted or removed, from `start` on."""
    place = chosen.randrange(start, len(data) + 1)
    return data[:place] + chosen.randbytes(chosen.randrange(3)) + data[place + chosen.randrange(3) :]
