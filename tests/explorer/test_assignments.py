"""FIELD=VALUE is parsed by the field's type, and shown again in readable form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from refold.avro.definition import parse
from refold.avro.envelope import ObservationValidator
from refold.avro.errors import InputError
from refold.avro.jsonform import formatter
from refold.avro.observation import Source
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.record.observe import patch_of

JSON = {"type": "string", "logicalType": "refold-json"}
INNER = {"type": "record", "name": "Inner", "fields": [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "text", "type": ["null", "string"]},
]}  # fmt: skip
TYPES: dict[str, Any] = {
    "text": "string",
    "whole": "int",
    "large": "long",
    "real": "double",
    "flag": "boolean",
    "raw": "bytes",
    "four": {"type": "fixed", "name": "Four", "size": 4},
    "colour": {"type": "enum", "name": "Colour", "symbols": ["red", "green"]},
    "any": ["null", JSON, "refold.Blob", "refold.Sealed"],
    "at": {"type": "long", "logicalType": "timestamp-micros"},
    "at_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "local": {"type": "long", "logicalType": "local-timestamp-micros"},
    "day": {"type": "int", "logicalType": "date"},
    "clock": {"type": "int", "logicalType": "time-millis"},
    "price": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "key": {"type": "string", "logicalType": "uuid"},
    "inner": INNER,
}
REDUCED: dict[str, Any] = {
    "tags": ({"type": "array", "items": "string"}, {"refold.reducer": "union"}),
    "events": ({"type": "array", "items": "Inner"}, {"refold.reducer": "append", "refold.limit": 3}),
    "settings": ({"type": "map", "values": ["null", JSON]}, {"refold.reducer": "map"}),
    "names": ({"type": "map", "values": ["null", "string"]}, {"refold.reducer": "map"}),
    "limits": ({"type": "map", "values": ["null", "long"]}, {"refold.reducer": "map"}),
}
DEFINITION = parse(
    {
        "type": "record",
        "name": "sample",
        "fields": [
            *({"name": name, "type": node, "refold.reducer": "latest"} for name, node in TYPES.items()),
            *({"name": name, "type": node, **more} for name, (node, more) in REDUCED.items()),
        ],
    }
)
DOOR = ObservationValidator(DEFINITION)


def canonical(*assignments: str) -> Any:
    patch = patch_of(DEFINITION, assignments)
    return DOOR.build("sample/1", patch, observed_at=0, now=0, source=Source(), blobs={}).patch


@pytest.mark.parametrize(
    ("assignment", "value", "shown"),
    [
        ("text=", "", ""),
        ("text=50", "50", "50"),
        ("text=a=b", "a=b", "a=b"),
        ("text=@@a", "@a", "@a"),
        ("text=line\nline\x1b[31m", "line\nline\x1b[31m", "line\\nline\\x1b[31m"),
        ("whole=-7", -7, "-7"),
        ("whole=5.0", 5, "5"),
        ("large=9223372036854775807", 2**63 - 1, "9223372036854775807"),
        ("real=0.5", 0.5, "0.5"),
        ("real=3", 3, "3"),
        ("flag=true", True, "true"),
        ("flag=false", False, "false"),
        ("raw=AP8=", b"\0\xff", "AP8="),
        ("four=00ff00ff", b"\0\xff\0\xff", "00ff00ff"),
        ("colour=red", "red", "red"),
        ('any="50"', '"50"', '"50"'),
        ("any=50", "50", "50"),
        ('any={"b":1,"a":[null]}', '{"a":[null],"b":1}', '{"a": [null], "b": 1}'),
        ("at=2026-11-21T03:12:00.5Z", 1795230720500000, "2026-11-21T03:12:00.5Z"),
        ("at=1795230720500000", 1795230720500000, "2026-11-21T03:12:00.5Z"),
        ("at_ms=2026-11-21T03:12:00Z", 1795230720000, "2026-11-21T03:12:00Z"),
        ("local=2026-11-21T03:12:00", 1795230720000000, "2026-11-21T03:12:00"),
        ("day=2026-11-21", 20778, "2026-11-21"),
        ("clock=03:12:00", 11520000, "03:12:00"),
        ("price=12.50", {"unscaled": 125, "scale": 1}, "12.5"),
        ("key=00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001",
         "00000000-0000-0000-0000-000000000001"),
        ('inner={"at":0,"text":"x"}', {"at": 0, "text": "x"}, '{"at": "1970-01-01T00:00:00Z", "text": "x"}'),
        ('tags=["b","a"]', ["b", "a"], '["b", "a"]'),
        ('events=[{"at":1000000}]', [{"at": 1000000}], '[{"at": "1970-01-01T00:00:01Z"}]'),
        ('settings={"a":1,"b":null}', {"a": "1", "b": None}, '{"a": 1, "b": null}'),
        ("limits.a=5", {"a": 5}, '{"a": 5}'),
        ("limits.a=null", {"a": None}, '{"a": null}'),
        ("names.a=null", {"a": "null"}, '{"a": "null"}'),
        ("names.a.b=c", {"a.b": "c"}, '{"a.b": "c"}'),
    ],
)  # fmt: skip
def test_value_is_parsed_and_shown(assignment: str, value: Any, shown: str) -> None:
    name = assignment.partition("=")[0].partition(".")[0]
    patch = canonical(assignment)
    assert patch == {name: value}
    json_form = formatter(DEFINITION.fields[name].node)(value)
    assert ValueFormatter({"sample": DEFINITION}).field("sample/1", name, json_form) == shown


def test_entries_of_one_map_are_merged() -> None:
    assert canonical("settings.a=1", "settings.b=[2]", "limits.a=3") == {
        "settings": {"a": "1", "b": "[2]"},
        "limits": {"a": 3},
    }


def test_value_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("long\n", encoding="utf-8")
    (tmp_path / "json").write_text('{"a": 1}', encoding="utf-8")
    assert canonical(f"text=@{tmp_path / 'text'}", f"any=@{tmp_path / 'json'}") == {"text": "long\n", "any": '{"a":1}'}


def test_blob_reference_is_accepted() -> None:
    given = '{"$blob": {"hash": "' + "0" * 64 + '", "size": 5, "media_type": "application/json"}}'
    [(name, value)] = canonical(f"any={given}").items()
    assert (name, value["size"]) == ("any", 5)
    shown = ValueFormatter({"sample": DEFINITION}).field(
        "sample/1", "any", formatter(DEFINITION.fields["any"].node)(value)
    )
    assert shown == f"[blob {'0' * 64}, 5 bytes, application/json]"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("any=fast", "double quotes"),
        ("settings.a=fast", "double quotes"),
        ("inner=x", "JSON"),
        ("tags=a", r'\["a", "b"\]'),
        ("text.a=b", "not a map"),
        ("raw=?", "base64"),
        ("four=0", "hexadecimal"),
        ("whole=1_000", "an integer"),
        ("whole=\u0665", "an integer"),
        ("at=noon", "a time"),
        ("day=monday", "a date"),
        ("price=cheap", "a decimal"),
        ("key=1", "a UUID"),
    ],
)
def test_value_of_another_type_is_refused(assignment: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        canonical(assignment)


def test_duplicate_entry_is_refused() -> None:
    for given in (("names.a=1", "names.a=2"), ("names={}", "names.a=1"), ("names.a=1", "names={}")):
        with pytest.raises(InputError, match="given twice"):
            canonical(*given)
