"""Bytes on the wire: what is written is read back, others can read it, and strangers' bytes bring in nothing new."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.avro.codec import FRAME_BYTES, ObservationCodec, derived_wire_id, framed_id
from refold.avro.definition import TypeDefinition
from refold.avro.derive import change_node, observation_node, schema_text, state_node
from refold.avro.encoder import write_long, writer
from refold.avro.errors import UndecodableError
from refold.avro.ids import identify
from refold.avro.nodes import emit
from refold.avro.observation import Link, Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold_tests.datums import datums
from refold_tests.specimens import codec, observations, only, said, specimen, typed
from refold_tests.vector_inputs import BLOB, JSON, SEALED

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
MICRO = dt.timedelta(microseconds=1)
OPTIONS = ["refold.Blob", "refold.Sealed"]


@given(observations())
def test_observation_round_trips(observation: Observation) -> None:
    data = codec().encode_observation(observation)
    found = codec().decode_observation(data)
    assert found == observation
    assert identify(found) == identify(observation)
    assert codec().encode_observation(found) == data
    assert framed_id(data) == codec().wire_id


@given(observations())
def test_patch_order_does_not_matter(observation: Observation) -> None:
    turned = observation._replace(patch=dict(reversed([*observation.patch.items()])))
    assert codec().encode_observation(turned) == codec().encode_observation(observation)
    assert identify(turned) == identify(observation)


@given(observations())
def test_published_schema_is_enough_to_read_it(observation: Observation) -> None:
    """Plain fastavro, logical types and all, as a consumer of the registry would."""
    data = codec().encode_observation(observation)
    datum = plainly_read(codec().text, data)
    assert datum["entity"] == observation.entity
    assert (datum["observed_at"] - EPOCH) // MICRO == observation.observed_at
    assert tuple(datum["causes"]) == observation.causes
    patch = datum["patch"]
    for field in specimen().fields.values():
        kept: Any = observation.patch.get(field.first_name)
        if kept is None:
            assert patch[field.name] is None
        elif field.name == "money":
            assert patch["money"] == Decimal(kept["unscaled"]).scaleb(-kept["scale"])
        elif field.name == "moment":
            assert (patch["moment"] - EPOCH) // MICRO == kept
        elif field.name == "token":
            assert str(patch["token"]) == kept
        elif field.name == "json" and isinstance(kept, str):
            assert json.loads(patch["json"]) == json.loads(kept)
        elif isinstance(kept, (bool, int, float, bytes, str)) and field.name not in TIMES:
            assert patch[field.name] == kept


TIMES = {"millis", "local", "day", "clock", "clock_ms"}


def plainly_read(schema: str, data: bytes) -> dict[str, Any]:
    """A message's datum, by the published schema alone."""
    body = io.BytesIO(data[FRAME_BYTES:])
    datum = fastavro.schemaless_reader(body, fastavro.parse_schema(json.loads(schema)), None)
    assert body.read() == b""
    assert isinstance(datum, dict)
    return datum


@pytest.mark.parametrize("name", shipped_types())
def test_derived_schemas_of_a_shipped_type_parse(name: str) -> None:
    definition = shipped_types()[name]
    for node in (observation_node(definition), state_node(definition), change_node(definition)):
        parsed = fastavro.parse_schema(json.loads(schema_text(node)))
        assert isinstance(parsed, dict)
        assert parsed["name"].endswith(f".{name}")


@given(observations())
def test_later_version_reads_it_by_avros_rules(observation: Observation) -> None:
    """A consumer that holds the schema of a later version: a field more, nested ones too, and one renamed."""
    schema = json.loads(codec().text)
    (patch,) = [field["type"] for field in schema["fields"] if field["name"] == "patch"]
    for field in patch["fields"]:
        if field["name"] == "flag":
            field.update(name="banner", aliases=["flag"])
        if field["name"] == "point":
            field["type"][1]["fields"].append({"name": "z", "type": ["null", "double"], "default": None})
    patch["fields"].append({"name": "added", "type": ["null", "string"], "default": None})
    body = io.BytesIO(codec().encode_observation(observation)[FRAME_BYTES:])
    datum: Any = fastavro.schemaless_reader(
        body, fastavro.parse_schema(json.loads(codec().text)), fastavro.parse_schema(schema)
    )
    assert datum["patch"]["banner"] == observation.patch.get("flag")
    assert datum["patch"]["added"] is None
    if "point" in observation.patch:
        assert datum["patch"]["point"]["z"] is None


