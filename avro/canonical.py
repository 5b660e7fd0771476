"""Canonical bytes: deterministic CBOR (RFC 8949 4.2.1) and canonical JSON, under one set of number rules.

Number rules: a number with an integral value in [-2^63, 2^64) is an integer, -0.0 is 0, every other number is
the shortest float that keeps its value; NaN and infinity are refused. Map keys are text, or non-negative integers
in a cut, so that cbor2's length-first order and the RFC's bytewise order agree.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import cbor2
import msgspec

from refold.avro.errors import ValidationError
from refold.avro.observation import ID_BYTES, Value

INTEGER_MIN = -(2**63)
INTEGER_END = 2**64
MAX_DEPTH = 64
ID_HEAD = b"\x58\x20"
TEXT_HEADS: list[bytes] = [cbor2.dumps("." * length)[: -length or None] for length in range(256)]
_FALSE, _TRUE = cbor2.dumps(False), cbor2.dumps(True)
_SMALL: list[bytes] = [cbor2.dumps(number) for number in range(256)]
_U16, _U32, _U64 = struct.Struct(">BH").pack, struct.Struct(">BI").pack, struct.Struct(">BQ").pack


def encode(tree: object) -> bytes:
    """Deterministic CBOR of a tree whose numbers are already normalised."""
    # Most values are ids, short texts and numbers, for which cbor2 takes twice as long.
    if type(tree) is bytes and len(tree) == ID_BYTES:
        return ID_HEAD + tree
    if type(tree) is str:
        data = tree.encode()
        if len(data) < 256:
            return TEXT_HEADS[len(data)] + data
    elif type(tree) is int and 0 <= tree < INTEGER_END:
        return _unsigned(tree)
    elif type(tree) is bool:
        return _TRUE if tree else _FALSE
    return cbor2.dumps(tree, canonical=True)


def _unsigned(number: int) -> bytes:
    if number < 256:
        return _SMALL[number]
    if number < 1 << 16:
        return _U16(0x19, number)
    return _U32(0x1A, number) if number < 1 << 32 else _U64(0x1B, number)


@lru_cache(maxsize=4096)
def in_key_order(names: tuple[str, ...]) -> tuple[tuple[str, bytes], ...]:
    """A map's keys in the order of deterministic CBOR, each with its encoding. Cached, because few sets of keys
    occur.
    """
    return tuple(sorted([(name, encode_name(name)) for name in names], key=lambda pair: pair[1]))


@lru_cache(maxsize=4096)
def encode_name(name: str) -> bytes:
    """Deterministic CBOR of a frequent text, such as a key, a type or a kind. Cached."""
    return cbor2.dumps(name)


@lru_cache(maxsize=256)
def map_head(count: int) -> bytes:
    """The CBOR head of a map with up to 65,535 members."""
    if count < 24:
        return bytes([0xA0 + count])
    return bytes([0xB8, count]) if count < 256 else b"\xb9" + count.to_bytes(2, "big")


def decode(data: bytes) -> object:
    """Decode deterministic CBOR to lists, dicts and scalars."""
    return cbor2.loads(data)


def number(value: int | float, path: str = "number") -> int | float:
    """Return a number under the number rules, as a plain int or float.

    Raises:
        ValidationError: It is NaN, infinite, or an integer that no double equals.
    """
    if isinstance(value, int):
        if INTEGER_MIN <= value < INTEGER_END:
            return int(value)
        try:
            rounded = float(value)
            exact = int(rounded) == value
        except OverflowError:
            rounded, exact = math.inf, False
        # The second form is how JSON writes a double of this size: 2^64 as 18446744073709552000.
        if not exact and not (abs(value) < 10**21 and _ecmascript_float(rounded) == str(value)):
            rule = "an integer outside [-2^63, 2^64) has to equal a double; give it as text"
            raise ValidationError(path, rule, value)
        return rounded
    if not math.isfinite(value):
        raise ValidationError(path, "NaN and infinity are not values", value)
    if value.is_integer() and INTEGER_MIN <= value < INTEGER_END:
        return int(value)
    return float(value)


def text(value: str, path: str = "text") -> str:
    """Return a string as a plain str.

    Raises:
        ValidationError: It holds lone surrogates, which have no UTF-8.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValidationError(path, "a string must be Unicode text without lone surrogates", value) from None
    return value if type(value) is str else str.__str__(value)


def json_tree(value: object, path: str = "json", depth: int = 0) -> Value:
    """Return a JSON value under the number rules.

    Args:
        value: The value.
        path: Its place, for errors.
        depth: How deep it is nested already.

    Raises:
        ValidationError: JSON cannot represent it.
    """
    try:
        return _plain_tree(value, depth)
    except _NotPlain:
        return _checked_tree(value, path, depth)


class _NotPlain(Exception):
    """A tree has a value that is not plain: `_checked_tree` then checks it again, with the path of each value."""


