"""The inputs of the published vectors: a type with every kind of field, and observations that exercise every rule.

A case states its purpose. `same_as` names a case with the same id: two ways to give the same thing.
"""

from __future__ import annotations

import hashlib
from decimal import Decimal
from typing import Any

from refold.avro.blob import Blob, Sealed

Case = dict[str, Any]

JSON = {"type": "string", "logicalType": "refold-json"}
OPTIONS = ["refold.Blob", "refold.Sealed"]

SPECIMEN: dict[str, Any] = {
    "type": "record",
    "namespace": "refold.types",
    "name": "specimen",
    "doc": "A field of every Avro type, for vectors and tests.",
    "fields": [
        {"name": "flag", "type": "boolean", "refold.reducer": "latest"},
        {"name": "small", "type": "int", "refold.reducer": "max"},
        {"name": "whole", "type": "long", "refold.reducer": "sum"},
        {"name": "single", "type": "float", "refold.reducer": "min"},
        {"name": "number", "type": "double", "refold.reducer": "latest"},
        {"name": "text", "type": ["null", "string", *OPTIONS], "refold.reducer": "latest", "refold.inline": 64},
        {"name": "raw", "type": ["null", "bytes", *OPTIONS], "refold.reducer": "latest"},
        {
            "name": "digest",
            "type": {"type": "fixed", "name": "Digest", "size": 4},
            "refold.reducer": "first",
        },
        {
            "name": "colour",
            "type": {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN", "BLUE"]},
            "refold.reducer": "latest",
        },
        {
            "name": "money",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            "refold.reducer": "latest",
        },
        {"name": "moment", "type": {"type": "long", "logicalType": "timestamp-micros"}, "refold.reducer": "max"},
        {"name": "millis", "type": {"type": "long", "logicalType": "timestamp-millis"}, "refold.reducer": "latest"},
        {
            "name": "local",
            "type": {"type": "long", "logicalType": "local-timestamp-micros"},
            "refold.reducer": "latest",
        },
        {"name": "day", "type": {"type": "int", "logicalType": "date"}, "refold.reducer": "min"},
        {"name": "clock", "type": {"type": "long", "logicalType": "time-micros"}, "refold.reducer": "latest"},
        {"name": "clock_ms", "type": {"type": "int", "logicalType": "time-millis"}, "refold.reducer": "latest"},
        {"name": "token", "type": {"type": "string", "logicalType": "uuid"}, "refold.reducer": "latest"},
        {"name": "json", "type": ["null", JSON, *OPTIONS], "refold.reducer": "latest"},
        {
            "name": "point",
            "type": {
                "type": "record",
                "name": "Point",
                "fields": [
                    {"name": "x", "type": "double"},
                    {"name": "y", "type": ["null", "double"], "default": None},
                    {
                        "name": "label",
                        "type": ["null", "string"],
                        "default": None,
                        "aliases": ["caption"],
                        "refold.name": "caption",
                    },
                    {
                        "name": "inner",
                        "type": [
                            "null",
                            {
                                "type": "record",
                                "name": "Inner",
                                "fields": [
                                    {"name": "a", "type": ["null", "long"], "default": None},
                                    {"name": "b", "type": ["null", "string"], "default": None},
                                ],
                            },
                            *OPTIONS,
                        ],
                        "default": None,
                    },
                ],
            },
            "refold.reducer": "latest",
        },
        {"name": "list", "type": {"type": "array", "items": "long"}, "refold.reducer": "latest"},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "refold.reducer": "union"},
        {
            "name": "log",
            "type": {"type": "array", "items": ["string", *OPTIONS]},
            "refold.reducer": "append",
            "refold.limit": 3,
        },
        {"name": "labels", "type": {"type": "map", "values": ["null", "string"]}, "refold.reducer": "map"},
        {
            "name": "facts",
            "type": {"type": "map", "values": ["null", JSON, *OPTIONS]},
            "refold.reducer": "map",
            "refold.inline": 64,
        },
        {
            "name": "settings",
            "type": ["null", {"type": "map", "values": "string"}, *OPTIONS],
            "refold.reducer": "latest",
            "refold.inline": 64,
        },
        {"name": "hits", "type": "string", "refold.reducer": "count"},
        {
            "name": "title",
            "type": "string",
            "aliases": ["heading"],
            "refold.reducer": "latest",
            "refold.name": "heading",
        },
    ],
}  # fmt: skip

