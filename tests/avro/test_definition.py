"""Type files: what is made of them, what a fingerprint covers, and how files are read."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from refold.avro.blob import references
from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, document_text, fingerprint_of, parse
from refold.avro.derive import observation_node, schema_text
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import SchemaError
from refold.avro.nodes import branches, id_of
from refold.avro.observation import Source
from refold.avro.shipped import load_type, load_types, shipped_types
from refold_tests.specimens import only, record, specimen, typed
from refold_tests.vector_inputs import SPECIMEN

OPTIONS = ["refold.Blob", "refold.Sealed"]
LONG = {"name": "x", "type": "long"}
TEXTS = {"type": "array", "items": "string"}


def code_of(name: str) -> Mapping[str, object]:
    """What identifies a function, without importing any."""
    return {"name": name, "version": 1, "source": "00" * 32}


def test_definition_matches_its_file() -> None:
    found = parse(SPECIMEN)
    assert found.name == "specimen"
    assert found.doc == SPECIMEN["doc"]
    assert list(found.fields) == [each["name"] for each in SPECIMEN["fields"]]
    assert set(found.by_first_name) == {*found.fields, "heading"} - {"title"}
    log, text = found.fields["log"], found.fields["text"]
    assert (log.reducer, log.limit, log.inline_bytes) == ("append", 3, 256 * 1024)
    assert text.inline_bytes == 64
    assert [id_of(each) for each in branches(text.node)] == ["null", "string", *OPTIONS]


def test_list_elements_are_not_null() -> None:
    for reducer, more in (("union", {}), ("append", {"refold.limit": 2})):
        listed = only({"type": "array", "items": ["null", "string"]}, **{"refold.reducer": reducer}, **more)
        assert listed.fields["a"].node == {"type": "array", "items": {"type": "string"}}
        options = only({"type": "array", "items": ["null", "string", *OPTIONS]}, **{"refold.reducer": reducer}, **more)
        assert [id_of(each) for each in branches(options.fields["a"].element)] == ["string", *OPTIONS]
    assert only(TEXTS).fields["a"].element == {"type": "array", "items": {"type": "string"}}


def test_union_has_one_order() -> None:
    first, second = only(["null", "string", *OPTIONS]), only([*reversed(OPTIONS), "string", "null"])
    assert first.fingerprint == second.fingerprint
    assert schema_text(observation_node(first)) == schema_text(observation_node(second))


@pytest.mark.parametrize("definition", [specimen(), *shipped_types().values()], ids=lambda each: each.name)
def test_stored_definition_round_trips(definition: TypeDefinition) -> None:
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


def _docs(document: dict[str, Any]) -> None:
    document["doc"] = field_of(document, "a")["doc"] = "x"
    field_of(document, "point")["type"]["doc"] = "y"


def _default_null(document: dict[str, Any]) -> None:
    field_of(document, "note")["default"] = None
    field_of(document, "point")["type"]["fields"][1]["default"] = None


MATTERS_NOT: dict[str, Change] = {
    "docs": _docs,
    "nested docs": lambda d: field_of(d, "point")["type"]["fields"][0].update(doc="x"),
    "the default null": _default_null,
    "the default namespace": lambda d: d.update(namespace="refold.types"),
    "the order of keys": lambda d: d.update(fields=[dict(reversed(each.items())) for each in d["fields"]]),
    "the order of a union": lambda d: field_of(d, "note")["type"].reverse(),
    "what Avro ignores": lambda d: (d.update(owner="me"), field_of(d, "a").update(order="ignore")),
    "a longer way to say long": lambda d: field_of(d, "a").update(type={"type": "long"}),
}


def test_fingerprint_covers_everything_that_can_change_a_fold() -> None:
    prints = {changed(lambda d: None), *map(changed, MATTERS.values())}
    assert len(prints) == 1 + len(MATTERS)


@pytest.mark.parametrize("name", MATTERS_NOT)
def test_fingerprint_is_independent_of(name: str) -> None:
    assert changed(MATTERS_NOT[name]) == changed(lambda d: None)


@pytest.mark.parametrize("part", [{"version": 2}, {"source": "11" * 32}, {"name": "m:h"}])
def test_fingerprint_covers_the_code_of_a_custom_reducer(part: dict[str, object]) -> None:
    one = parse(BASE, code_of)
    other = parse(BASE, lambda name: {**code_of(name), **part})
    assert one.fingerprint != other.fingerprint
    assert parse(json.loads(document_text(one))).fingerprint == one.fingerprint


def test_entity_may_have_the_fields_of_a_blob() -> None:
    """Only values inside a field have to be told from Blob and Sealed; a patch is always a patch."""
    whole = typed(
        *(
            {"name": name, "type": kind}
            for name, kind in (("hash", "bytes"), ("size", "long"), ("media_type", "string"))
        )
    )
    patch = {"hash": b"x", "size": 1, "media_type": ""}
    observation = ObservationValidator(whole).build("t/1", patch, observed_at=0, now=0, source=Source())
    codec = ObservationCodec(whole)
    assert codec.decode_observation(codec.encode_observation(observation)) == observation
    assert [*references(observation.patch.values(), lambda digest: None)] == []


def test_field_named_doc_is_covered() -> None:
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
        (b'{"type": "record", "type": "record"}', "the key 'type' is twice in one object"),
        (b"[]", "an entity type is an Avro record"),
    ],
)
def test_invalid_type_file_is_named(tmp_path: Path, content: bytes, rule: str) -> None:
    file = tmp_path / "t.avsc"
    file.write_bytes(content)
    with pytest.raises(SchemaError) as caught:
        load_type(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert rule in str(caught.value)


def test_missing_files_and_duplicate_types(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="cannot be read: No such file"):
        load_type(tmp_path / "t.avsc")
    with pytest.raises(SchemaError, match=r"no \.avsc file in this folder"):
        load_types([tmp_path])
    for name in ("a.avsc", "b.avsc"):
        (tmp_path / name).write_text(json.dumps(SPECIMEN), encoding="utf-8")
    with pytest.raises(SchemaError, match="the type specimen is defined in two files"):
        load_types([tmp_path])
