"""Converts canonical values to JSON, for `--json`, exports and Python views, and back.

bytes are base64 text and fixed lower-case hex; refold-json values are shown as JSON; a Blob or Sealed value is
{"$blob": ...} or {"$sealed": ...}, and a JSON value or a map that looks like one of these is wrapped as {"$json":
value}.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from refold.avro.blob import BLOB_FIELDS, SEALED_FIELDS, Blob, Sealed, option_of
from refold.avro.errors import ValidationError
from refold.avro.nodes import JSON, Node, allows, value_of
from refold.avro.values import first_name

Format: TypeAlias = Callable[[Any], Any]
Read: TypeAlias = Callable[[Any, str], Any]

BLOB, SEALED, WRAPPED = "$blob", "$sealed", "$json"
MARKS = frozenset({BLOB, SEALED, WRAPPED})


def formatter(node: Node, *, python: bool = False) -> Format:
    """Return the conversion of a field's values from canonical to JSON form.

    Args:
        node: The field's Avro schema, parsed.
        python: Keep bytes, Blob and Sealed as objects.
    """
    value = value_of(node)
    plain = _format_plain(value, python)
    options = allows(node, "refold.Blob") or allows(node, "refold.Sealed")
    wraps = options and value["type"] == "map" and not python
    if plain is None and not options:
        return lambda tree: tree

    def show(tree: Any) -> Any:
        if tree is None:
            return None
        option = option_of(tree) if options else None
        if option is not None:
            return option if python else option_json(option)
        shown = tree if plain is None else plain(tree)
        return _wrap(shown) if wraps else shown

    return show


def _format_plain(node: dict[str, Any], python: bool) -> Format | None:
    kind, logical = node["type"], node.get("logicalType")
    if logical == JSON:
        return json.loads if python else lambda tree: _wrap(json.loads(tree))
    if logical == "decimal" or (python and kind in ("bytes", "fixed")):
        return None
    if kind == "bytes":
        return lambda tree: base64.b64encode(tree).decode()
    if kind == "fixed":
        return lambda tree: tree.hex()
    if kind == "array":
        item = formatter(node["items"], python=python)
        return lambda tree: [item(each) for each in tree]
    if kind == "map":
        value = formatter(node["values"], python=python)
        return lambda tree: {key: value(each) for key, each in tree.items()}
    if kind == "record":
        fields = {first_name(field): formatter(field["type"], python=python) for field in node["fields"]}
        rest: Format = (lambda tree: tree) if python else _format_unknown
        return lambda tree: {key: fields.get(key, rest)(each) for key, each in tree.items()}
    return None


def _format_unknown(tree: Any) -> Any:
    """Show a value of an older version whose field this version does not have, judged by its form alone."""
    option = option_of(tree)
    if option is not None:
        return option_json(option)
    if isinstance(tree, bytes):
        return base64.b64encode(tree).decode()
    if isinstance(tree, list):
        return [_format_unknown(each) for each in tree]
    return {key: _format_unknown(each) for key, each in tree.items()} if isinstance(tree, dict) else tree


def option_json(option: Blob | Sealed) -> dict[str, Any]:
    """The JSON form of a Blob or Sealed value."""
    if isinstance(option, Blob):
        return {BLOB: {"hash": option.hash.hex(), "size": option.size, "media_type": option.media_type}}
    return {SEALED: {"key_id": option.key_id, "ciphertext": base64.b64encode(option.ciphertext).decode()}}


def _wrap(value: Any) -> Any:
    return {WRAPPED: value} if isinstance(value, dict) and len(value) == 1 and MARKS & value.keys() else value


def reader(node: Node) -> Read:
    """Return the conversion from JSON form to the checker's input. It raises ValidationError for another form."""
    value = value_of(node)
    plain = _read_plain(value)
    options = allows(node, "refold.Blob") or allows(node, "refold.Sealed")
    wraps = value.get("logicalType") == JSON or (options and value["type"] == "map")

    def read(given: Any, path: str) -> Any:
        if isinstance(given, dict) and len(given) == 1:
            mark = next(iter(given))
            if options and mark in (BLOB, SEALED):
                return _read_option(mark, given[mark], path)
            if wraps and mark == WRAPPED:
                given = given[mark]
        return given if given is None or plain is None else plain(given, path)

    return read


def _read_plain(node: dict[str, Any]) -> Read | None:
    kind = node["type"]
    if "logicalType" in node:
        return None
    if kind == "bytes":
        return _base64
    if kind == "fixed":
        return _hex
    if kind == "array":
        item = reader(node["items"])
        return lambda given, path: (
            [item(x, f"{path}[{index}]") for index, x in enumerate(given)] if isinstance(given, list) else given
        )
    if kind == "map":
        value = reader(node["values"])
        return lambda given, path: (
            {key: value(x, f"{path}.{key}") for key, x in given.items()} if isinstance(given, dict) else given
        )
    if kind == "record":
        return _read_record(node)
    return None


def _read_record(node: dict[str, Any]) -> Read:
    by_first = {first_name(field): (field["name"], reader(field["type"])) for field in node["fields"]}
    by_name = {field["name"]: (field["name"], reader(field["type"])) for field in node["fields"]}
    fields = by_name | by_first

    def read(given: Any, path: str) -> Any:
        if not isinstance(given, dict):
            return given
        tree = {}
        for key, value in given.items():
            name, inner = fields.get(key, (key, None))
            if name in tree:
                raise ValidationError(
                    f"{path}.{key}", f"{name} is given twice, by its first name and its later one", value
                )
            tree[name] = value if inner is None else inner(value, f"{path}.{key}")
        return tree

    return read


def _read_option(mark: str, given: Any, path: str) -> Blob | Sealed:
    names = BLOB_FIELDS if mark == BLOB else SEALED_FIELDS
    if not isinstance(given, dict) or given.keys() != names:
        raise ValidationError(path, f"a {mark} object has {', '.join(sorted(names))}", given)
    if mark == BLOB:
        return Blob(_hex(given["hash"], f"{path}.hash"), given["size"], given["media_type"])
    return Sealed(given["key_id"], _base64(given["ciphertext"], f"{path}.ciphertext"))


def _base64(given: Any, path: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ValidationError(path, "bytes as base64 text", given) from None


def _hex(given: Any, path: str) -> bytes:
    try:
        return bytes.fromhex(given)
    except (ValueError, TypeError):
        raise ValidationError(path, "bytes as hexadecimal text", given) from None


def format_mapping(fields: Mapping[str, Format], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Convert each field of `tree` by its own function."""
    return {name: fields[name](value) for name, value in tree.items()}