ID_A, ID_B = (hashlib.sha256(letter).digest() for letter in (b"a", b"b"))
BLOB = Blob(ID_A, 300_000, "text/plain")
SEALED = Sealed("key-1", bytes(range(20)))
FLAG = {"flag": True}
BEGIN = 1_700_000_000_000_000


def case(name: str, patch: dict[str, Any] | None = None, *, why: str, same_as: str = "", **envelope: Any) -> Case:
    """Return one observation of specimen/1. It is observed at 0 by default."""
    given = {"entity": "specimen/1", "observed_at": 0, **envelope}
    if patch is not None:
        given["patch"] = patch
    return {"name": name, "why": why, "same_as": same_as, "given": given}


def field(name: str, value: Any, why: str, *, number: str = "", same_as: str = "") -> Case:
    """Return a case of one field's value."""
    return case(f"{name}{' ' if number else ''}{number}", {name: value}, why=why, same_as=same_as)


ENVELOPE = [
    case("least", FLAG, why="entity, type and kind are always there; observed_at 0 is a default and is left out"),
    case("observed_at", FLAG, observed_at=BEGIN, why="microseconds"),
    case("observed_at before 1970", FLAG, observed_at=-1, why="a negative integer"),
    case("observed_at year 9999", FLAG, observed_at=253_402_300_799_999_999, why="past 2^53"),
    case("priority", FLAG, priority=7, why="p"),
    case("priority below zero", FLAG, priority=-(2**31), why="the least priority"),
    case("priority zero", FLAG, priority=0, same_as="least", why="a default is absent"),
    case("source agent", FLAG, source={"agent": "planner"}, why="only what is not empty stands in s"),
    case("source run", FLAG, source={"run": "r-1"}, why="s.run"),
    case("source step", FLAG, source={"step": "s-1"}, why="s.step"),
    case("source tool", FLAG, source={"tool": "search"}, why="s.tool"),
    case("source seq", FLAG, source={"seq": 3}, why="s.seq"),
    case("source seq greatest", FLAG, source={"seq": 2**63 - 1}, why="past 2^53"),
    case(
        "source whole",
        FLAG,
        source={"agent": "planner", "run": "r-1", "step": "s-1", "tool": "search", "seq": 3},
        why="keys of equal length in the order of their bytes, shorter ones first",
    ),
    case(
        "source of defaults",
        FLAG,
        source={"agent": "", "run": "", "step": "", "tool": "", "seq": 0},
        same_as="least",
        why="defaults are dropped in s, and an empty s with them",
    ),
    case("causes", FLAG, causes=[ID_A, ID_B], why="c, sorted by bytes"),
    case(
        "causes in another order",
        FLAG,
        causes=[ID_B, ID_A, ID_B],
        same_as="causes",
        why="a set: sorted, without repeats",
    ),
    case("cleared", None, cleared=["whole", "flag"], why="x, sorted by bytes, and no f"),
    case("cleared by a later name", None, cleared=["title"], why="a renamed field keeps its first name, heading"),
    case("retracts", None, retracts=[ID_B, ID_A, ID_A], why="r, sorted, without repeats: a pure retraction"),
    case("correction", FLAG, retracts=[ID_A], causes=[ID_A], why="an assert may carry retracts"),
    case("subject", FLAG, subject="subject-9", why="u"),
    case(
        "link",
        None,
        kind="link",
        link={"relation": "uses", "target": "tool_config/acme"},
        why="absent validity is absent",
    ),
    case(
        "link valid from 0",
        None,
        kind="link",
        link={"relation": "uses", "target": "tool_config/acme", "valid_from": 0, "valid_to": BEGIN},
        why="0 is a time: defaults are dropped at the top and in s, not in l",
    ),
    case(
        "unlink",
        None,
        kind="unlink",
        link={"relation": "uses", "target": "tool_config/acme"},
        why="kind is never dropped",
    ),
    case("entity with slashes", FLAG, entity="specimen/a/b c", why="t is what stands before the first slash"),
    case("entity beyond ASCII", FLAG, entity="specimen/caf\u00e9 \U0001f680", why="UTF-8, astral characters too"),
    case(
        "entity not normalised",
        FLAG,
        entity="specimen/cafe\u0301",
        why="Unicode normalisation would make two of these one",
    ),
    case(
        "everything",
        {"flag": False, "whole": 1, "text": "x"},
        observed_at=BEGIN,
        priority=1,
        source={"agent": "planner", "run": "r-1", "step": "s-1", "tool": "search", "seq": 3},
        causes=[ID_A],
        cleared=["number"],
        retracts=[ID_B],
        subject="subject-9",
        why="every key of an assert, in the order of their bytes",
    ),
]

