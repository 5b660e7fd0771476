"""New versions of a type: what may change, what may not and why, and that every version reads what was written."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from refold.avro.codec import ObservationCodec
from refold.avro.definition import TypeDefinition, parse
from refold.avro.derive import observation_node, schema_text
from refold.avro.errors import SchemaError, UndecodableError, UnknownWireId
from refold.avro.evolution import check_evolution
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.avro.registry import Hole, Registry, WireIds
from refold_tests.reference_cbor import encode
from refold_tests.specimens import canonical, only, record, said, typed
from refold_tests.vector_inputs import JSON

COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
OPTIONS = ["refold.Blob", "refold.Sealed"]
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}


X = {"name": "x", "type": "long"}
Y = {"name": "y", "type": ["null", "long"]}

# What may become what, with a value that is written under the one and must be the same under the other.
ALLOWED: list[tuple[str, Any, Any, Any]] = [
    ("nothing", "long", "long", 5),
    ("int to long", "int", "long", 5),
    ("float to double", "float", "double", 0.1),
    ("null is written now", "long", ["null", "long"], 5),
    ("null is no longer written: every field of a patch may be absent", ["null", "long"], "long", 5),
    ("null is allowed inside", record(X), record({**X, "type": ["null", "long"]}), {"x": 1}),
    ("a symbol more", COLOUR, {**COLOUR, "symbols": ["BLUE", "GREEN", "RED"]}, "GREEN"),
    ("an enum renamed with an alias", COLOUR, {**COLOUR, "name": "Color", "aliases": ["Colour"]}, "RED"),
    ("a record renamed with an alias", record(X), record(X, name="S", aliases=["R"]), {"x": 1}),
    ("a record renamed with a full alias", record(X), record(X, name="S", aliases=["refold.types.R"]), {"x": 1}),
    ("a nested field more", record(X), record(X, Y), {"x": 1}),
    ("a nested field less", record(X, Y), record(X), {"x": 1}),
    ("a nested promotion", record({"name": "x", "type": "int"}), record(X), {"x": 1}),
    ("a nested field renamed", record(X), record({**X, "name": "z", "refold.name": "x", "aliases": ["x"]}), {"x": 1}),
    ("items", {"type": "array", "items": "int"}, {"type": "array", "items": "long"}, [1, 2]),
    ("values", {"type": "map", "values": "float"}, {"type": "map", "values": ["null", "double"]}, {"k": 0.1}),
    ("inside a union", ["null", "int", *OPTIONS], ["null", "long", *OPTIONS], 5),
]


@pytest.mark.parametrize(
    ("before", "after", "value"), [case[1:] for case in ALLOWED], ids=[case[0] for case in ALLOWED]
)
def test_change_that_keeps_ids_is_allowed(before: Any, after: Any, value: Any) -> None:
    old, new = only(before), only(after)
    check_evolution([old], new)
    assert identify(said(old, canonical_input(before, value))) == identify(said(new, canonical_input(before, value)))


def canonical_input(schema: Any, value: Any) -> Any:
    """The value as it came to be kept under the earlier schema: a float's 32 bits, for instance."""
    return canonical(schema, value)


