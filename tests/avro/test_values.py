"""Values at the door: what each Avro type takes, in which form it is kept, and how it refuses."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import hashlib
import math
import uuid
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.blob import Blob, Sealed, references
from refold.avro.canonical import JsonText, encode
from refold.avro.errors import ValidationError
from refold.avro.jsonform import formatter
from refold_tests.specimens import BLOBS, built, canonical, given_observations, only, said, specimen
from refold_tests.vector_inputs import BLOB, JSON, SEALED

BLOB_TYPE = ["null", "string", "refold.Blob", "refold.Sealed"]
COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
FOUR = {"type": "fixed", "name": "Four", "size": 4}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}
POINT = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "long"}, {"name": "y", "type": ["null", "long"]}],
}
DATE = {"type": "int", "logicalType": "date"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
CLOCK = {"type": "long", "logicalType": "time-micros"}
CLOCK_MS = {"type": "int", "logicalType": "time-millis"}
UUID = {"type": "string", "logicalType": "uuid"}


class Shade(str, enum.Enum):  # noqa: UP042 - a StrEnum's str() is its text; the older form's is not
    """A Python enum of text: its str() is `Shade.RED`."""

    RED = "RED"


class Level(enum.IntEnum):
    """A Python enum of integers."""

    LOW = 1


class Moment(dt.datetime):
    """A datetime of another class, as several libraries have."""


def at(year: int, month: int, day: int, *, second: int = 0, zone: dt.tzinfo | None = dt.UTC) -> dt.datetime:
    """A datetime."""
    return Moment(year, month, day, 0, 0, second, tzinfo=zone)


@pytest.mark.parametrize(
    ("schema", "value", "kept"),
    [
        ("boolean", True, True),
        ("int", -(2**31), -(2**31)),
        ("int", 7.0, 7),
        ("int", Level.LOW, 1),
        ("long", 2**63 - 1, 2**63 - 1),
        ("long", -0.0, 0),
        ("double", 1, 1),
        ("double", 1.0, 1),
        ("double", -0.0, 0),
        ("double", 0.1, 0.1),
        ("double", 2**63, 2**63),
        ("double", 2**53 + 1, 2**53),
        ("double", 1e300, 1e300),
        ("double", 5e-324, 5e-324),
        ("float", 0.1, 0.10000000149011612),
        ("float", 16777217, 16777216),
        ("float", 1e-46, 0),
        ("float", 3.4028234663852886e38, 3.4028234663852886e38),
        ("string", "", ""),
        ("string", Shade.RED, "RED"),
        ("bytes", b"", b""),
        ("bytes", bytearray(b"ab"), b"ab"),
        ("bytes", memoryview(b"ab"), b"ab"),
        (FOUR, memoryview(b"abcd"), b"abcd"),
        (COLOUR, "GREEN", "GREEN"),
        (COLOUR, Shade.RED, "RED"),
        (MONEY, "1.50", {"unscaled": 15, "scale": 1}),
        (MONEY, Decimal("1.5E+1"), {"unscaled": 15, "scale": 0}),
        (MONEY, 100, {"unscaled": 100, "scale": 0}),
        (MONEY, 0.1, {"unscaled": 1, "scale": 1}),
        (MONEY, -0.0, {"unscaled": 0, "scale": 0}),
        (MONEY, "-999.99", {"unscaled": -99999, "scale": 2}),
        (MONEY, "000999.9900", {"unscaled": 99999, "scale": 2}),
        (MONEY, {"unscaled": 150, "scale": 2}, {"unscaled": 15, "scale": 1}),
        (MONEY, {"unscaled": 1, "scale": -2}, {"unscaled": 100, "scale": 0}),
        (MICROS, 5, 5),
        (MICROS, "1970-01-01T00:00:00.000001Z", 1),
        (MICROS, "1970-01-01 01:00:00+01:00", 0),
        (MICROS, at(1970, 1, 1, second=1), 1_000_000),
        (MILLIS, "1969-12-31T23:59:59.999999Z", -1),
        (MILLIS, at(1970, 1, 1, second=1), 1000),
        (LOCAL, "1970-01-01T00:00:01", 1_000_000),
        (LOCAL, at(1970, 1, 2, zone=None), 86_400_000_000),
        (DATE, "1970-01-02", 1),
        (DATE, dt.date(1969, 12, 31), -1),
        (CLOCK, "00:00:01.5", 1_500_000),
        (CLOCK, dt.time(1), 3_600_000_000),
        (CLOCK_MS, "23:59:59.999999", 86_399_999),
        (UUID, "{00112233445566778899AABBCCDDEEFF}", "00112233-4455-6677-8899-aabbccddeeff"),
        (UUID, uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (JSON, {"b": 1.0, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (JSON, "text", '"text"'),
        (JSON, JsonText('{"a":[null]}'), '{"a":[null]}'),
        (JSON, (1, 2), "[1,2]"),
        ({"type": "array", "items": "long"}, (2, 1), [2, 1]),
        ({"type": "array", "items": "long"}, range(2), [0, 1]),
        ({"type": "array", "items": ["null", "long"]}, [None, 1], [None, 1]),
        ({"type": "array", "items": JSON}, [None, 1], ["null", "1"]),
        ({"type": "map", "values": ["null", "double"]}, {"b": None, "a": 2.0}, {"b": None, "a": 2}),
        (POINT, {"x": 1, "y": None}, {"x": 1}),
        (POINT, {"y": 2, "x": 1}, {"x": 1, "y": 2}),
        (BLOB_TYPE, BLOB, {"hash": BLOB.hash, "size": BLOB.size, "media_type": BLOB.media_type}),
        (BLOB_TYPE, SEALED, {"key_id": SEALED.key_id, "ciphertext": SEALED.ciphertext}),
    ],
)
def test_values_are_stored_in_one_form(schema: object, value: Any, kept: Any) -> None:
    found = canonical(schema, value)
    assert found == kept
    assert type(found) is type(kept)
    assert encode(found) == encode(kept)


@pytest.mark.parametrize(
    ("schema", "value", "rule"),
    [
        ("boolean", 1, "true or false (boolean)"),
        ("boolean", "true", "true or false (boolean)"),
        ("int", True, "an integer in [-2147483648, 2147483647] (int)"),
        ("int", "1", "an integer in [-2147483648, 2147483647] (int)"),
        ("int", 1.5, "an integer in [-2147483648, 2147483647] (int)"),
        ("int", 2**31, "an integer in [-2147483648, 2147483647] (int)"),
        ("int", Decimal(1), "an integer in [-2147483648, 2147483647] (int)"),
        ("long", 2**63, "an integer in [-9223372036854775808, 9223372036854775807] (long)"),
        ("long", 2.0**63, "an integer in [-9223372036854775808, 9223372036854775807] (long)"),
        ("long", math.nan, "an integer in [-9223372036854775808, 9223372036854775807] (long)"),
        ("long", math.inf, "an integer in [-9223372036854775808, 9223372036854775807] (long)"),
        ("double", math.nan, "NaN and infinity are not values"),
        ("double", -math.inf, "NaN and infinity are not values"),
        ("double", True, "a number (double)"),
        ("double", "1.5", "a number (double)"),
        ("double", 10**400, "a number within a double's range"),
        ("float", math.nan, "NaN and infinity are not values"),
        ("float", 3.5e38, "a number within a 32-bit float's range"),
        ("float", 2**200, "a number within a 32-bit float's range"),
        ("string", b"x", "a string"),
        ("string", 1, "a string"),
        ("string", "\ud800", "a string must be Unicode text without lone surrogates"),
        ("bytes", "x", "bytes"),
        ("bytes", [1], "bytes"),
        (FOUR, b"abc", "4 bytes (fixed)"),
        (FOUR, "abcd", "4 bytes (fixed)"),
        (COLOUR, "BLUE", "one of RED, GREEN"),
        (COLOUR, ["RED"], "one of RED, GREEN"),
        (COLOUR, 0, "one of RED, GREEN"),
        (MONEY, "1.234", "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, 1000, "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, Decimal("NaN"), "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, Decimal("sNaN"), "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, math.inf, "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, "x", "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, True, "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, Decimal("1E+999999"), "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, {"unscaled": 1.5, "scale": 0}, "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, {"unscaled": 1}, "a decimal of at most 5 digits, 2 of them after the point"),
        (MONEY, b"\1", "a decimal of at most 5 digits, 2 of them after the point"),
        (MICROS, "2026-11-21T03:12:00", "a time with its zone: end it with Z or +hh:mm"),
        (MICROS, "yesterday", "a time in RFC 3339 form to the microsecond, such as 2026-11-21T03:12:00.5Z"),
        (MICROS, at(2026, 1, 1, zone=None), "a datetime with a time zone"),
        (MICROS, 1.5, "a time: RFC 3339 text, a datetime or an integer (timestamp-micros)"),
        (MICROS, True, "a time: RFC 3339 text, a datetime or an integer (timestamp-micros)"),
        (MICROS, 2**62, "a time within the years 1 to 9999 (timestamp-micros)"),
        (MILLIS, 253_402_300_800_000, "a time within the years 1 to 9999 (timestamp-millis)"),
        (MICROS, "0001-01-01T00:00:00+14:00", "a time within the years 1 to 9999 (timestamp-micros)"),
        (LOCAL, at(2026, 1, 1), "a datetime without time zone"),
        (LOCAL, "2026-11-21T03:12:00Z", "a local time, without a zone"),
        (DATE, "2026-02-30", "a date: YYYY-MM-DD, a date or days since 1970"),
        (DATE, at(2026, 1, 1), "a date: YYYY-MM-DD, a date or days since 1970"),
        (DATE, 2**31 - 1, "a time within the years 1 to 9999 (date)"),
        (CLOCK, "24:00:01", "a time of day: HH:MM:SS[.ffffff], a time or an integer (time-micros)"),
        (CLOCK, dt.time(1, tzinfo=dt.UTC), "a time of day: HH:MM:SS[.ffffff], a time or an integer (time-micros)"),
        (CLOCK, 86_400_000_000, "a time of day, below 24 hours (time-micros)"),
        (CLOCK_MS, -1, "a time of day, below 24 hours (time-millis)"),
        (UUID, "x", "a UUID"),
        (UUID, 1, "a UUID"),
        (JSON, b"x", "a JSON value (null, boolean, number, string, list or object)"),
        (JSON, math.nan, "NaN and infinity are not values"),
        (JSON, 2**64 + 1, "an integer outside [-2^63, 2^64) has to equal a double; give it as text"),
        (JSON, {1: "x"}, "a JSON object's keys must be strings"),
        ({"type": "array", "items": "long"}, "12", "a list (array)"),
        ({"type": "array", "items": "long"}, b"12", "a list (array)"),
        ({"type": "array", "items": "long"}, {"a": 1}, "a list (array)"),
        ({"type": "array", "items": "long"}, memoryview(b"12"), "a list (array)"),
        ({"type": "map", "values": "long"}, [("a", 1)], "an object with text keys (map)"),
        ({"type": "map", "values": "long"}, {1: 1}, "a map's keys must be strings"),
        ({"type": "map", "values": "long"}, {"\ud800": 1}, "a string must be Unicode text without lone surrogates"),
        (POINT, [1], "an object (refold.types.Point)"),
        ("string", BLOB, "this field's type has no refold.Blob"),
        ("long", SEALED, "an integer in [-9223372036854775808, 9223372036854775807] (long)"),
        (["null", "string", "refold.Blob"], SEALED, "this field's type has no refold.Sealed"),
        (BLOB_TYPE, Blob(b"short", 1, ""), "a Blob has a 32-byte hash, a size and a media type"),
        (BLOB_TYPE, Blob(b"a" * 32, -1, ""), "a Blob has a 32-byte hash, a size and a media type"),
        (BLOB_TYPE, Blob(b"a" * 32, 2**63, ""), "a Blob has a 32-byte hash, a size and a media type"),
        (BLOB_TYPE, Blob("a" * 32, 1, ""), "a Blob has a 32-byte hash, a size and a media type"),  # type: ignore[arg-type]
        (BLOB_TYPE, Blob(b"a" * 32, 1.0, ""), "a Blob has a 32-byte hash, a size and a media type"),  # type: ignore[arg-type]
        (BLOB_TYPE, Blob(b"a" * 32, 1, None), "a Blob has a 32-byte hash, a size and a media type"),  # type: ignore[arg-type]
        (BLOB_TYPE, Sealed("k", "text"), "a Sealed has the text of a key id, and ciphertext bytes"),  # type: ignore[arg-type]
        (BLOB_TYPE, Sealed(None, b""), "a Sealed has the text of a key id, and ciphertext bytes"),  # type: ignore[arg-type]
        (BLOB_TYPE, {"hash": BLOB.hash, "size": 1, "media_type": ""}, "a string"),
    ],
)
def test_refusal_names_field_rule_and_value(schema: object, value: Any, rule: str) -> None:
    with pytest.raises(ValidationError) as caught:
        canonical(schema, value)
    error = caught.value
    assert error.field == "patch.a"
    assert error.rule == rule
    assert str(error).startswith(f"patch.a: {rule}; given ")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("schema", "value", "place"),
    [
        ({"type": "array", "items": "long"}, [1, "2"], "patch.a[1]"),
        ({"type": "map", "values": "long"}, {"k": "2"}, "patch.a.k"),
        (POINT, {"x": 1, "y": "2"}, "patch.a.y"),
        (POINT, {"y": 1}, "patch.a.x"),
        (POINT, {"x": 1, "z": 1}, "patch.a.z"),
        ({"type": "array", "items": POINT}, [{"x": 1}, {"x": None}], "patch.a[1].x"),
        (JSON, {"rows": [1, {"n": math.nan}]}, "patch.a.rows[1].n"),
        ({"type": "map", "values": ["null", "string", "refold.Blob"]}, {"k": SEALED}, "patch.a.k"),
    ],
)
def test_refusal_names_the_inner_path(schema: object, value: Any, place: str) -> None:
    with pytest.raises(ValidationError) as caught:
        canonical(schema, value)
    assert caught.value.field == place


@pytest.mark.parametrize("schema", ["int", "double", "float", "string", MONEY, MICROS, JSON])
def test_unprintable_value_is_refused(schema: object) -> None:
    with pytest.raises(ValidationError, match="cannot be shown"):
        canonical(schema, -(10**5000))


def test_refusal_is_one_short_line_for_any_value() -> None:
    for value in ("x" * 10_000, ["y\n" * 5_000], {"k": "\x1b[31m"}, "\u202egnp.exe"):
        with pytest.raises(ValidationError) as caught:
            canonical("long", value)
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 300
    with pytest.raises(ValidationError) as caught:
        canonical({"type": "map", "values": "long"}, {"line\nbreak" * 1000: "x"})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_set_has_one_order() -> None:
    """Python shows a set of texts in another order in each process, and a retried call has to make the same id."""
    schema = {"type": "array", "items": "string"}
    words = {"beta", "a", "b", "alpha", "\u00e9", "zz"}
    kept = ["a", "b", "zz", "\u00e9", "beta", "alpha"]
    assert canonical(schema, words) == canonical(schema, frozenset(words)) == kept
    assert canonical(schema, ["b", "a"]) == ["b", "a"]


def test_decimals_do_not_depend_on_the_callers_context() -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 18, "scale": 6}
    with decimal.localcontext() as context:
        context.prec = 3
        assert canonical(schema, "123456789012.345678") == {"unscaled": 123456789012345678, "scale": 6}
        given_apart = {"unscaled": 123456789012345678, "scale": 6}
        assert canonical(schema, given_apart) == given_apart


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6) | st.decimals())
def test_decimal_is_stored_exactly_or_refused(value: Decimal) -> None:
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}
    if value.is_finite() and abs(value) < 10**8 and (value * 10**4) % 1 == 0:
        found = canonical(schema, value)
        assert Decimal(found["unscaled"]).scaleb(-found["scale"]) == value
        assert 0 <= found["scale"] <= 4
        assert found["scale"] == 0 or found["unscaled"] % 10
        assert canonical(schema, str(value)) == canonical(schema, found) == found
    else:
        with pytest.raises(ValidationError):
            canonical(schema, value)


RENAMED = {
    "type": "record",
    "name": "Point",
    "fields": [
        {"name": "x", "type": "long", "refold.name": "left", "aliases": ["left"]},
        {"name": "y", "type": ["null", "long"]},
    ],
}


def test_nested_field_is_accepted_under_either_name_and_stored_by_the_first() -> None:
    assert canonical(RENAMED, {"x": 1}) == canonical(RENAMED, {"left": 1}) == {"left": 1}
    with pytest.raises(ValidationError, match=r"patch\.a\.x: left is given twice"):
        canonical(RENAMED, {"x": 1, "left": 1})
    with pytest.raises(ValidationError, match=r"patch\.a\.x: a value: this field cannot be null"):
        canonical(RENAMED, {"left": None})


LIMITED = {"refold.inline": 20}


def claimed(schema: object, value: Any, **attributes: Any) -> tuple[Any, dict[bytes, bytes]]:
    """The canonical value, and the contents put aside for it."""
    blobs: dict[bytes, bytes] = {}
    return said(only(schema, **attributes), value, blobs).patch["a"], blobs


@pytest.mark.parametrize(
    ("schema", "fits", "over", "content", "media_type"),
    [
        (BLOB_TYPE, "x" * 19, "x" * 20, b"x" * 20, "text/plain"),
        (BLOB_TYPE, "é" * 9, "é" * 10, "é".encode() * 10, "text/plain"),
        (["null", "bytes", "refold.Blob"], b"x" * 19, b"x" * 20, b"x" * 20, "application/octet-stream"),
        (["null", JSON, "refold.Blob"], ["x" * 15], ["x" * 16], b'["' + b"x" * 16 + b'"]', "application/json"),
        (
            ["null", {"type": "array", "items": "long"}, "refold.Blob"],
            list(range(19)),
            list(range(20)),
            encode(list(range(20))),
            "application/cbor",
        ),
        (
            ["null", {"type": "map", "values": "string"}, "refold.Blob"],
            {"k": "x" * 16},
            {"k": "x" * 17},
            encode({"k": "x" * 17}),
            "application/cbor",
        ),
    ],
)
def test_value_over_its_limit_becomes_a_blob(
    schema: object, fits: Any, over: Any, content: bytes, media_type: str
) -> None:
    """The limit is on the canonical CBOR, and the Blob is named by what it holds."""
    kept, blobs = claimed(schema, fits, **LIMITED)
    assert blobs == {}
    assert len(encode(kept)) == 20 or isinstance(fits, str)
    digest = hashlib.sha256(content).digest()
    kept, blobs = claimed(schema, over, **LIMITED)
    assert kept == {"hash": digest, "size": len(content), "media_type": media_type}
    assert blobs == {digest: content}


def test_elements_are_measured_individually() -> None:
    options = ["string", "refold.Blob"]
    kept, blobs = claimed({"type": "array", "items": options}, ["x" * 19, "x" * 20], **LIMITED)
    assert [type(each) for each in kept] == [str, dict]
    assert list(blobs.values()) == [b"x" * 20]
    kept, blobs = claimed({"type": "map", "values": ["null", *options]}, {"a": "x" * 20, "b": None}, **LIMITED)
    assert kept["b"] is None
    assert list(blobs.values()) == [b"x" * 20]


STEP = {
    "type": "record",
    "name": "Step",
    "fields": [
        {"name": "tool", "type": "string"},
        {"name": "note", "type": ["null", "string", "refold.Blob"]},
    ],
}


def test_inner_values_are_measured_before_their_container() -> None:
    whole = ["null", {"type": "array", "items": STEP}, "refold.Blob"]
    inner = {"hash": hashlib.sha256(b"n" * 100).digest(), "size": 100, "media_type": "text/plain"}
    kept, blobs = claimed(whole, [{"tool": "t", "note": "n" * 100}], **{"refold.inline": 90})
    assert kept == [{"tool": "t", "note": inner}]
    assert list(blobs.values()) == [b"n" * 100]
    kept, blobs = claimed(whole, [{"tool": "t" * 20, "note": "n" * 100}], **{"refold.inline": 90})
    content = encode([{"tool": "t" * 20, "note": inner}])
    assert kept["hash"] == hashlib.sha256(content).digest()
    assert set(blobs.values()) == {b"n" * 100, content}


def test_references_are_found_inside_blobs_too() -> None:
    """Whoever copies or checks a value's contents has to come to the inner ones."""
    whole = ["null", {"type": "array", "items": STEP}, "refold.Blob"]
    kept, blobs = claimed(whole, [{"tool": f"t{number}" * 20, "note": "n" * 100} for number in range(3)], **LIMITED)
    assert {each.hash for each in references([kept], blobs.get)} == set(blobs)
    assert len([*references([kept, [kept]], blobs.get)]) == len(blobs) == 2
    outer = [*references([kept], lambda digest: None)]
    assert [each.media_type for each in outer] == ["application/cbor"]
    for content in (b"", b"\xff", b"\xd8\x1c\x81\xd8\x1d\x00", b"\x82" * 5000, bytes(8)):
        given_by_hand = Blob(b"h" * 32, 1, "application/cbor").tree("")
        assert len([*references([given_by_hand], {b"h" * 32: content}.get)]) == 1