def _plain_tree(value: object, depth: int) -> Value:
    """The fast path: the tree, if all its values have plain types and are valid. Raises _NotPlain otherwise."""
    if type(value) is str and (value.isascii() or _is_text(value)):
        return value
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and INTEGER_MIN <= value < INTEGER_END:
        return value
    if type(value) is float and math.isfinite(value):
        return number(value)
    if depth < MAX_DEPTH:
        if type(value) is list:
            return [_plain_tree(item, depth + 1) for item in value]
        if type(value) is dict:  # most keys and values are short texts, which need no call
            return {
                key if type(key) is str and key.isascii() else _plain_key(key):
                item if type(item) is str and item.isascii() else _plain_tree(item, depth + 1)
                for key, item in value.items()
            }  # fmt: skip
    raise _NotPlain


def _plain_key(key: object) -> str:
    if type(key) is str and (key.isascii() or _is_text(key)):
        return key
    raise _NotPlain


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_tree(value: object, path: str, depth: int) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return number(value, path)
    if isinstance(value, str):
        return text(value, path)
    if depth >= MAX_DEPTH:
        raise ValidationError(path, f"JSON deeper than {MAX_DEPTH} levels", "(too deep)")
    if isinstance(value, Mapping):
        tree: dict[str, Value] = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValidationError(path, "a JSON object's keys must be strings", key)
            tree[text(key, path)] = _checked_tree(item, f"{path}.{key}", depth + 1)
        return tree
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [_checked_tree(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise ValidationError(path, "a JSON value (null, boolean, number, string, list or object)", value)


class JsonText:
    """A JSON value as its canonical text, for a field whose other occurrences have the same value: it is made once.

    Attributes:
        text: The text from `json_text`; it is not checked again.
    """

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def json_text(value: object, path: str = "json") -> str:
    """Canonical JSON of `value`: keys by code point, no white space, numbers as ECMAScript writes them."""
    if _is_written_alike(value):
        return _JSON.encode(value).decode()
    return _JSON.encode(_written_floats(json_tree(value, path))).decode()


def _is_written_alike(value: Any, depth: int = 0) -> bool:
    """The fast path of `json_text`: whether the encoder writes this tree as canonical JSON. False decides nothing."""
    kind = type(value)
    if kind is dict:
        if depth >= MAX_DEPTH:
            return False
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or _is_text(key)):
                return False
            if type(item) is str:
                if not (item.isascii() or _is_text(item)):
                    return False
            elif not _is_written_alike(item, depth + 1):
                return False
        return True
    if kind is list:
        return depth < MAX_DEPTH and all(_is_written_alike(item, depth + 1) for item in value)
    if kind is str:
        return bool(value.isascii()) or _is_text(value)
    if kind is int:
        return bool(INTEGER_MIN <= value < INTEGER_END)
    if kind is float:
        low, end = _SAME_LAYOUT
        return bool(low <= abs(value) < end) and not value.is_integer()
    return value is None or kind is bool


def check_json_text(given: str, path: str = "json") -> str:
    """`given` unchanged; ValidationError unless it is the canonical JSON of some value."""
    # The fast path in C: without floats and integers beyond 64 bits, that encoder's form is canonical.
    if given.count("[") + given.count("{") <= MAX_DEPTH:
        with contextlib.suppress(msgspec.MsgspecError, OverflowError):
            tree = _WITHOUT_FLOATS.decode(given)
            _IN_64_BITS.encode(tree)
            if _JSON.encode(tree) == given.encode():
                return given
    canonical = None
    with contextlib.suppress(ValueError, RecursionError):
        canonical = json_text(json.loads(given), path)
    if canonical != given:
        raise ValidationError(path, "canonical JSON: keys sorted, no white space, shortest numbers", given)
    return given


def _refused(literal: str) -> NoReturn:
    raise ValueError(literal)


_JSON = msgspec.json.Encoder(order="sorted")
_SAME_LAYOUT = (1e-4, 1e15)
"""Between these the encoder and ECMAScript write a float in the same layout: digits with a point in them."""
_WITHOUT_FLOATS = msgspec.json.Decoder(float_hook=_refused)
_IN_64_BITS = msgspec.msgpack.Encoder()


def _written_floats(tree: Any) -> Any:
    """The tree with floats already written as text, because the encoder's form for floats differs."""
    if isinstance(tree, float):
        return msgspec.Raw(_ecmascript_float(tree).encode())
    if isinstance(tree, dict):
        return {key: _written_floats(each) for key, each in tree.items()}
    return [_written_floats(each) for each in tree] if isinstance(tree, list) else tree


def _ecmascript_float(value: float) -> str:
    """The shortest digits that read back, in the layout of ECMAScript's Number::toString."""
    mantissa, _, exponent_text = f"{value!r}".partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    fraction = "" if fraction == "0" else fraction
    point = len(whole) + int(exponent_text or 0)
    digits = whole + fraction
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    digits = stripped.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'+' if point > 0 else '-'}{abs(point - 1)}"
