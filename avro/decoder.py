"""Reads Avro's binary encoding, with one function per schema node, built once. The counterpart of avro/encoder.py.

It reads the common form: blocks without a size, numbers of 64 bits, existing branches and symbols. For anything else it
raises one of REFUSED, and fastavro decides (avro/codec.py). So neither the validity nor the content of a message
depends on this module. A patch is a record of many nullable fields, most absent, and fastavro spends 15 us on a
19-field one with 5 present where this takes 7. tests/avro compares both on the same data.

A function takes the bytes and the start, and returns the datum and its end. A slice past the end of the bytes is
silently short, so the caller checks at the end that the datum lies within the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from refold.avro.nodes import Node

Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]

# OverflowError: a claimed length leads to an offset that is no valid index.
REFUSED = (LookupError, ValueError, OverflowError, struct.error)

_DOUBLE = struct.Struct("<d").unpack_from
_FLOAT = struct.Struct("<f").unpack_from
_ZIGZAG_END = 1 << 64
_BOOLEANS = (False, True)


def _read_rest(byte: int, data: bytes, at: int) -> tuple[int, int]:
    """Read the rest of a varint after its first byte; the result is still zigzag."""
    number, shift = byte & 0x7F, 7
    while byte > 0x7F and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    if byte > 0x7F or number >= _ZIGZAG_END:
        raise ValueError("a number past 64 bits")
    return number, at


def read_long(data: bytes, at: int) -> tuple[int, int]:
    """Read an int or long."""
    number = data[at]
    at += 1
    if number > 0x7F:
        number, at = _read_rest(number, data, at)
    return (number >> 1) ^ -(number & 1), at


def read_count(data: bytes, at: int) -> tuple[int, int]:
    """Read a length or an index.

    Returns:
        (number, position after it).

    Raises:
        ValueError: It is negative.
    """
    number = data[at]
    at += 1
    if number > 0x7F:
        number, at = _read_rest(number, data, at)
    if number & 1:
        raise ValueError("a negative count")
    return number >> 1, at


def read_text(data: bytes, at: int) -> tuple[str, int]:
    """Read a string.

    Returns:
        (text, position after it).

    Raises:
        ValueError: Its length is negative, or its bytes are not UTF-8.
    """
    length = data[at]  # read_count inlined: most values are text
    at += 1
    if length > 0x7F:
        length, at = _read_rest(length, data, at)
    if length & 1:
        raise ValueError("a negative length")
    end = at + (length >> 1)
    return data[at:end].decode(), end


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = read_count(data, at)
    end = at + length
    return data[at:end], end


def _read_null(data: bytes, at: int) -> tuple[None, int]:
    return None, at


def _read_boolean(data: bytes, at: int) -> tuple[bool, int]:
    return _BOOLEANS[data[at]], at + 1


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT(data, at)[0], at + 4


def _read_double(data: bytes, at: int) -> tuple[float, int]:
    return _DOUBLE(data, at)[0], at + 8


_PLAIN: dict[str, Read] = {
    "null": _read_null,
    "boolean": _read_boolean,
    "int": read_long,
    "long": read_long,
    "float": _read_float,
    "double": _read_double,
    "string": read_text,
    "bytes": _read_bytes,
}


def reader(node: Node) -> Read:
    """Return the function that reads a node's datum, in the form that fastavro returns."""
    if isinstance(node, list):
        return _union([reader(each) for each in node])
    kind = node["type"]
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind == "fixed":
        return _fixed(node["size"])
    if kind == "enum":
        return _enum(tuple(node["symbols"]))
    if kind == "array":
        return _array(reader(node["items"]))
    if kind == "map":
        return _map(reader(node["values"]))
    return _record([(field["name"], field["type"]) for field in node["fields"]])


def _fixed(size: int) -> Read:
    def read(data: bytes, at: int) -> tuple[bytes, int]:
        end = at + size
        if end > len(data):  # checked at once: otherwise an array that claims endless ids would never end
            raise ValueError("the bytes end here")
        return data[at:end], end

    return read


def _enum(symbols: tuple[str, ...]) -> Read:
    def read(data: bytes, at: int) -> tuple[str, int]:
        index, at = read_count(data, at)
        return symbols[index], at

    return read


def _union(choices: list[Read]) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        index, at = read_count(data, at)
        return choices[index](data, at)

    return read


def _array(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        count, at = read_count(data, at)
        while count:
            for _ in range(count):
                each, at = item(data, at)
                found.append(each)
            count, at = read_count(data, at)
        return found, at

    return read


def _map(value: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        count, at = read_count(data, at)
        while count:
            for _ in range(count):
                key, at = read_text(data, at)
                found[key], at = value(data, at)
            count, at = read_count(data, at)
        return found, at

    return read


def _record(fields: list[tuple[str, Node]]) -> Read:
    members = [(name, reader(node), isinstance(node, list) and node[0]["type"] == "null") for name, node in fields]

    def read(data: bytes, at: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        for name, read_field, is_nullable in members:
            if is_nullable and not data[at]:  # inlined: most fields of a patch and of a change are absent
                found[name] = None
                at += 1
                continue
            found[name], at = read_field(data, at)
        return found, at

    return read
