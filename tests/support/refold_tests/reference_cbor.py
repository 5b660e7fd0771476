"""Deterministic CBOR (RFC 8949 4.2.1) under the number rules of ids and states, without any library.

A number with an integral value in [-2^63, 2^64) is an integer, -0.0 is 0, every other number is the
shortest float that keeps its value; NaN and infinity are refused. Map keys are text. There are no tags.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

INTEGER_MIN = -(2**63)
INTEGER_END = 2**64


def canonical_number(value: int | float) -> int | float:
    """Return `value` as ids and states write it.

    Raises:
        ValueError: It is NaN or infinity, or neither form can hold it.
    """
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is no canonical number")
    if value == int(value) and INTEGER_MIN <= value < INTEGER_END:
        return int(value)
    if float(value) != value:
        raise ValueError(f"{value} is neither an integer in range nor a double")
    return float(value)


def canonical(value: Any) -> Any:
    """Return `value` with the number rule applied to every number in it."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return canonical_number(value)
    if isinstance(value, (list, tuple)):
        return [canonical(item) for item in value]
    if isinstance(value, Mapping):
        return {key: canonical(item) for key, item in value.items()}
    return value


def encode(value: Any) -> bytes:
    """Return the only CBOR encoding of `value`.

    Raises:
        TypeError: The format cannot hold it.
    """
    if value is None:
        return b"\xf6"
    if isinstance(value, bool):
        return b"\xf5" if value else b"\xf4"
    if isinstance(value, (int, float)):
        return _number(canonical_number(value))
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        text = value.encode("utf-8")
        return _head(3, len(text)) + text
    if isinstance(value, (list, tuple)):
        return _head(4, len(value)) + b"".join(encode(item) for item in value)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError("map keys are text")
        entries = sorted((encode(key), encode(item)) for key, item in value.items())
        return _head(5, len(entries)) + b"".join(key + item for key, item in entries)
    raise TypeError(f"no CBOR for {type(value).__name__}")


def _number(value: int | float) -> bytes:
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    for initial, width in ((b"\xf9", ">e"), (b"\xfa", ">f")):
        try:
            packed = struct.pack(width, value)
        except OverflowError:
            continue
        if struct.unpack(width, packed)[0] == value:
            return initial + packed
    return b"\xfb" + struct.pack(">d", value)


def _head(major: int, argument: int) -> bytes:
    """Return a major type with its argument in the fewest bytes."""
    if argument < 24:
        return bytes([major << 5 | argument])
    for additional, width in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if argument < 1 << 8 * width:
            return bytes([major << 5 | additional]) + argument.to_bytes(width, "big")
    raise ValueError(f"{argument} does not fit in 64 bits")