REFUSED: list[tuple[Any, Any, str]] = [
    ("int", "float", "a: int to float loses digits, so an old id could not be computed again; add a new field"),
    ("int", "double", "a: int to double loses digits"),
    ("long", "float", "a: long to float loses digits"),
    ("long", "double", "a: long to double loses digits"),
    ("long", "int", "a: Avro reads no long as int; add a new field"),
    ("double", "float", "a: Avro reads no double as float; add a new field"),
    ("long", "string", "a: Avro reads no long as string; add a new field"),
    ("string", "bytes", "a: ids hash string and bytes differently, so an old id would be lost; add a new field"),
    ("bytes", "string", "a: ids hash bytes and string differently"),
    ("string", COLOUR, "a: Avro reads no string as enum"),
    (
        {"type": "array", "items": ["null", "long"]},
        {"type": "array", "items": "long"},
        "a[]: null was allowed before, and old observations may hold it",
    ),
    (
        "string",
        ["null", "string", "refold.Blob"],
        "a: refold.Blob belongs to a type from its first version or never; ids cover the stored form",
    ),
    (
        ["null", "string", *OPTIONS],
        ["null", "string", "refold.Blob"],
        "a: refold.Sealed belongs to a type from its first version or never",
    ),
    (
        ["null", "string", "refold.Sealed"],
        "string",
        "a: refold.Sealed belongs to a type from its first version or never",
    ),
    (
        "long",
        {"type": "long", "logicalType": "timestamp-micros"},
        "a: no logical type would become timestamp-micros, and old values keep the first's rules; add a new field",
    ),
    (
        {"type": "long", "logicalType": "timestamp-micros"},
        {"type": "long", "logicalType": "timestamp-millis"},
        "a: timestamp-micros would become timestamp-millis",
    ),
    (JSON, "string", "a: refold-json would become no logical type"),
    (DECIMAL, {**DECIMAL, "scale": 3}, "a: Avro reads a decimal only at its own precision and scale"),
    (DECIMAL, {**DECIMAL, "precision": 7}, "a: Avro reads a decimal only at its own precision and scale"),
    (COLOUR, {**COLOUR, "symbols": ["RED"]}, "a: the symbol GREEN is gone"),
    (COLOUR, {**COLOUR, "name": "Color"}, "a: the enum refold.types.Colour was renamed without an alias"),
    ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 5}, "a: a fixed keeps its size"),
    (
        {"type": "fixed", "name": "F", "size": 4},
        {"type": "fixed", "name": "G", "size": 4},
        "a: the fixed refold.types.F was renamed without an alias",
    ),
    (record(X), record(X, name="S"), "a: the record refold.types.R was renamed without an alias"),
    (record(X), record(X, {"name": "y", "type": "long"}), "a.y: a new field must allow null, for old values lack it"),
    (record(X), record({"name": "x", "type": "double"}), "a.x: long to double loses digits"),
    (record(Y), record({"name": "y", "type": "long"}), "a.y: null was allowed before"),
    (
        record({**X, "name": "z", "refold.name": "x", "aliases": ["x"]}),
        record({**X, "name": "w", "refold.name": "x", "aliases": ["x"]}),
        "a.w: it was called z; list that in aliases, for Avro's readers go by it",
    ),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "double"}, "a[]: long to double loses digits"),
    ({"type": "map", "values": ["null", "long"]}, {"type": "map", "values": "long"}, "a{}: null was allowed before"),
    ({"type": "map", "values": "long"}, {"type": "array", "items": "long"}, "a: Avro reads no map as array"),
]


