"""Validation of values: checks an author's values against the schema and makes them canonical.

A checker is built once for a node. `check(value, path, blobs)` returns the canonical value, or raises a ValidationError
that names the path, the rule and the given value. Canonical form: numbers under the number rules (float rounded to 32
bits first), enums as text, fixed as bytes, decimals {unscaled, scale} reduced, timestamps as integers, refold-json as
its canonical text, absent record fields left out.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from refold.avro.blob import Blob, Blobs, Sealed, claim
from refold.avro.canonical import JsonText, encode, json_text, number, text
from refold.avro.errors import ValidationError
from refold.avro.logical import logical_checker
from refold.avro.nodes import JSON, Node, allows, value_of
from refold.avro.observation import Value

Check: TypeAlias = Callable[[Any, str, "Blobs | None"], Value]

RANGES = {"int": (-(2**31), 2**31), "long": (-(2**63), 2**63)}


def checker(node: Node, inline_bytes: int, enclosed: bool = False) -> Check:
    """Return the checker of a node.

    Args:
        node: The node of the value's type.
        inline_bytes: The maximum size of a value's canonical CBOR; a larger one becomes a Blob.
        enclosed: An enclosing value can become a Blob, and does if this part alone is too large.
    """
    value = value_of(node)
    can_be_null = allows(node, "null")
    blob, sealed = allows(node, "refold.Blob"), allows(node, "refold.Sealed")
    plain = _plain(value, inline_bytes, enclosed or blob)
    is_json = value.get("logicalType") == JSON
    small = value["type"] in ("boolean", "int", "long", "float", "double", "enum")
    if small and not (can_be_null or blob or sealed):
        return plain

    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if given is None and can_be_null:
            return None
        given_type = type(given)
        if given_type is Blob or given_type is Sealed:
            if not (blob if given_type is Blob else sealed):
                raise ValidationError(path, f"this field's type has no refold.{given_type.__name__}", given)
            tree: Value = given.tree(path)
            return tree
        canonical = plain(given, path, blobs)
        if small or (given_type is str and not is_json and len(given) * 4 + 9 <= inline_bytes):
            return canonical
        if not blob and (enclosed or not isinstance(canonical, (str, bytes))):
            return canonical  # the enclosing value becomes the Blob, or a large inner value already has
        size = len(encode(canonical))
        if size <= inline_bytes:
            return canonical
        if not blob:
            raise ValidationError(path, f"at most {inline_bytes} bytes; the type has no refold.Blob", f"({size} bytes)")
        if blobs is None:
            raise ValidationError(path, f"over {inline_bytes} bytes needs a blob store", f"({size} bytes)")
        return claim(canonical, is_json, blobs).tree(path)

    return check


def _plain(node: dict[str, Any], inline_bytes: int, enclosed: bool) -> Check:
    kind = node["type"]
    if "logicalType" in node:
        if node["logicalType"] == JSON:
            return _json
        return logical_checker(node)
    if kind in RANGES:
        return _integer(*RANGES[kind], kind)
    simple: dict[str, Check] = {
        "double": _double,
        "float": _float,
        "string": _string,
        "boolean": _boolean,
        "bytes": _bytes,
    }
    if kind in simple:
        return simple[kind]
    if kind == "enum":
        return _enum(tuple(node["symbols"]))
    if kind == "fixed":
        return _fixed(node["size"])
    if kind == "array":
        return _array(checker(node["items"], inline_bytes, enclosed))
    if kind == "map":
        return _map(checker(node["values"], inline_bytes, enclosed))
    return _record(node, inline_bytes, enclosed)


def _json(given: Any, path: str, blobs: Blobs | None) -> Value:
    return given.text if type(given) is JsonText else json_text(given, path)


def _integer(low: int, end: int, kind: str) -> Check:
    rule = f"an integer in [{low}, {end - 1}] ({kind})"

    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if type(given) is int and low <= given < end:
            return given
        if (
            isinstance(given, (int, float))
            and not isinstance(given, bool)
            and given == given // 1
            and low <= given < end
        ):
            return int(given)
        raise ValidationError(path, rule, given)

    return check


def _double(given: Any, path: str, blobs: Blobs | None) -> Value:
    if not isinstance(given, (int, float)) or isinstance(given, bool):
        raise ValidationError(path, "a number (double)", given)
    try:
        rounded = float(given)
    except OverflowError:
        raise ValidationError(path, "a number within a double's range", given) from None
    return number(rounded, path)


def _float(given: Any, path: str, blobs: Blobs | None) -> Value:
    wide = _double(given, path, blobs)
    assert isinstance(wide, (int, float))
    try:
        narrow: float = struct.unpack("<f", struct.pack("<f", wide))[0]
    except OverflowError:
        raise ValidationError(path, "a number within a 32-bit float's range", given) from None
    return number(narrow, path)


def _string(given: Any, path: str, blobs: Blobs | None) -> Value:
    if not isinstance(given, str):
        raise ValidationError(path, "a string", given)
    return text(given, path)


def _boolean(given: Any, path: str, blobs: Blobs | None) -> Value:
    if not isinstance(given, bool):
        raise ValidationError(path, "true or false (boolean)", given)
    return given


def _bytes(given: Any, path: str, blobs: Blobs | None) -> Value:
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise ValidationError(path, "bytes", given)
    return bytes(given)


def _enum(symbols: tuple[str, ...]) -> Check:
    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if not isinstance(given, str) or given not in symbols:
            raise ValidationError(path, f"one of {', '.join(symbols)}", given)
        return str.__str__(given)  # a Python enum's str() may differ from its value

    return check


def _fixed(size: int) -> Check:
    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if not isinstance(given, (bytes, bytearray, memoryview)) or len(raw := bytes(given)) != size:
            raise ValidationError(path, f"{size} bytes (fixed)", given)
        return raw

    return check


def _array(item: Check) -> Check:
    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if isinstance(given, (set, frozenset)):
            # The order of a Python set differs between processes, but the same call must give the same id.
            return sorted([item(each, f"{path}[]", blobs) for each in given], key=encode)
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes, bytearray, memoryview)):
            raise ValidationError(path, "a list (array)", given)
        return [item(each, f"{path}[{index}]", blobs) for index, each in enumerate(given)]

    return check


def _map(value: Check) -> Check:
    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if not isinstance(given, Mapping):
            raise ValidationError(path, "an object with text keys (map)", given)
        tree: dict[str, Value] = {}
        for key, each in given.items():
            if not isinstance(key, str):
                raise ValidationError(path, "a map's keys must be strings", key)
            tree[text(key, path)] = value(each, f"{path}.{key}", blobs)
        return tree

    return check


def _record(node: dict[str, Any], inline_bytes: int, enclosed: bool) -> Check:
    fields = [
        (each["name"], first_name(each), checker(each["type"], inline_bytes, enclosed), allows(each["type"], "null"))
        for each in node["fields"]
    ]
    names = {name for field in node["fields"] for name in (field["name"], first_name(field))}

    def check(given: Any, path: str, blobs: Blobs | None) -> Value:
        if not isinstance(given, Mapping):
            raise ValidationError(path, f"an object ({node['name']})", given)
        for key in given:
            if key not in names:
                known = ", ".join(field["name"] for field in node["fields"])
                raise ValidationError(f"{path}.{key}", f"{node['name']} has the fields {known}", key)
        tree: dict[str, Value] = {}
        for name, first, inner, optional in fields:
            each = given.get(name)
            if first != name and first in given:  # the name in states and exports
                if name in given:
                    raise ValidationError(
                        f"{path}.{name}", f"{first} is given twice, by its first name and its later one", each
                    )
                each = given[first]
            if each is not None:
                tree[first] = inner(each, f"{path}.{name}", blobs)
            elif not optional:
                raise ValidationError(f"{path}.{name}", "a value: this field cannot be null", each)
        return tree

    return check


def first_name(field: Mapping[str, Any]) -> str:
    """The name a nested field keeps in ids and states after renames."""
    return str(field.get("refold.name", field["name"]))
