"""Type files: what one may say, how each thing it may not say is refused, and what its fingerprint covers."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from refold.avro.definition import TypeDefinition, document_text, fingerprint_of, parse
from refold.avro.derive import observation_node, schema_text
from refold.avro.errors import SchemaError
from refold.avro.nodes import LOGICAL, MAX_DEPTH, branches, id_of
from refold.avro.shipped import load_type, load_types, shipped_types
from refold_tests.specimens import only, specimen, typed
from refold_tests.vector_inputs import JSON, SPECIMEN

OPTIONS = ["refold.Blob", "refold.Sealed"]
CODE = {"name": "m:f", "version": 1, "source": "00" * 32}


def code_of(name: str) -> Mapping[str, object]:
    """What identifies a function, without importing any."""
    return {**CODE, "name": name}


def record(*fields: Any, name: str = "R", **attributes: Any) -> dict[str, Any]:
    """A nested record."""
    return {"type": "record", "name": name, "fields": list(fields), **attributes}


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
        ({"name": "a", "type": "null"}, "a: null alone holds nothing; give a type, with null beside it if need be"),
        ({"name": "a", "type": ["null"]}, "a: a union is one type with null, refold.Blob and refold.Sealed beside it"),
        ({"name": "a", "type": []}, "a: a union is one type"),
        ({"name": "a", "type": ["string", "long"]}, "several value types could not be told apart in ids and in JSON"),
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
            "refold.Source stands in refold's own namespace",
        ),
        ({"name": "a", "type": record(LONG, name="refold.patch.t")}, "refold.patch.t stands in refold's own namespace"),
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
            "a: logicalType date stands on int, not on long",
        ),
        ({"name": "a", "type": {**TEXTS, "logicalType": "uuid"}}, "a: logicalType uuid stands on string, not on array"),
        ({"name": "a", "type": "long", "logicalType": "timestamp-micros"}, "a: logicalType stands inside the type"),
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
            "a: only null may be a default; an absent field is absent, and readers fill in",
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
            "t.a: refold.limit goes with the reducer append, not with sum",
        ),
        (
            {"name": "a", "type": "long", "refold.inline": -1},
            "t.a: refold.inline must be a whole number, not negative; given -1",
        ),
        (
            {"name": "a", "type": "long", "refold.inline": True},
            "t.a: refold.inline must be a whole number, not negative; given True",
        ),
        (
            {"name": "a", "type": "long", "refold.function": "m:f"},
            "t.a: refold.function goes with the reducer custom, not with latest",
        ),
        (
            {"name": "a", "type": "long", "refold.code": CODE},
            "t.a: refold.code goes with the reducer custom, not with latest",
        ),
        (
            {"name": "a", "type": "long", "refold.reducer": "custom"},
            "t.a: a custom reducer needs refold.function, as 'module:function', that can be imported",
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
            "t.a: in a collection, refold.Blob and refold.Sealed stand in the element's type",
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
            "t.a: sum cannot look into refold.Blob or refold.Sealed",
        ),
        (
            {"name": "a", "type": record({**LONG, "refold.reducer": "sum"})},
            "t.a: refold.reducer stands on the fields of the entity type, not inside refold.types.R",
        ),
        (
            {"name": "a", "type": {**TEXTS, "refold.limit": 3}, "refold.reducer": "append"},
            "a: refold.limit stands on the field, beside its name, not inside its type",
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
            "could not be told from refold.Blob; use that",
        ),
        (
            {
                "name": "a",
                "type": record(
                    {"name": "key_id", "type": "string"},
                    {"name": "c", "type": "bytes", "refold.name": "ciphertext", "aliases": ["ciphertext"]},
                ),
            },
            "could not be told from refold.Sealed; use that",
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
            "could not be told from refold.Sealed",
        ),
    ],
)
def test_a_field_that_is_refused(field: Any, rule: str) -> None:
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
def test_fields_that_are_refused_together(fields: list[dict[str, Any]], rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        typed(*fields)
    assert rule in str(caught.value)


def test_nested_fields_share_no_names_either() -> None:
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
            "t: refold.closed_by names 'y', which is no field of it",
        ),
        ({"type": "record", "name": "refold.observation.t", "fields": [LONG]}, "stands in refold's own namespace"),
        ({"type": "record", "name": "t", "namespace": "refold", "fields": [LONG]}, "stands in refold's own namespace"),
    ],
)
def test_a_document_that_is_refused(document: object, rule: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse(document, place="file.avsc")
    assert rule in str(caught.value)
    assert str(caught.value).startswith(("file.avsc: ", "t: "))


def test_types_are_nested_so_deep_and_no_deeper() -> None:
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


def test_a_definition_is_what_the_file_says() -> None:
    found = parse(SPECIMEN)
    assert found.name == "specimen"
    assert found.doc == SPECIMEN["doc"]
    assert list(found.fields) == [each["name"] for each in SPECIMEN["fields"]]
    assert set(found.by_first_name) == {*found.fields, "heading"} - {"title"}
    log, text = found.fields["log"], found.fields["text"]
    assert (log.reducer, log.limit, log.inline_bytes) == ("append", 3, 256 * 1024)
    assert text.inline_bytes == 64
    assert [id_of(each) for each in branches(text.node)] == ["null", "string", *OPTIONS]


def test_elements_of_lists_are_not_null() -> None:
    for reducer, more in (("union", {}), ("append", {"refold.limit": 2})):
        listed = only({"type": "array", "items": ["null", "string"]}, **{"refold.reducer": reducer}, **more)
        assert listed.fields["a"].node == {"type": "array", "items": {"type": "string"}}
        options = only({"type": "array", "items": ["null", "string", *OPTIONS]}, **{"refold.reducer": reducer}, **more)
        assert [id_of(each) for each in branches(options.fields["a"].element)] == ["string", *OPTIONS]
    assert only(TEXTS).fields["a"].element == {"type": "array", "items": {"type": "string"}}


def test_a_union_has_one_order() -> None:
    first, second = only(["null", "string", *OPTIONS]), only([*reversed(OPTIONS), "string", "null"])
    assert first.fingerprint == second.fingerprint
    assert schema_text(observation_node(first)) == schema_text(observation_node(second))


@pytest.mark.parametrize("definition", [specimen(), *shipped_types().values()], ids=lambda each: each.name)
def test_what_is_stored_is_read_back_as_the_same_definition(definition: TypeDefinition) -> None:
    again = parse(json.loads(document_text(definition)))
    assert again == definition
    assert again.fingerprint == definition.fingerprint
    assert document_text(again) == document_text(definition)


BASE: dict[str, Any] = {
    "type": "record",
    "name": "t",
    "refold.closed_by": "end",
    "fields": [
        {"name": "a", "type": "long", "refold.reducer": "latest"},
        {"name": "log", "type": TEXTS, "refold.reducer": "append", "refold.limit": 3},
        {"name": "own", "type": "long", "refold.reducer": "custom", "refold.function": "m:f"},
        {"name": "note", "type": ["null", "string", "refold.Blob"], "refold.reducer": "first"},
        {"name": "point", "type": record(LONG, {"name": "y", "type": ["null", "long"]}), "refold.reducer": "latest"},
        {"name": "end", "type": "long", "refold.reducer": "max"},
    ],
}

Change = Callable[[dict[str, Any]], object]


def field_of(document: dict[str, Any], name: str) -> dict[str, Any]:
    """A field of a type file."""
    found: dict[str, Any] = next(each for each in document["fields"] if each["name"] == name)
    return found


def changed(change: Change) -> bytes:
    """The fingerprint of the base with a change made."""
    document = copy.deepcopy(BASE)
    change(document)
    return parse(document, code_of).fingerprint


MATTERS: dict[str, Change] = {
    "the type's name": lambda d: d.update(name="u"),
    "its namespace": lambda d: d.update(namespace="mine"),
    "closed_by": lambda d: d.update({"refold.closed_by": "a"}),
    "no closed_by": lambda d: d.pop("refold.closed_by"),
    "a field more": lambda d: d["fields"].append({"name": "b", "type": "long", "refold.reducer": "sum"}),
    "a field less": lambda d: d["fields"].pop(1),
    "the order of fields": lambda d: d["fields"].reverse(),
    "a name": lambda d: field_of(d, "a").update(name="b"),
    "a type": lambda d: field_of(d, "a").update(type="int"),
    "null beside it": lambda d: field_of(d, "a").update(type=["null", "long"]),
    "Sealed beside it": lambda d: field_of(d, "note").update(type=["null", "string", *OPTIONS]),
    "a logical type": lambda d: field_of(d, "a").update(type={"type": "long", "logicalType": "timestamp-micros"}),
    "an alias": lambda d: field_of(d, "a").update(aliases=["z"]),
    "a first name": lambda d: field_of(d, "a").update({"aliases": ["z"], "refold.name": "z"}),
    "a reducer": lambda d: field_of(d, "a").update({"refold.reducer": "first"}),
    "a limit": lambda d: field_of(d, "log").update({"refold.limit": 4}),
    "an inline limit": lambda d: field_of(d, "note").update({"refold.inline": 1}),
    "a custom function": lambda d: field_of(d, "own").update({"refold.function": "m:g"}),
    "a nested field": lambda d: field_of(d, "point")["type"]["fields"].pop(),
    "a nested name": lambda d: field_of(d, "point")["type"].update(name="S"),
    "a nested type": lambda d: field_of(d, "point")["type"]["fields"][0].update(type="double"),
    "a nested alias": lambda d: field_of(d, "point")["type"]["fields"][0].update(aliases=["w"]),
    "a nested first name": lambda d: field_of(d, "point")["type"]["fields"][0].update(
        {"aliases": ["w"], "refold.name": "w"}
    ),
}

MATTERS_NOT: dict[str, Change] = {
    "docs": lambda d: (d.update(doc="x"), field_of(d, "a").update(doc="y"), field_of(d, "point")["type"].update(doc="z")),
    "nested docs": lambda d: field_of(d, "point")["type"]["fields"][0].update(doc="x"),
    "the default null": lambda d: (field_of(d, "note").update(default=None), field_of(d, "point")["type"]["fields"][1].update(default=None)),
    "the default namespace": lambda d: d.update(namespace="refold.types"),
    "the order of keys": lambda d: d.update(fields=[dict(reversed(each.items())) for each in d["fields"]]),
    "the order of a union": lambda d: field_of(d, "note")["type"].reverse(),
    "what Avro ignores": lambda d: (d.update(owner="me"), field_of(d, "a").update(order="ignore")),
    "a longer way to say long": lambda d: field_of(d, "a").update(type={"type": "long"}),
}  # fmt: skip


def test_a_fingerprint_covers_all_that_can_change_a_fold() -> None:
    prints = {changed(lambda d: None), *map(changed, MATTERS.values())}
    assert len(prints) == 1 + len(MATTERS)


@pytest.mark.parametrize("name", MATTERS_NOT)
def test_a_fingerprint_does_not_change_with(name: str) -> None:
    assert changed(MATTERS_NOT[name]) == changed(lambda d: None)


@pytest.mark.parametrize("part", [{"version": 2}, {"source": "11" * 32}, {"name": "m:h"}])
def test_a_fingerprint_covers_the_code_of_a_custom_reducer(part: dict[str, object]) -> None:
    one = parse(BASE, code_of)
    other = parse(BASE, lambda name: {**code_of(name), **part})
    assert one.fingerprint != other.fingerprint
    assert parse(json.loads(document_text(one))).fingerprint == one.fingerprint


def test_a_field_called_doc_is_covered() -> None:
    one, other = typed({"name": "doc", "type": "long"}), typed({"name": "doc", "type": "string"})
    assert one.fingerprint != other.fingerprint
    assert fingerprint_of(one.document) == one.fingerprint


# Files.


def test_files_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "specimen.avsc").write_text(json.dumps(SPECIMEN), encoding="utf-8")
    assert load_types([tmp_path]) == load_types([tmp_path / "specimen.avsc"]) == {"specimen": specimen()}


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"{", "not JSON: "),
        (b"\xff", "not JSON: "),
        (b"[" * 100_000, "not JSON: "),
        (b'{"type": "record", "type": "record"}', "the key 'type' stands twice in one object"),
        (b"[]", "an entity type is an Avro record"),
    ],
)
def test_a_file_that_is_no_type_is_named(tmp_path: Path, content: bytes, rule: str) -> None:
    file = tmp_path / "t.avsc"
    file.write_bytes(content)
    with pytest.raises(SchemaError) as caught:
        load_type(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert rule in str(caught.value)


def test_files_that_are_not_there_or_define_a_type_twice(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot be read: No such file"):
        load_type(tmp_path / "t.avsc")
    with pytest.raises(SchemaError, match=r"no \.avsc file in this folder"):
        load_types([tmp_path])
    for name in ("a.avsc", "b.avsc"):
        (tmp_path / name).write_text(json.dumps(SPECIMEN), encoding="utf-8")
    with pytest.raises(SchemaError, match="the type specimen is defined in two files"):
        load_types([tmp_path])