WIDTHS = (0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**63 - 1)
INTEGERS = [
    *(field("whole", value, "an integer at the edge of a CBOR width", number=str(value)) for value in WIDTHS),
    *(
        field("whole", -1 - value, "a negative integer at the edge of a CBOR width", number=str(-1 - value))
        for value in WIDTHS
    ),
    field(
        "whole", 5.0, "a float with an integral value, where an integer is asked for", number="5.0", same_as="whole 5"
    ),
    field("whole", 5, "and that integer", number="5"),
    field("small", -(2**31), "the least int"),
]

FLOATS = [
    field("number", 1, "an integer in a double", number="1"),
    field("number", 1.0, "integral, so an integer", number="1.0", same_as="number 1"),
    field("number", 0.0, "f drops no defaults", number="0.0"),
    field("number", -0.0, "-0.0 is 0", number="-0.0", same_as="number 0.0"),
    field("number", 0.5, "a half float", number="0.5"),
    field("number", -1.5, "a negative half float", number="-1.5"),
    field("number", 0.1, "needs all of a double", number="0.1"),
    field("number", 65504.0, "the greatest half float, but integral", number="65504.0"),
    field("number", 1023.5, "a half float with every bit of its mantissa", number="1023.5"),
    field("number", 2049.5, "one bit too many for a half float", number="2049.5"),
    field("number", 16777216.5, "one bit too many for a single float", number="16777216.5"),
    field("number", 2.0**-24, "the least subnormal half float", number="2^-24"),
    field("number", 2.0**-25, "too small for a half float", number="2^-25"),
    field("number", 1023 * 2.0**-24, "the greatest subnormal half float", number="1023*2^-24"),
    field("number", 2.0**-149, "the least subnormal single float", number="2^-149"),
    field("number", 2.0**-150, "too small for a single float", number="2^-150"),
    field("number", 5e-324, "the least subnormal double", number="5e-324"),
    field("number", 2.0**63, "integral and below 2^64: an integer past any long", number="2^63"),
    field("number", 2.0**64 - 2048, "the greatest double below 2^64: an integer", number="2^64-2048"),
    field("number", 2.0**64, "2^64 is a float, and a single one", number="2^64"),
    field("number", 2**64, "the same, given as an integer", number="2^64 as an integer", same_as="number 2^64"),
    field("number", -(2.0**63), "the least integer", number="-2^63"),
    field("number", -(2.0**63) - 2048, "below -2^63: a float", number="-2^63-2048"),
    field("number", 1e300, "a great double", number="1e300"),
    field("number", 3.4028234663852886e38, "the greatest single float", number="greatest single"),
    field("number", 3.402823466385289e38, "just above it", number="above the greatest single"),
    field("number", 2**53 + 1, "an integer in a double is rounded to one", number="2^53+1"),
    field("number", 2**53, "what it is rounded to", number="2^53", same_as="number 2^53+1"),
    field("single", 0.1, "a float is rounded to 32 bits first", number="0.1"),
    field("single", 0.10000000149011612, "the very float", number="0.1 rounded", same_as="single 0.1"),
    field("single", 16777217, "an integer in a float is rounded to 32 bits too", number="16777217"),
    field("single", 1e-46, "rounded to zero", number="1e-46"),
]

STRINGS = [
    field("text", "", "the empty text is a value", number="empty"),
    field("text", "caf\u00e9 \u4f60\u597d \U0001f680", "two, three and four bytes of UTF-8", number="beyond ASCII"),
    field("text", "e\u0301", "not normalised", number="decomposed"),
    field("text", "\u0000\u0001\u007f\u2028", "control characters are text in a value", number="controls"),
    field("text", "x" * 24, "a length of 24 takes a second byte", number="24 bytes"),
    field("raw", b"", "the empty bytes are a value", number="empty"),
    field("raw", bytes(range(256)), "a length of 256 takes a third byte", number="256 bytes"),
    field("digest", b"\0\1\xfe\xff", "fixed is bytes"),
    field("colour", "GREEN", "an enum is its symbol"),
    field("token", "00112233-4455-6677-8899-AABBCCDDEEFF", "a uuid is text, in lower case"),
]