def test_part_that_cannot_be_a_blob_is_stored_with_the_whole() -> None:
    kept, blobs = claimed(["null", STEP, "refold.Blob"], {"tool": "t" * 100}, **LIMITED)
    assert list(blobs.values()) == [encode({"tool": "t" * 100})]
    assert kept["media_type"] == "application/cbor"
    with pytest.raises(ValidationError) as caught:
        claimed(STEP, {"tool": "t" * 100}, **LIMITED)
    assert str(caught.value) == "patch.a.tool: at most 20 bytes; the type has no refold.Blob; given (102 bytes)"


def test_large_value_without_a_store_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match=r"patch\.a: over 20 bytes needs a blob store; given \(21 bytes\)"):
        said(only(BLOB_TYPE, **LIMITED), "x" * 20, None)


@given(given_observations())
def test_canonical_form_is_idempotent(given_parts: dict[str, Any]) -> None:
    """What was canonical stays so: giving it again makes the same observation."""
    observation = built(given_parts)
    if observation.kind != "assert":
        return
    fields = specimen().by_first_name
    patch = {name: formatter(fields[name].node, python=True)(value) for name, value in observation.patch.items()}
    assert built({**given_parts, "patch": patch}) == observation


@given(BLOBS)
def test_explicit_blob_is_kept(blob: Blob) -> None:
    assert canonical(BLOB_TYPE, blob) == {"hash": blob.hash, "size": blob.size, "media_type": blob.media_type}


def endless() -> Iterable[int]:
    """What no list is."""
    yield 1


def test_generator_is_not_a_list() -> None:
    with pytest.raises(ValidationError, match="a list"):
        canonical({"type": "array", "items": "long"}, endless())
