"""What a type file may not say: each is refused with the place, the rule and, where there is one, the way out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from refold.avro.definition import document_text, parse
from refold.avro.errors import SchemaError
from refold.avro.nodes import LOGICAL, MAX_DEPTH
from refold_tests.specimens import only, record, typed
from refold_tests.vector_inputs import JSON

OPTIONS = ["refold.Blob", "refold.Sealed"]
CODE = {"name": "m:f", "version": 1, "source": "00" * 32}
LONG = {"name": "x", "type": "long"}
TEXTS = {"type": "array", "items": "string"}


@pytest.mark.parametrize(
    ("field", "rule"),
    [
        ({"name": "a b", "type": "long"}, "a field needs a name of letters, digits and _; given 'a b'"),
        ({"name": 5, "type": "long"}, "a field needs a name of letters, digits and _; given 5"),
        ({"type": "long"}, "a field needs a name of letters, digits and _; given None"),
        ({"name": "links", "type": "long"}, "t.links: the name 'links' is taken by every entity's own links"),
        ({"name": "a"}, "a: a field needs a type"),
        ({"name": "a", "type": "null"}, "a: null alone holds nothing; give a type, with null next to it if needed"),
        (
            {"name": "a", "type": ["null"]},
            "a: a union is one type, with null, refold.Blob and refold.Sealed as options",
        ),
        ({"name": "a", "type": []}, "a: a union is one type"),
        ({"name": "a", "type": ["string", "long"]}, "several value types would look alike in ids and in JSON"),
        ({"name": "a", "type": ["null", "string", "null"]}, "a: a union is one type"),
        ({"name": "a", "type": OPTIONS}, "a: a union is one type"),
        ({"name": "a", "type": ["null", ["string"]]}, "a: a union may not hold a union"),
        ({"name": "a", "type": "text"}, "a: unknown type 'text'; define it at its first use"),
        ({"name": "a", "type": "t"}, "a: refold.types.t contains itself; a recursive type cannot be folded or hashed"),
        ({"name": "a", "type": record({"name": "r", "type": ["null", "R"]})}, "refold.types.R contains itself"),
        ({"name": "a", "type": 5}, "a: an Avro type is a name, a union or an object with 'type'; given 5"),
        ({"name": "a", "type": {"items": "long"}}, "a: an Avro type is a name, a union or an object with 'type'"),
        (
            {"name": "a", "type": {"type": "array"}},
            "a[]: an Avro type is a name, a union or an object with 'type'; given None",
        ),
        ({"name": "a", "type": {"type": "array", "items": "null"}}, "a[]: null alone holds nothing"),
        ({"name": "a", "type": {"type": "map", "values": "null"}}, "a{}: null alone holds nothing"),
        ({"name": "a", "type": record()}, "a: the record refold.types.R needs fields, at least one"),
        ({"name": "a", "type": {"type": "record", "name": "R"}}, "a: the record refold.types.R needs fields"),
        ({"name": "a", "type": record("x")}, "a: a field is an object with a name and a type; given 'x'"),
        ({"name": "a", "type": record({"name": "x", "type": "null"})}, "a.x: null alone holds nothing"),
        ({"name": "a", "type": record(LONG, LONG)}, "a: two fields of refold.types.R share the name x"),
        (
            {"name": "a", "type": {"type": "record", "fields": [LONG]}},
            "a: a record needs a name of letters, digits and _; given None",
        ),
        (
            {"name": "a", "type": record(LONG, name="R-1")},
            "a: a record needs a name of letters, digits and _; given 'R-1'",
        ),
        (
            {"name": "a", "type": record(LONG, namespace="a b")},
            "a: a namespace is of letters, digits, _ and dots; given 'a b'",
        ),
        (
            {"name": "a", "type": record(LONG, name="refold.Blob")},
            "a: refold.Blob is refold's own type; use it by name",
        ),
        (
            {"name": "a", "type": record(LONG, name="Source", namespace="refold")},
            "refold.Source is in refold's own namespace",
        ),
        ({"name": "a", "type": record(LONG, name="refold.patch.t")}, "refold.patch.t is in refold's own namespace"),
        ({"name": "a", "type": {"type": "enum", "name": "E"}}, "a: an enum needs symbols, at least one"),
        ({"name": "a", "type": {"type": "enum", "name": "E", "symbols": []}}, "a: an enum needs symbols"),
        ({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["A", "A"]}}, "each once; given 'A'"),
        ({"name": "a", "type": {"type": "enum", "name": "E", "symbols": ["A B"]}}, "given 'A B'"),
        ({"name": "a", "type": {"type": "enum", "name": "E", "symbols": [["A"]]}}, "given ['A']"),
        ({"name": "a", "type": {"type": "fixed", "name": "F"}}, "a: a fixed needs a size in bytes"),
        ({"name": "a", "type": {"type": "fixed", "name": "F", "size": 0}}, "a: a fixed needs a size in bytes"),
        ({"name": "a", "type": {"type": "fixed", "name": "F", "size": True}}, "a: a fixed needs a size in bytes"),
        (
            {"name": "a", "type": {"type": "fixed", "name": "F", "size": 12, "logicalType": "duration"}},
            "a: logicalType 'duration' is not one of",
        ),
        (
            {"name": "a", "type": {"type": "long", "logicalType": "duration"}},
            f"is not one of {', '.join(sorted(LOGICAL))}",
        ),
        ({"name": "a", "type": {"type": "long", "logicalType": ["date"]}}, "a: logicalType ['date'] is not one of"),
        (
            {"name": "a", "type": {"type": "long", "logicalType": "date"}},
            "a: logicalType date belongs on int, not on long",
        ),
        (
            {"name": "a", "type": {**TEXTS, "logicalType": "uuid"}},
            "a: logicalType uuid belongs on string, not on array",
        ),
        ({"name": "a", "type": "long", "logicalType": "timestamp-micros"}, "a: logicalType belongs inside the type"),
        (
            {"name": "a", "type": {"type": "bytes", "logicalType": "decimal"}},
            "a: a decimal needs a precision from 1 to 18",
        ),
        (
            {"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 19}},
            "a precision from 1 to 18",
        ),
        (
            {"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": True}},
            "a precision from 1 to 18",
        ),
        (
            {"name": "a", "type": {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 4}},
            "scale lies between 0 and its precision",
        ),
        (
            {"name": "a", "type": "long", "default": 0},
            "a: only null may be a default; an absent field is absent, and readers fill it in",
        ),
        ({"name": "a", "type": "long", "aliases": "b"}, "a: aliases is a list of names; given 'b'"),
        ({"name": "a", "type": "long", "aliases": ["b c"]}, "a: aliases is a list of names; given ['b c']"),
        (
            {"name": "a", "type": "long", "refold.name": "b"},
            "a: a renamed field lists its first name 'b' in aliases, as Avro asks",
        ),
        (
            {"name": "a", "type": "long", "refold.name": "b c", "aliases": ["b"]},
            "a: refold.name is the field's first name; given 'b c'",
        ),
        ({"name": "a", "type": "long", "refold.name": ["b"]}, "a: refold.name is the field's first name; given ['b']"),
        (
            {"name": "a", "type": "long", "refold.reducr": "latest"},
            "t.a: unknown attribute refold.reducr; a field takes refold.code, refold.function",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": None},
            "t.a: refold.reducer must be one of latest, first, min",
        ),
        ({"name": "a", "type": "long", "refold.reducer": "last"}, "given 'last'"),
        (
            {"name": "a", "type": "long", "refold.reducer": "sum", "refold.limit": 3},
            "t.a: refold.limit is for the reducer append, not for sum",
        ),
        (
            {"name": "a", "type": "long", "refold.inline": -1},
            "t.a: refold.inline must be a whole number, not negative, below 2^63; given -1",
        ),
        (
            {"name": "a", "type": "long", "refold.inline": True},
            "t.a: refold.inline must be a whole number, not negative, below 2^63; given True",
        ),
        (
            {"name": "a", "type": "long", "refold.function": "m:f"},
            "t.a: refold.function is for the reducer custom, not for latest",
        ),
        (
            {"name": "a", "type": "long", "refold.code": CODE},
            "t.a: refold.code is for the reducer custom, not for latest",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": "custom"},
            "t.a: a custom reducer needs refold.function, as 'module:function', that is registered",
        ),
        (
            {"name": "a", "type": "long", "refold.inline": 2**63},
            "t.a: refold.inline must be a whole number, not negative, below 2^63; given 9223372036854775808",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": "custom", "refold.code": {**CODE, "version": (1, 2)}},
            "t.a: refold_version of m:f is a number or a text; given (1, 2)",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": "custom", "refold.function": 5},
            "t.a: a custom reducer needs refold.function",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": "custom", "refold.code": {"name": "m:f"}},
            "t.a: a custom reducer needs refold.function",
        ),
        ({"name": "a", "type": "long", "refold.reducer": "union"}, "t.a: the reducer union folds an array; given long"),
        ({"name": "a", "type": TEXTS, "refold.reducer": "map"}, "t.a: the reducer map folds a map; given array"),
        (
            {"name": "a", "type": TEXTS, "refold.reducer": "append"},
            "t.a: append keeps the last n; give n as refold.limit, at least 1",
        ),
        ({"name": "a", "type": TEXTS, "refold.reducer": "append", "refold.limit": 0}, "t.a: append keeps the last n"),
        (
            {"name": "a", "type": TEXTS, "refold.reducer": "append", "refold.limit": "3"},
            "t.a: refold.limit must be a whole number",
        ),
        (
            {"name": "a", "type": ["null", TEXTS, "refold.Blob"], "refold.reducer": "union"},
            "t.a: in a collection, refold.Blob and refold.Sealed belong in the element's type",
        ),
        (
            {"name": "a", "type": "string", "refold.reducer": "sum"},
            "t.a: sum needs one of double, float, int, long; given string",
        ),
        (
            {"name": "a", "type": {"type": "int", "logicalType": "date"}, "refold.reducer": "sum"},
            "t.a: sum needs one of double, float, int, long; given date",
        ),
        (
            {"name": "a", "type": "bytes", "refold.reducer": "min"},
            "t.a: min needs one of double, float, int, long, string; given bytes",
        ),
        (
            {"name": "a", "type": JSON, "refold.reducer": "max"},
            "t.a: max needs one of double, float, int, long, string; given refold-json",
        ),
        (
            {"name": "a", "type": ["null", "long", "refold.Sealed"], "refold.reducer": "sum"},
            "t.a: sum cannot read values in refold.Blob or refold.Sealed",
        ),
        (
            {"name": "a", "type": record({**LONG, "refold.reducer": "sum"})},
            "t.a: refold.reducer belongs on the fields of the entity type, not inside refold.types.R",
        ),
        (
            {"name": "a", "type": {**TEXTS, "refold.limit": 3}, "refold.reducer": "append"},
            "a: refold.limit belongs on the field, next to its name, not inside its type",
        ),
        (
            {
                "name": "a",
                "type": record(
                    {"name": "hash", "type": "bytes"},
                    {"name": "size", "type": "long"},
                    {"name": "media_type", "type": "string"},
                ),
            },
            "would look like refold.Blob; use that",
        ),
        (
            {
                "name": "a",
                "type": record(
                    {"name": "key_id", "type": "string"},
                    {"name": "c", "type": "bytes", "refold.name": "ciphertext", "aliases": ["ciphertext"]},
                ),
            },
            "would look like refold.Sealed; use that",
        ),
        (
            {
                "name": "a",
                "type": record(
                    {"name": "key_id", "type": "string"},
                    {"name": "ciphertext", "type": "bytes"},
                    {"name": "more", "type": ["null", "long"]},
                ),
            },
            "would look like refold.Sealed",
        ),
    ],
)
def test_refused_field(field: Any, rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        typed(field)
    assert rule in str(caught.value)
    assert str(caught.value).startswith(("t.", "definition"))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ([LONG, LONG], "two fields of refold.types.t share the name x"),
        (
            [{"name": "y", "type": "long", "refold.name": "x", "aliases": ["x"]}, LONG],
            "in refold.types.t, 'x' is a name, first name or alias of both y and x",
        ),
        (
            [
                {"name": "y", "type": "long", "refold.name": "x", "aliases": ["x"]},
                {"name": "z", "type": "long", "refold.name": "x", "aliases": ["x"]},
            ],
            "in refold.types.t, 'x' is a name, first name or alias of both y and z",
        ),
        ([{"name": "y", "type": "long", "aliases": ["x"]}, LONG], "'x' is a name, first name or alias of both y and x"),
        (
            [{"name": "y", "type": record(LONG)}, {"name": "z", "type": record(LONG)}],
            "refold.types.R is defined twice; use it by name the second time",
        ),
    ],
)
def test_fields_refused_together(fields: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        typed(*fields)
    assert rule in str(caught.value)


def test_nested_fields_must_have_distinct_names() -> None:
    renamed = {"name": "y", "type": ["null", "long"], "refold.name": "x", "aliases": ["x"]}
    with pytest.raises(SchemaError, match=r"in refold.types.R, 'x' is a name, first name or alias of both y and x"):
        only(record(renamed, LONG))


@pytest.mark.parametrize(
    ("document", "rule"),
    [
        (None, "an entity type is an Avro record"),
        (["null"], "an entity type is an Avro record"),
        ({"type": "enum", "name": "t", "symbols": ["A"]}, "an entity type is an Avro record"),
        ({"type": "record", "name": "t"}, "the record refold.types.t needs fields, at least one"),
        ({"type": "record", "name": "t", "fields": []}, "the record refold.types.t needs fields, at least one"),
        (
            {"type": "record", "name": "t", "fields": {"x": "long"}},
            "the record refold.types.t needs fields, at least one",
        ),
        (
            {"type": "record", "name": "t u", "fields": [LONG]},
            "a record needs a name of letters, digits and _; given 't u'",
        ),
        ({"type": "record", "fields": [LONG]}, "a record needs a name"),
        (
            {"type": "record", "name": "t", "refold.closedby": "x", "fields": [LONG]},
            "unknown attribute refold.closedby; a record takes refold.closed_by",
        ),
        (
            {"type": "record", "name": "t", "refold.closed_by": "y", "fields": [{**LONG, "refold.reducer": "max"}]},
            "t: refold.closed_by names 'y', which is not one of its fields",
        ),
        ({"type": "record", "name": "refold.observation.t", "fields": [LONG]}, "is in refold's own namespace"),
        ({"type": "record", "name": "t", "namespace": "refold", "fields": [LONG]}, "is in refold's own namespace"),
    ],
)
def test_refused_document(document: object, rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse(document, place="file.avsc")
    assert rule in str(caught.value)
    assert str(caught.value).startswith(("file.avsc: ", "t: "))


def test_types_have_a_greatest_depth() -> None:
    def nested(depth: int) -> Any:
        return "long" if depth == 0 else {"type": "array", "items": nested(depth - 1)}

    assert "a" in only(nested(MAX_DEPTH - 2)).fields
    with pytest.raises(SchemaError, match=f"types nested deeper than {MAX_DEPTH} levels"):
        only(nested(MAX_DEPTH))
    with pytest.raises(SchemaError, match="types nested deeper"):
        only(nested(400))

    def records(depth: int) -> Any:
        return "long" if depth == 0 else record({"name": "x", "type": records(depth - 1)}, name=f"R{depth}")

    deepest = only(records(MAX_DEPTH - 2))
    assert parse(json.loads(document_text(deepest))).fingerprint == deepest.fingerprint


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "x\0", "x\n", "a;b", "ä", ""])
def test_type_name_is_safe_in_a_path(name: str) -> None:
    with pytest.raises(SchemaError, match="a record needs a name of letters, digits and _"):
        parse({"type": "record", "name": name, "fields": [{"name": "a", "type": "long", "refold.reducer": "latest"}]})