LOGICAL = [
    field("money", Decimal("12.50"), "trailing zeros are dropped: 125 and scale 1", number="12.50"),
    field("money", Decimal("12.5"), "the same number", number="12.5", same_as="money 12.50"),
    field("money", Decimal("1.25E+1"), "the same number", number="1.25E+1", same_as="money 12.50"),
    field("money", Decimal("1200"), "no scale below zero: 1200 and scale 0", number="1200"),
    field("money", Decimal("-0.01"), "-1 and scale 2", number="-0.01"),
    field("money", Decimal("0.00"), "zero has scale 0", number="0.00"),
    field("money", Decimal("-9999999.99"), "every digit the type has", number="-9999999.99"),
    field("moment", BEGIN, "a timestamp is its integer"),
    field("day", -719_162, "a date is days since 1970; this is the first of the year 1"),
    field("clock", 86_399_999_999, "a time of day is its integer"),
]

NESTED = [
    field("point", {"x": 1.5, "y": None}, "a null field of a nested record is absent", number="with null"),
    field("point", {"x": 1.5}, "so these are one", number="without", same_as="point with null"),
    field(
        "point",
        {"x": 0, "label": "p", "inner": {}},
        "an empty nested record is there; label was first called caption",
        number="empty inner",
    ),
    field("point", {"x": -0.0, "inner": {"b": "", "a": 2**40}}, "defaults stay, keys sort", number="inner"),
    field("point", {"x": 1, "inner": SEALED}, "a sealed record", number="sealed inner"),
    field("list", [], "an empty list", number="empty"),
    field("list", [3, 1, 2, 1], "a list keeps its order and repeats", number="of four"),
    field("tags", ["b", "a", "b"], "what union is given is a list too", number="as given"),
    field("log", ["one", BLOB, SEALED], "Blob and Sealed stand for single elements"),
    field("labels", {"b": "1", "aa": "2", "a": None, "": "3"}, "a null map value stays; keys by length, then bytes"),
    field(
        "labels",
        {"\u00e9": "2 bytes", "zz": "2 bytes", "\uffff": "3 bytes", "\U00010000": "4 bytes", "x" * 24: "longer head"},
        "keys by the length of their UTF-8, then its bytes",
        number="beyond ASCII",
    ),
    field(
        "labels",
        {"__proto__": "x", "constructor": "y"},
        "keys that some languages treat in their own way",
        number="odd keys",
    ),
    field(
        "settings", {"key_id": "k", "ciphertext": "c"}, "a map that looks like a Sealed is a map", number="like Sealed"
    ),
    field("settings", SEALED, "and this is a Sealed", number="sealed"),
    field("title", "T", "a renamed field keeps its first name, heading"),
    case("title by its first name", {"heading": "T"}, same_as="title", why="either name may be given"),
]

JSONS = [
    field(
        "json",
        {"b": [1, 2.0, 0.5], "a": {"\u00e9": None, "z": True}},
        "canonical JSON: keys sorted, no space",
        number="object",
    ),
    field(
        "json",
        {"a": {"z": True, "\u00e9": None}, "b": [1.0, 2, 5e-1]},
        "the same value",
        number="object in another order",
        same_as="json object",
    ),
    field("json", '"\\\b\f\n\r\t\u0001\u007f/\u2028\U0001f680', "escapes: only what JSON asks for", number="text"),
    field(
        "json",
        [1e21, 1e-7, 123456789012345680000.0, -0.0, 2**63, 2**64 - 1, 2.0**64],
        "numbers as ECMAScript writes them",
        number="numbers",
    ),
    field("json", BLOB, "a Blob in place of a large value", number="blob"),
    field("json", SEALED, "a sealed value", number="sealed"),
    field("facts", {"a": {"x": 1}, "b": None, "c": BLOB, "d": "null"}, "null removes a key; the text null does not"),
]

LARGE = [
    field("text", "x" * 62, "64 bytes of CBOR, the field's limit", number="at its limit"),
    field("text", "x" * 63, "65 bytes: a Blob of its UTF-8", number="over its limit"),
    field(
        "text",
        Blob(hashlib.sha256(b"x" * 63).digest(), 63, "text/plain"),
        "the Blob it becomes",
        number="as that Blob",
        same_as="text over its limit",
    ),
    field("settings", {"key": "v" * 58}, "65 bytes: a Blob of its canonical CBOR", number="over its limit"),
    field(
        "facts",
        {"a": ["x" * 60], "b": ["x" * 57]},
        "each element by itself: 66 bytes, a Blob of its canonical JSON, and 63",
        number="over their limit",
    ),
]

CASES: list[Case] = [*ENVELOPE, *INTEGERS, *FLOATS, *STRINGS, *LOGICAL, *NESTED, *JSONS, *LARGE]
