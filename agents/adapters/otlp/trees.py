"""A message of OTLP as a tree in the form of protobuf's JSON.

The tree is that of `google.protobuf.json_format.MessageToDict`, with numbers under the number rules of
avro/canonical.py. A request has some hundred thousand messages, most of them values of attributes, so each type's
fields are looked up once.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from refold.avro.canonical import number

Convert: TypeAlias = Callable[[Any], Any]
_INTEGERS_AS_TEXT = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
_FLOATS = frozenset({FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE})


def tree_of(message: Message) -> dict[str, Any]:
    """Return a message as a tree. Fields that are not set are left out; enums are numbers, bytes are in base64."""
    fields = _fields(message.DESCRIPTOR)
    tree = {}
    for field, value in message.ListFields():
        name, convert = fields[field.number]
        tree[name] = value if convert is None else convert(value)
    return tree


@cache  # the types of OTLP are few
def _fields(descriptor: Descriptor) -> dict[int, tuple[str, Convert | None]]:
    """The name and the conversion of each field, by its number."""
    return {each.number: (each.json_name, _conversion(each)) for each in descriptor.fields}


def _conversion(field: FieldDescriptor) -> Convert | None:
    convert = _of_one(field)
    if not isinstance(field.default_value, list):  # a list's default; protobuf's releases differ in the name for it
        return convert
    return list if convert is None else lambda values: [convert(each) for each in values]


def _of_one(field: FieldDescriptor) -> Convert | None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return tree_of
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _base64
    if field.cpp_type in _INTEGERS_AS_TEXT:
        return str
    return _number if field.cpp_type in _FLOATS else None


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _number(value: float) -> int | float | str:
    if math.isfinite(value):
        return number(value)
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
