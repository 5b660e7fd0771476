"""FIELD=VALUE on the command line, read by the field's own type.

rate_limit=50            a number        enabled=true             true or false
tool=search              text as it is   tags='["a", "b"]'        lists, maps and records as JSON
fields.email='"a@b.c"'   an entry of a map; what may be any JSON value is JSON, so text is quoted
output=@result.txt       the content of a file; text that begins with @ is written @@
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refold.avro import strict_json
from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError
from refold.avro.files import read_bounded
from refold.avro.jsonform import reader
from refold.avro.nodes import JSON, Node, allows, value_of

CONTENT_BYTES_MAX = 64 << 20
"""Of a file that is given as a value (@FILE)."""
COLLECTED = frozenset({"array", "map", "record"})
NUMBERS = {"int": int, "long": int, "float": float, "double": float}


def patch_of(definition: TypeDefinition, assignments: Iterable[str]) -> dict[str, Any]:
    """The patch that some assignments make; InputError names the one that is wrong."""
    patch: dict[str, Any] = {}
    given: set[str] = set()
    fields = {**definition.by_first_name, **definition.fields}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals:
            raise InputError(f"{assignment!r:.120}: an assignment is FIELD=VALUE, such as rate_limit=50")
        name, dot, key = path.partition(".")
        if name not in fields:
            known = ", ".join(definition.fields)
            raise InputError(f"{path}: {definition.name} has the fields {known}")
        if path in given or (name in given if dot else name in patch):
            raise InputError(f"{path}: given twice; give it once")
        given.add(path)
        field = fields[name]
        if not dot:
            patch[name] = _value(field.node, _content(text, path), path)
        elif field.reducer != "map":
            raise InputError(f"{path}: {name} is no map, so it has no entries; give {name}=VALUE")
        else:
            patch.setdefault(name, {})[key] = _value(field.element, _content(text, path), path)
    return patch


def _content(text: str, path: str) -> str:
    if not text.startswith("@"):
        return text
    if text.startswith("@@"):
        return text[1:]
    try:
        return read_bounded(text[1:], CONTENT_BYTES_MAX).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(
            f"{path}: {text[1:]!r:.120} cannot be read ({reason}); text that begins with @ is written @@"
        ) from None


def _value(node: Node, text: str, path: str) -> Any:
    """What the text says under a type; whether the type allows it, the door decides."""
    plain = value_of(node)
    kind, logical = plain["type"], plain.get("logicalType")
    if text == "null" and allows(node, "null") and (logical == JSON or kind != "string"):
        return None
    if logical == JSON:
        return reader(node)(_json(text, path, "any JSON value; put text in double quotes"), path)
    if kind in COLLECTED or text.startswith(('{"$blob"', '{"$sealed"')):
        example = {"array": '["a", "b"]', "map": '{"key": ...}'}.get(kind, '{"field": ...}')
        return reader(node)(_json(text, path, f"JSON, such as {example}"), path)
    if logical == "decimal" or kind in ("string", "enum", "bytes", "fixed"):
        return reader(node)(text, path)
    if kind == "boolean":
        return {"true": True, "false": False}.get(text, text)
    return _number(NUMBERS[kind], text, is_time=logical is not None)


def _number(convert: type, text: str, *, is_time: bool) -> Any:
    """A number; text that is none goes on as text, for a time or for the refusal."""
    if not text.isascii() or "_" in text:
        return text
    try:
        return convert(text)
    except ValueError:
        pass
    try:
        # 5.0 and 5e3 are whole numbers too; what is not, the door refuses by its type.
        return text if is_time else float(text)
    except ValueError:
        return text


def _json(text: str, path: str, wanted: str) -> Any:
    try:
        return strict_json.loads(text)
    except strict_json.JsonRefused as error:
        raise InputError(f"{path}: the value is {wanted}: {error}") from None
    except ValueError:
        raise InputError(f"{path}: the value is {wanted}; given {text!r:.120}") from None
