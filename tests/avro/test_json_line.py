"""Observations and values as JSON: shown, exported and read back as what they were, or refused."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given

from refold.avro.blob import Blob
from refold.avro.codec import ObservationCodec
from refold.avro.derive import observation_node
from refold.avro.errors import InputError, ValidationError
from refold.avro.ids import ENVELOPE, identify
from refold.avro.json_line import OUTSIDE_ID, LineReader, check_keys, to_line
from refold.avro.jsonform import format_mapping, formatter, reader
from refold.avro.observation import Link, Observation, Source
from refold_tests.specimens import built, canonical, codec, door, observations, only, said, specimen, typed
from refold_tests.vector_inputs import BLOB, JSON, SEALED

OPTIONS = ["refold.Blob", "refold.Sealed"]


def line_of(observation: Observation) -> dict[str, Any]:
    """An export line after a trip through text."""
    line = to_line(observation, identify(observation), specimen())
    found: dict[str, Any] = json.loads(json.dumps(line))
    return found


@given(observations())
def test_line_round_trips(observation: Observation) -> None:
    line = line_of(observation)
    assert check_keys(line) is line
    found, found_id, definition = LineReader([specimen()]).read(line, {})
    assert (found, found_id, definition) == (observation, identify(observation), specimen())
    del line["id"]
    assert LineReader([specimen()]).read(line, {})[1] == found_id


@given(observations())
def test_values_shown_as_json_are_read_back(observation: Observation) -> None:
    fields = specimen().by_first_name
    for name, value in observation.patch.items():
        shown = json.loads(json.dumps(formatter(fields[name].node)(value)))
        read = reader(fields[name].node)(shown, name)
        again = door().build("specimen/1", {name: read}, observed_at=0, now=0, source=Source(), blobs={})
        assert again.patch[name] == value
    whole = format_mapping({name: formatter(field.node) for name, field in fields.items()}, observation.patch)
    assert json.dumps(whole) == json.dumps(line_of(observation)["patch"])


# An envelope field stands in the wire, the id and the export, or in none.

PARTS = [*Observation._fields]
WHOLE: dict[str, Any] = {
    "entity": "specimen/2",
    "observed_at": 1,
    "priority": 1,
    "source": Source("a", "r", "s", "t", 1),
    "causes": [b"a" * 32],
    "patch": {"flag": True},
    "cleared": ["whole"],
    "retracts": [b"b" * 32],
    "subject": "s",
}
LEAST = built({"entity": "specimen/1", "observed_at": 0, "patch": {"flag": False}, "source": Source()})
LINKED = Link("r", "specimen/1", 0, 0)


def test_wire_id_and_export_have_the_same_parts() -> None:
    wire = {field["name"]: field["type"] for field in observation_node(specimen())["fields"]}
    assert set(wire) == set(ENVELOPE) == set(PARTS) == set(line_of(LEAST)) - OUTSIDE_ID
    assert len({*ENVELOPE.values(), "t"}) == len(ENVELOPE) + 1
    line = line_of(
        built(
            {
                "kind": "link",
                "link": LINKED,
                "patch": None,
                **{k: WHOLE[k] for k in ("entity", "observed_at", "source")},
            }
        )
    )
    assert [each["name"] for each in wire["source"]["fields"]] == [*Source._fields] == [*line["source"]]
    assert [each["name"] for each in wire["link"][1]["fields"]] == [*Link.__slots__] == [*line["link"]]


@pytest.mark.parametrize("part", [*sorted(WHOLE), *(f"source.{name}" for name in Source._fields)])
def test_each_part_matters_in_every_form(part: str) -> None:
    outer, _, inner = part.partition(".")
    value = Source()._replace(**{inner: getattr(WHOLE["source"], inner)}) if inner else WHOLE[outer]
    given_parts = {"entity": "specimen/1", "observed_at": 0, "patch": {"flag": False}, "source": Source(), outer: value}
    differ_everywhere(LEAST, built(given_parts))


@pytest.mark.parametrize("part", Link.__slots__)
def test_each_part_of_a_link_matters_in_every_form(part: str) -> None:
    given_parts: dict[str, Any] = {"entity": "specimen/1", "observed_at": 0, "source": Source(), "patch": None}
    change: dict[str, Any] = {part: {"relation": "u", "target": "t/2"}.get(part)}
    other = dataclasses.replace(LINKED, **change)
    links = [built({**given_parts, "kind": "link", "link": link}) for link in (LINKED, other)]
    differ_everywhere(*links)
    differ_everywhere(links[0], built({**given_parts, "kind": "unlink", "link": LINKED}))


def differ_everywhere(one: Observation, other: Observation) -> None:
    """Two observations differ in id, message and line, and each comes back whole from message and line."""
    assert identify(one) != identify(other)
    assert codec().encode_observation(one) != codec().encode_observation(other)
    assert {**line_of(one), "id": ""} != {**line_of(other), "id": ""}
    for each in (one, other):
        assert codec().decode_observation(codec().encode_observation(each)) == each
        assert LineReader([specimen()]).read(line_of(each), {})[0] == each


def read(**changes: Any) -> Observation:
    """What is read from the line of the least observation, changed; a key given as ... is left out."""
    line = {**line_of(LEAST), **changes}
    line = {name: value for name, value in line.items() if value is not ...}
    return LineReader([specimen()]).read(check_keys(line), {})[0]


def test_optional_members_of_a_line() -> None:
    bare = {name: ... for name in (*ENVELOPE, "id") if name not in ("entity", "observed_at", "patch")}
    assert read(**bare) == LEAST
    assert read(source=None, causes=None, link=None, subject=None, cleared=None, retracts=None) == LEAST
    assert read(observed_at=0) == read(observed_at="1970-01-01T01:00:00+01:00") == LEAST
    assert read(origin={"log": "x", "partition": 0, "offset": 1, "recorded_at": 2}) == LEAST


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"entity": ...}, "the key 'entity' is missing"),
        ({"observed_at": ...}, "the key 'observed_at' is missing"),
        ({"observed_at": None}, "observed_at: microseconds since 1970"),
        ({"observed_at": "yesterday"}, "observed_at: a time in RFC 3339 form"),
        ({"observed_at": 1.5}, "observed_at: microseconds since 1970"),
        ({"colour": 1}, "unknown key 'colour'; an observation has entity, kind"),
        ({"source": []}, "source: an object"),
        ({"source": {"name": "x"}}, "source.name: one of agent, run, seq, step, tool"),
        ({"source": {"agent": None}}, "source.agent: a string"),
        ({"source": {"seq": "1"}}, "source.seq: an integer"),
        ({"causes": "aa"}, "causes: a list"),
        ({"causes": [32]}, "causes: an observation's id"),
        ({"causes": ["xx"]}, "causes: an observation's id"),
        ({"cleared": [["flag"]]}, "cleared: specimen has the fields"),
        ({"patch": []}, "patch: an object"),
        ({"patch": {"nothing": 1}}, "patch.nothing: specimen has the fields"),
        ({"patch": {"flag": "yes"}}, "patch.flag: true or false"),
        ({"patch": {"raw": "?"}}, "patch.raw: bytes as base64 text"),
        ({"patch": {"raw": 1}}, "patch.raw: bytes as base64 text"),
        ({"patch": {"digest": "xyz"}}, "patch.digest: bytes as hexadecimal text"),
        ({"patch": {"digest": "00"}}, "patch.digest: 4 bytes"),
        ({"patch": {"log": ["a", 1]}}, r"patch.log[1]: a string"),
        ({"patch": {"point": {"x": 1, "label": "a", "caption": "b"}}}, "patch.point.caption: label is given twice"),
        (
            {"patch": {"text": {"$blob": {"hash": "00" * 32, "size": 1}}}},
            "patch.text: a $blob object has hash, media_type, size",
        ),
        (
            {"patch": {"text": {"$blob": {"hash": "0", "size": 1, "media_type": ""}}}},
            "patch.text.hash: bytes as hexadecimal",
        ),
        ({"patch": {"text": {"$blob": {"hash": "00" * 32, "size": 1.5, "media_type": ""}}}}, "patch.text: a Blob has"),
        ({"patch": {"text": {"$blob": {"hash": "00" * 32, "size": True, "media_type": ""}}}}, "patch.text: a Blob has"),
        ({"patch": {"text": {"$sealed": []}}}, "patch.text: a $sealed object has ciphertext, key_id"),
        ({"patch": {"text": {"$sealed": {"key_id": 1, "ciphertext": ""}}}}, "patch.text: a Sealed has"),
        ({"patch": {"text": {"$sealed": {"key_id": "", "ciphertext": 1}}}}, "patch.text.ciphertext: bytes as base64"),
        ({"patch": {"flag": {"$blob": {}}}}, "patch.flag: true or false"),
        ({"link": {"relation": "r"}}, "link: an object of relation, target, valid_from, valid_to"),
        ({"link": {"relation": "r", "target": "t/1", "since": 1}}, "link: an object of"),
        (
            {"kind": "link", "patch": {}, "link": {"relation": "r", "target": "t/1", "valid_to": "x"}},
            "link.valid_to: a time",
        ),
        ({"blobs": {"00": ""}}, "blobs.00: a content's key is its own SHA-256"),
        ({"blobs": {"x": ""}}, "blobs: contents as base64"),
        ({"blobs": []}, "blobs: an object"),
    ],
)
def test_refused_line(changes: dict[str, Any], refusal: str) -> None:
    with pytest.raises(InputError) as caught:
        read(**{"id": ..., **changes})
    assert refusal in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "changes",
    [
        {"id": "00" * 32},
        {"id": 5},
        {"id": identify(LEAST).hex().upper()},
        {"patch": {"flag": True}},
        {"observed_at": 1},
        {"subject": "s"},
    ],
)
def test_line_whose_id_does_not_match_its_content_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"is not the id of this content, which is [0-9a-f]{64}; the line was changed"):
        read(**changes)


@pytest.mark.parametrize("line", [None, [], "x", 5])
def test_line_is_an_object(line: object) -> None:
    with pytest.raises(InputError, match="an observation is a JSON object"):
        check_keys(line)


def test_contents_travel_with_a_line() -> None:
    content = b"x" * 1000
    digest = hashlib.sha256(content)
    line = {
        "entity": "specimen/1",
        "observed_at": 0,
        "patch": {"text": {"$blob": {"hash": digest.hexdigest(), "size": 1000, "media_type": "text/plain"}}},
        "blobs": {digest.hexdigest(): base64.b64encode(content).decode()},
    }
    blobs: dict[bytes, bytes] = {}
    found, _, _ = LineReader([specimen()]).read(check_keys(line), blobs)
    assert blobs == {digest.digest(): content}
    inline, _, _ = LineReader([specimen()]).read({**line, "patch": {"text": "x" * 1000}}, {})
    assert inline == found


def test_line_is_read_by_the_version_that_wrote_it() -> None:
    """The newest version that gives the id; without an id, the newest that takes it."""
    old = only({"type": "array", "items": "string"}, **{"refold.inline": 50})
    new = typed({"name": "b", "type": {"type": "array", "items": "string"}, "refold.name": "a", "aliases": ["a"]})
    observation = said(old, ["x" * 40])
    line = to_line(observation, identify(observation), old)
    reader_of_both = LineReader([new, old])
    assert reader_of_both.read(line, {}) == (observation, identify(observation), new)
    with pytest.raises(InputError, match="there is no definition of this type"):
        LineReader([]).read(line, {})
    narrow = only({"type": "array", "items": ["string", "refold.Blob"]}, **{"refold.inline": 10})
    wide = only({"type": "array", "items": ["string", "refold.Blob"]}, **{"refold.inline": 100})
    kept = said(wide, ["x" * 40], {})
    line = to_line(kept, identify(kept), wide)
    assert LineReader([narrow, wide]).read(line, {})[2] is wide
    with pytest.raises(InputError, match="is not the id of this content"):
        LineReader([narrow]).read(line, {})


MAP = ["null", {"type": "map", "values": "string"}, *OPTIONS]


@pytest.mark.parametrize(
    ("schema", "value", "shown"),
    [
        ("bytes", b"\0\xff", "AP8="),
        ({"type": "fixed", "name": "F", "size": 2}, b"\0\xff", "00ff"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "1.50", {"unscaled": 15, "scale": 1}),
        ({"type": "long", "logicalType": "timestamp-micros"}, "1970-01-01T00:00:01Z", 1_000_000),
        (JSON, {"b": 1.0, "a": None}, {"b": 1, "a": None}),
        (JSON, {"$blob": 1}, {"$json": {"$blob": 1}}),
        (JSON, {"$json": {"$json": 1}}, {"$json": {"$json": {"$json": 1}}}),
        (JSON, {"$blob": 1, "more": 2}, {"$blob": 1, "more": 2}),
        (JSON, 2.0**64, 18446744073709552000),
        (["null", JSON, *OPTIONS], {"$sealed": {}}, {"$json": {"$sealed": {}}}),
        (
            ["null", JSON, *OPTIONS],
            BLOB,
            {"$blob": {"hash": BLOB.hash.hex(), "size": 300_000, "media_type": "text/plain"}},
        ),
        (
            ["null", "string", *OPTIONS],
            SEALED,
            {"$sealed": {"key_id": "key-1", "ciphertext": "AAECAwQFBgcICQoLDA0ODxAREhM="}},
        ),
        (MAP, {"$blob": "x"}, {"$json": {"$blob": "x"}}),
        (MAP, {"$json": "x"}, {"$json": {"$json": "x"}}),
        (MAP, {"key_id": "k", "ciphertext": "c"}, {"key_id": "k", "ciphertext": "c"}),
        ({"type": "map", "values": "string"}, {"$blob": "x"}, {"$blob": "x"}),
        (
            {"type": "map", "values": ["null", JSON]},
            {"a": None, "b": {"$json": 1}},
            {"a": None, "b": {"$json": {"$json": 1}}},
        ),
        ({"type": "array", "items": JSON}, [None, {"$json": 1}], [None, {"$json": {"$json": 1}}]),
    ],
)
def test_json_form(schema: object, value: Any, shown: Any) -> None:
    kept = canonical(schema, value)
    node = only(schema).fields["a"].node
    assert formatter(node)(kept) == shown
    assert canonical(schema, reader(node)(json.loads(json.dumps(shown)), "a")) == kept


def test_python_keeps_bytes_blobs_and_sealed_as_objects() -> None:
    for schema, value in (("bytes", b"x"), (MAP, SEALED), (MAP, BLOB), (MAP, {"$blob": "x"}), (JSON, {"$json": 1})):
        node = only(schema).fields["a"].node
        assert formatter(node, python=True)(canonical(schema, value)) == value


def test_field_removed_by_a_later_version_is_shown_by_its_form() -> None:
    fields = [
        {"name": name, "type": ["null", kind]} for name, kind in (("raw", "bytes"), ("big", "string"), ("n", "long"))
    ]
    fields[1]["type"] = ["null", "string", "refold.Blob"]
    old = {
        "type": "record",
        "name": "R",
        "fields": [*fields, {"name": "all", "type": ["null", {"type": "array", "items": "bytes"}]}],
    }
    kept = canonical(old, {"raw": b"x", "big": BLOB, "n": 1, "all": [b"y"]})
    later = only({"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "long"]}]}).fields["a"].node
    blob = {"$blob": {"hash": BLOB.hash.hex(), "size": BLOB.size, "media_type": BLOB.media_type}}
    assert formatter(later)(kept) == {"raw": "eA==", "big": blob, "n": 1, "all": ["eQ=="]}


def test_null_value_stays_null() -> None:
    node = only(["null", JSON, *OPTIONS]).fields["a"].node
    assert formatter(node)(None) is None
    assert reader(node)(None, "a") is None


def test_message_of_one_version_is_a_line_of_another() -> None:
    """A renamed field keeps its first name in ids and export, so old messages and new lines meet in one id."""
    old = only("string")
    new = typed({"name": "b", "type": "string", "refold.name": "a", "aliases": ["a"]})
    observation = ObservationCodec(old).decode_observation(ObservationCodec(old).encode_observation(said(old, "x")))
    line = to_line(observation, identify(observation), new)
    assert line["patch"] == {"a": "x"}
    assert LineReader([new]).read(line, {})[1] == identify(observation)


def test_refusals_are_of_the_first_version_tried() -> None:
    with pytest.raises(ValidationError, match=r"patch\.a: a string"):
        LineReader([only("string"), only("long")]).read({"entity": "t/1", "observed_at": 0, "patch": {"a": True}}, {})


def test_blob_is_not_text() -> None:
    with pytest.raises(ValidationError, match=r"no refold\.Blob"):
        said(only("string"), Blob(b"x" * 32, 1, ""), {})