def nullable_first(schema: Any) -> bool:
    """Whether every field that may be null says null first, and has it as its default, as Avro asks."""
    if isinstance(schema, list):
        return all(nullable_first(each) for each in schema)
    if not isinstance(schema, dict):
        return True
    for field in schema.get("fields", []):
        kind = field["type"]
        if (
            isinstance(kind, list)
            and "null" in kind
            and (kind[0] != "null" or field.get("default", "none") is not None)
        ):
            return False
    inner = [schema[key] for key in ("items", "values", "type") if key in schema]
    return nullable_first(inner) and nullable_first([field["type"] for field in schema.get("fields", [])])


@pytest.mark.parametrize("definition", [specimen(), *shipped_types().values()], ids=lambda each: each.name)
def test_every_nullable_field_defaults_to_null(definition: TypeDefinition) -> None:
    for node in (observation_node(definition), state_node(definition), change_node(definition)):
        assert nullable_first(json.loads(schema_text(node)))


# What this writes is what fastavro writes, byte for byte.


@pytest.mark.parametrize("derived", [observation_node, state_node, change_node])
@given(data=st.data())
@settings(max_examples=30)
def test_bytes_match_fastavro(derived: Callable[[TypeDefinition], dict[str, Any]], data: st.DataObject) -> None:
    node = derived(specimen())
    datum = data.draw(datums(node))
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(emit(node, logical=False)), datum)
    assert writer(node)(datum) == buffer.getvalue()


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs_match_fastavro(value: int) -> None:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, {"type": "long"}, value)
    assert write_long(value) == buffer.getvalue()


# Strangers' bytes.


@given(observations())
@settings(max_examples=25)
def test_truncated_message_is_undecodable(observation: Observation) -> None:
    data = codec().encode_observation(observation)
    for length in range(FRAME_BYTES, len(data)):
        with pytest.raises(UndecodableError):
            codec().decode_observation(data[:length])
    with pytest.raises(UndecodableError, match="1 bytes after the end"):
        codec().decode_observation(data + b"\0")


def held_to_the_rules(data: bytes, original: Observation | None = None) -> None:
    """Bytes are undecodable, or an observation that could have been written here, whose id is that of its content."""
    try:
        found = codec().decode_observation(data)
    except UndecodableError:
        return
    again = codec().decode_observation(codec().encode_observation(found))
    assert again == found
    assert identify(again) == identify(found)
    if original is not None:
        assert (identify(found) == identify(original)) == (found == original)


@given(observations(), st.data())
def test_flipped_bit_changes_the_id_or_is_undecodable(observation: Observation, data: st.DataObject) -> None:
    message = bytearray(codec().encode_observation(observation))
    for place in data.draw(st.lists(st.integers(FRAME_BYTES, len(message) - 1), min_size=1, max_size=20)):
        changed = bytearray(message)
        changed[place] ^= data.draw(st.integers(1, 255))
        held_to_the_rules(bytes(changed), observation)


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_undecodable(body: bytes) -> None:
    held_to_the_rules(b"\0" + codec().wire_id.to_bytes(4, "big") + body)


@given(observations(), st.integers(0, 300), st.binary(min_size=1, max_size=20))
def test_inserted_bytes_are_undecodable_or_change_the_id(observation: Observation, place: int, extra: bytes) -> None:
    data = codec().encode_observation(observation)
    place = min(FRAME_BYTES + place, len(data))
    held_to_the_rules(data[:place] + extra + data[place:], observation)