@pytest.mark.parametrize(("before", "after", "reason"), REFUSED)
def test_change_that_would_lose_ids_is_refused(before: Any, after: Any, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_evolution([only(before)], only(after))
    assert str(caught.value).startswith(f"t: this version cannot follow an earlier one: {reason}")


def version(**fields: Any) -> TypeDefinition:
    """A version of t with these fields; a field given as (type, first name) was renamed."""
    every = []
    for name, given in fields.items():
        schema, *first = given if isinstance(given, tuple) else (given,)
        every.append({"name": name, "type": schema, **({"refold.name": first[0], "aliases": first} if first else {})})
    return typed(*every)


def test_every_earlier_version_counts() -> None:
    """A field that went away and comes back must still read what it once held."""
    first, without = version(a="string", b="long"), version(b="long")
    check_evolution([first], without)
    check_evolution([first, without], version(a="string", b="long"))
    with pytest.raises(SchemaError, match="a: Avro reads no string as long"):
        check_evolution([first, without], version(a="long", b="long"))
    check_evolution([without], version(a="long", b="long"))


def test_renamed_field_keeps_its_first_name() -> None:
    first, second = version(a="string"), version(b=("string", "a"))
    check_evolution([first], second)
    with pytest.raises(SchemaError, match=r"b: its first name is 'a' and stays so in every id; set refold\.name to it"):
        check_evolution([second], version(b="string"))
    with pytest.raises(SchemaError, match="c: it was called b; list that in aliases"):
        check_evolution([first, second], version(c=("string", "a")))
    check_evolution([first, second], version(c=("string", "a", "b")))
    with pytest.raises(SchemaError, match="b: Avro reads no string as long"):
        check_evolution([first], version(b=("long", "a")))


def test_custom_code_changes_only_under_a_new_version() -> None:
    def custom(**code: object) -> TypeDefinition:
        code = {"name": "m:f", "version": 1, "source": "00", **code}
        return only("long", **{"refold.reducer": "custom", "refold.function": code["name"], "refold.code": code})

    check_evolution([custom()], custom())
    check_evolution([custom()], custom(version=2, source="11"))
    check_evolution([custom()], custom(name="m:g", source="11"))
    check_evolution([custom()], only("long"))
    with pytest.raises(SchemaError, match="a: the code of m:f changed under the same version; raise its version"):
        check_evolution([custom()], custom(source="11"))


@pytest.mark.parametrize(
    "change",
    [
        {"refold.reducer": "first"},
        {"refold.reducer": "count"},
        {"refold.inline": 10},
        {"doc": "x"},
    ],
)
def test_reducer_of_a_field_may_change(change: dict[str, Any]) -> None:
    check_evolution([only("long")], only("long", **change))


# The registry.


def registered(*definitions: TypeDefinition) -> Registry:
    """A registry with each definition, checked and added in order."""
    registry = Registry()
    for each in definitions:
        registry.check(each)
        registry.add(each)
    return registry


def test_old_messages_are_read_by_their_writers_schema() -> None:
    versions = [
        version(a="string", n="int"),
        version(b=("string", "a"), n="long"),
        version(n="long", c=["null", "double"]),
    ]
    registry = registered(*versions)
    said_first = Observation("t/1", 5, patch={"a": "x", "n": 1})
    said_second = Observation("t/1", 5, patch={"a": "x", "n": 1})
    messages = [
        ObservationCodec(each).encode_observation(o)
        for each, o in zip(versions, (said_first, said_second), strict=False)
    ]
    assert messages[0] != messages[1]
    assert registry.decode(messages[0]) == registry.decode(messages[1]) == said_first
    assert identify(registry.decode(messages[0])) == identify(said_second)


def test_avros_own_newer_reader_finds_a_renamed_field() -> None:
    """The aliases are in the published schema, so consumers of a registry continue reading too."""
    patch = json.loads(schema_text(observation_node(version(b=("string", "a")))))["fields"][6]["type"]
    assert patch["fields"] == [
        {"aliases": ["a"], "default": None, "name": "b", "refold.name": "a", "type": ["null", "string"]}
    ]


def test_wire_ids_are_the_first_31_bits_of_the_schemas_hash() -> None:
    for definition in (version(a="string"), version(a="long")):
        text = schema_text(observation_node(definition))
        bits = int.from_bytes(hashlib.sha256(text.encode()).digest(), "big") >> (256 - 31)
        assert ObservationCodec(definition).wire_id == bits


def test_version_that_only_folds_differently_shares_its_wire_id() -> None:
    one, other = only("long"), only("long", **{"refold.reducer": "sum"})
    registry = registered(one, other)
    assert [each.codec.wire_id for each in registry] == [ObservationCodec(one).wire_id] * 2
    message = registry.newest("t").codec.encode_observation(said(other, 1))
    assert registry.decode(message) == said(one, 1)


def test_two_schemas_with_one_wire_id_are_refused() -> None:
    """Among some ten thousand fields a1, a2, ... the first two whose schemas share their 31 bits."""
    one, other = version(a3024="long"), version(a17496="long")
    assert ObservationCodec(one).wire_id == ObservationCodec(other).wire_id
    with pytest.raises(SchemaError, match="t: its schema has the 31-bit id of one of t"):
        registered(one).check(other)


def test_versions_are_found_by_name_offset_time_and_fingerprint() -> None:
    registry = Registry()
    first, second, other = (
        version(a="int"),
        version(a="long"),
        parse({"type": "record", "name": "u", "fields": [{"name": "a", "type": "long", "refold.reducer": "sum"}]}),
    )
    for number, each in enumerate((first, other, second)):
        assert registry.add(each, registered_at=number * 1000).offset == number
    assert len(registry) == 3
    assert [each.definition for each in registry.versions("t")] == [first, second]
    assert registry.newest("t").definition is second
    assert registry.newest("t", below=2).definition is first
    found = registry.find(parse(first.document))
    assert found is not None
    assert found.offset == 0
    assert registry.find(version(a="string")) is None
    assert [registry.schemas_offset_at(time) for time in (-1, 0, 1999, 2000)] == [0, 1, 2, 3]
    with pytest.raises(SchemaError, match=r"unknown type 'v'; this log knows: t, u\. Add its \.avsc file with --types"):
        registry.newest("v")
    with pytest.raises(SchemaError, match="unknown type 'u'"):
        registry.newest("u", below=1)
    with pytest.raises(SchemaError, match="this log knows: none yet"):
        Registry().newest("t")


def test_digest_covers_the_newest_fingerprint_of_each_type() -> None:
    first, second = version(a="int"), version(a="long")
    registry = registered(first, second)
    for definition, below in ((first, 1), (second, 2), (second, None)):
        assert registry.digest(below) == hashlib.sha256(encode({"t": definition.fingerprint})).digest()
    assert registry.digest(0) == Registry().digest() == hashlib.sha256(b"\xa0").digest()


def test_message_of_an_unknown_schema_names_its_id() -> None:
    message = ObservationCodec(version(a="long")).encode_observation(Observation("t/1", 0, patch={"a": 1}))
    with pytest.raises(
        UnknownWireId, match=f"no schema with id {ObservationCodec(version(a='long')).wire_id} in this log"
    ):
        registered(version(a="string")).decode(message)


def test_remembered_messages_are_decoded_once() -> None:
    definition = version(a="long")
    registry, codec = registered(definition), ObservationCodec(definition)
    first, *others = (codec.encode_observation(Observation("t/1", 0, patch={"a": value})) for value in range(3))
    with registry.remembering(2):
        found = registry.decode(first)
        assert registry.decode(bytes(bytearray(first))) is found
        for damaged in (first[:-1], first + b"\0", first[:-1] + b"\x7f"):
            with pytest.raises(UndecodableError):
                registry.decode(damaged)
        assert [registry.decode(each).patch for each in others] == [{"a": 1}, {"a": 2}]
        again = registry.decode(first)  # one more than it keeps
        assert again == found
        assert again is not found
    assert registry.decode(first) is not again


# Ids that a Schema Registry gave, and holes.


def test_messages_carry_the_assigned_ids() -> None:
    definition = version(a="long")
    registry = Registry()
    added = registry.add(definition, wire_ids=WireIds(observation=7, change=8, state=9))
    observation = Observation("t/1", 5, patch={"a": 1})
    message = added.codec.encode_observation(observation)
    assert message[:5] == b"\0\0\0\0\x07"
    assert message[5:] == ObservationCodec(definition).encode_observation(observation)[5:]
    assert registry.decode(message) == observation
    assert registry.with_derived_id(message) == ObservationCodec(definition).encode_observation(observation)
    assert (added.codec.wire_id, added.changes.wire_id, added.states.wire_id) == (7, 8, 9)
    with pytest.raises(UnknownWireId, match="no schema with id 8 in this log") as unknown:
        registry.decode(b"\0\0\0\0\x08" + message[5:])
    assert unknown.value.wire_id == 8


def test_versions_of_one_schema_may_have_one_assigned_id_or_two() -> None:
    one, other, third = (
        only("long"),
        only("long", **{"refold.reducer": "sum"}),
        only("long", **{"refold.reducer": "max"}),
    )
    registry = Registry()
    for definition, ids in ((one, WireIds(1, 2, 3)), (other, WireIds(1, 4, 5)), (third, WireIds(6, 2, 3))):
        registry.check(definition, ids)
        registry.add(definition, wire_ids=ids)
    for message in (each.codec.encode_observation(said(one, 1)) for each in registry):
        assert registry.decode(message) == said(one, 1)


def test_schemas_that_differ_only_in_aliases_may_share_an_assigned_id() -> None:
    registry = Registry()
    for aliases in (["x"], ["x", "y"]):
        definition = typed({"name": "a", "type": "long", "refold.name": "x", "aliases": aliases})
        registry.check(definition, WireIds(7, 8, 9))
        registry.add(definition, wire_ids=WireIds(7, 8, 9))
    assert len({each.codec.text for each in registry}) == 2


@pytest.mark.parametrize(
    "ids",
    [WireIds(7, 18, 19), WireIds(8, 18, 19), WireIds(17, 9, 19), WireIds(17, 18, 7), WireIds(17, 17, 19)],
    ids=str,
)
def test_id_assigned_to_two_schemas_is_refused(ids: WireIds) -> None:
    registry = Registry()
    registry.add(version(a="long"), wire_ids=WireIds(7, 8, 9))
    with pytest.raises(
        SchemaError, match=r"t: the Schema Registry gave its schema the id \d+, which is that of another"
    ):
        registry.check(version(a="long", b="long"), ids)
    registry.check(version(a="long", b="long"), WireIds(17, 18, 19))


def test_definition_is_checked_before_ids_are_requested() -> None:
    registry = Registry()
    own = ObservationCodec(version(a="long", b="long")).wire_id
    registry.add(version(a="long"), wire_ids=WireIds(own, 8, 9))
    registry.check(version(a="long", b="long"))  # the embedded id it would have elsewhere plays no part
    with pytest.raises(SchemaError):
        registry.check(version(a="string"))


def test_hole_has_only_an_offset() -> None:
    first, second = version(a="int"), version(a="long")
    registry, without = Registry(), Registry()
    registry.skip(500)
    assert registry.schemas_offset_at(499) == 0
    assert registry.schemas_offset_at(500) == len(registry) == 1
    for number, definition in enumerate((first, second), start=1):
        assert registry.add(definition, registered_at=number * 1000).offset == 2 * number - 1
        registry.skip(number * 1000 + 1)
        without.add(definition)
    assert len(registry) == 5
    assert [each.offset for each in registry] == [each.offset for each in registry.versions("t")] == [1, 3]
    assert [isinstance(place, Hole) for place in registry.entries()] == [True, False, True, False, True]
    assert [place.offset for place in registry.entries()] == [*range(5)]
    assert [registry.schemas_offset_at(time) for time in (499, 999, 1000, 1001, 1999, 2000, 2001)] == [
        0,
        1,
        2,
        3,
        3,
        4,
        5,
    ]
    assert [registry.digest(below) for below in range(6)] == [without.digest(below) for below in (0, 0, 1, 1, 2, 2)]
    assert registry.fingerprints(3) == {"t": first.fingerprint}
    assert registry.newest("t", below=3).definition is first
    assert registry.newest("t").definition is second


def test_registry_finds_by_offset_and_the_first_version_that_writes_a_schema() -> None:
    first, second = (
        parse({"type": "record", "name": "t", "fields": [{"name": "a", "type": "long", "refold.reducer": reducer}]})
        for reducer in ("max", "min")
    )
    registry = Registry()
    registry.skip()
    held = registry.add(first)
    registry.add(second)
    assert registry.at(0) is None
    assert registry.at(1) is held
    frame = b"\0" + held.codec.wire_id.to_bytes(4, "big")
    assert registry.writer(frame) is held
    assert registry.writer(b"\0\0\0\0\0") is None