def forged(schema: object, value: Any, **attributes: Any) -> None:
    """Decode an observation whose field `a` holds what no door would have kept."""
    definition = only(schema, **attributes)
    forger = ObservationCodec(definition)
    forger.decode_observation(forger.encode_observation(Observation("t/1", 0, patch={"a": value})))


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("int", 2**31, "int in [-2147483648, 2147483647]"),
        ("int", -(2**63), "int in [-2147483648, 2147483647]"),
        ("double", math.nan, "NaN and infinity"),
        ("double", math.inf, "NaN and infinity"),
        ("float", -math.inf, "NaN and infinity"),
        ({"type": "string", "logicalType": "uuid"}, "00112233-4455-6677-8899-AABBCCDDEEFF", "a UUID in lower-case"),
        ({"type": "string", "logicalType": "uuid"}, "x", "a UUID in lower-case"),
        ({"type": "int", "logicalType": "date"}, 2**31 - 1, "date in"),
        ({"type": "int", "logicalType": "time-millis"}, -1, "time-millis in"),
        ({"type": "long", "logicalType": "timestamp-micros"}, 2**60, "timestamp-micros in"),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1},
            {"unscaled": 1000, "scale": 1},
            "a decimal",
        ),
        (JSON, "", "canonical JSON"),
        (JSON, '{"b":1,"a":2}', "canonical JSON"),
        (JSON, "[1, 2]", "canonical JSON"),
        (JSON, "NaN", "canonical JSON"),
        (JSON, "1.0", "canonical JSON"),
        (JSON, '{"a":1,"a":1}', "canonical JSON"),
        (JSON, "[" * 5000, "canonical JSON"),
        (JSON, "null", "null itself"),
        ({"type": "map", "values": ["null", JSON]}, {"k": "null"}, "null itself"),
        (
            {"type": "array", "items": ["string", *OPTIONS]},
            [{"hash": b"x" * 32, "size": -1, "media_type": ""}],
            "a Blob has",
        ),
        (["null", "string", *OPTIONS], {"hash": b"x" * 32, "size": -1, "media_type": ""}, "a Blob has"),
    ],
)
def test_invalid_value_is_undecodable(schema: object, value: Any, reason: str) -> None:
    with pytest.raises(UndecodableError) as caught:
        forged(schema, value)
    assert str(caught.value).startswith(f"patch.a: {reason}")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"entity": "u/1"}, "entity: an entity of type t"),
        ({"entity": "t"}, "entity: TYPE/ID"),
        ({"entity": "t/a\nb"}, "entity: no control characters"),
        ({"observed_at": 2**63 - 1}, "observed_at: microseconds"),
        ({"priority": 2**31}, "priority: an integer in"),
        ({"source": Source(agent="\0")}, "source.agent: no control characters"),
        ({"source": Source(seq=-1)}, "source.seq: an integer from 0"),
        ({"causes": (b"b" * 32, b"a" * 32)}, "causes: a set: sorted, without repeats"),
        ({"causes": (b"a" * 32, b"a" * 32)}, "causes: a set: sorted, without repeats"),
        ({"retracts": (b"b" * 32, b"a" * 32)}, "retracts: a set: sorted, without repeats"),
        ({"cleared": ("b", "a")}, "cleared: a set: sorted, without repeats"),
        ({"cleared": ("nothing",)}, "cleared: fields of t, by their first names"),
        ({"cleared": ("title",)}, "cleared: fields of t, by their first names"),
        ({"subject": "x" * 1025}, "subject: at most 1024 bytes"),
        ({"patch": {}}, "patch: an assert says something"),
        ({"kind": "link"}, "link: the kind link needs"),
        ({"kind": "link", "link": Link("r", "t/1")}, "kind: link has no patch"),
        ({"link": Link("r", "t/1")}, "link: goes with the kinds"),
        ({"kind": "link", "patch": {}, "link": Link("", "t/1")}, "link.relation: must not be empty"),
        ({"kind": "unlink", "patch": {}, "link": Link("r", "t/1", 2**62)}, "link.valid_from: microseconds"),
    ],
)
def test_invalid_envelope_is_undecodable(changes: dict[str, Any], reason: str) -> None:
    definition = typed(
        {"name": "a", "type": "long"}, {"name": "title", "type": "long", "refold.name": "b", "aliases": ["b"]}
    )
    forger = ObservationCodec(definition)
    observation = Observation("t/1", 0, patch={"a": 1})._replace(**changes)
    with pytest.raises(UndecodableError, match=f"^{reason}"):
        forger.decode_observation(forger.encode_observation(observation))


def test_other_encodings_of_the_same_content_have_the_same_id() -> None:
    """Avro has several forms for an array and for a decimal; ids are of the content."""
    definition = only({"type": "array", "items": "long"})
    own = ObservationCodec(definition)
    data = own.encode_observation(said(definition, [1, 2]))
    one_block, two_blocks = b"\x04\x02\x04\x00", b"\x01\x02\x02" + b"\x02\x04\x00"
    assert data.count(one_block) == 1
    found = own.decode_observation(data.replace(one_block, two_blocks))
    assert found == said(definition, [1, 2])
    money = only({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})
    own = ObservationCodec(money)
    data = own.encode_observation(said(money, "1.50"))
    found = own.decode_observation(data.replace(b"\x04\x00\x96", b"\x06\x00\x00\x96"))
    assert found == said(money, "1.5")


def test_equal_definitions_are_compiled_once() -> None:
    definition = only({"type": "long"})
    own, given = ObservationCodec(definition), ObservationCodec(only({"type": "long"}), 7)
    assert own.branches is given.branches
    assert own.branches is not ObservationCodec(only({"type": "int"})).branches
    mine, theirs = (each.encode_observation(said(definition, 5)) for each in (own, given))
    assert (framed_id(mine), framed_id(theirs)) == (own.wire_id, 7)
    assert mine[FRAME_BYTES:] == theirs[FRAME_BYTES:]


def test_claimed_huge_element_count_terminates() -> None:
    definition = only({"type": "array", "items": ["null", "long"]})
    own = ObservationCodec(definition)
    data = own.encode_observation(said(definition, [None]))
    claimed = data.replace(b"\x02\x02\x00\x00", b"\x02" + write_long(2**62) + b"\x00\x00")
    assert claimed != data
    with pytest.raises(UndecodableError):
        own.decode_observation(claimed)


def test_frames() -> None:
    registry = Registry()
    version = registry.add(only("long"))
    data = version.codec.encode_observation(said(version.definition, 1))
    assert registry.decode(data) == said(version.definition, 1)
    for foreign in (b"", b"\0", data[:4], b"\1" + data[1:], b'{"a":1}'):
        with pytest.raises(UndecodableError, match="not in Confluent wire format"):
            registry.decode(foreign)
    with pytest.raises(UndecodableError, match="no schema with id 7 in this log"):
        registry.decode(b"\0" + struct.pack(">I", 7) + data[FRAME_BYTES:])


def test_schema_id_is_in_the_frame_and_in_the_text() -> None:
    assert derived_wire_id(codec().text) == codec().wire_id < 2**31
    assert schema_text(observation_node(specimen())) == codec().text
    assert "refold.reducer" not in codec().text


# Unions with Blob and Sealed beside a type whose values look like them.

MAP = ["null", {"type": "map", "values": "string"}, *OPTIONS]
NEAR = {
    "type": "record",
    "name": "Near",
    "fields": [
        {"name": "hash", "type": ["null", "string"]},
        {"name": "size", "type": "long"},
        {"name": "media_type", "type": "string"},
        {"name": "more", "type": ["null", "string"]},
    ],
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (MAP, {"key_id": "k", "ciphertext": "c"}),
        (MAP, {"hash": "h", "size": "1", "media_type": "m"}),
        (MAP, {}),
        (MAP, SEALED),
        (MAP, BLOB),
        (["null", NEAR, *OPTIONS], {"hash": "h", "size": 1, "media_type": "m"}),
        (["null", NEAR, *OPTIONS], {"size": 1, "media_type": "m", "more": "x"}),
        (["null", NEAR, *OPTIONS], BLOB),
        (["null", NEAR, *OPTIONS], SEALED),
        ([*OPTIONS, "string", "null"], "text"),
        ([*OPTIONS, "string", "null"], SEALED),
        ({"type": "array", "items": ["bytes", *OPTIONS]}, [b"x", BLOB, SEALED]),
        (
            {"type": "map", "values": ["null", JSON, *OPTIONS]},
            {"a": {"key_id": "k", "ciphertext": "c"}, "b": None, "c": SEALED},
        ),
        ({"type": "array", "items": [{"type": "enum", "name": "E", "symbols": ["A"]}, "refold.Sealed"]}, ["A", SEALED]),
        (["null", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "refold.Sealed"], "1.5"),
    ],
)
def test_union_encodes_the_intended_branch(schema: object, value: Any) -> None:
    definition = only(schema)
    own = ObservationCodec(definition)
    observation = said(definition, value, {})
    data = own.encode_observation(observation)
    assert own.decode_observation(data) == observation
    buffer = io.BytesIO()
    parsed = fastavro.parse_schema(emit(observation_node(definition), logical=False))
    datum = fastavro.schemaless_reader(io.BytesIO(data[FRAME_BYTES:]), parsed, None, return_record_name=True)
    fastavro.schemaless_writer(buffer, parsed, datum)
    assert data[FRAME_BYTES:] == buffer.getvalue()
