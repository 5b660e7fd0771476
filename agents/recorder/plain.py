"""Values that a run can record: JSON values, and objects that become JSON and are restored from it.

A recorded answer is served again in a replay, so the agent's code must then get an equal object. The same holds for its
state, input and result. JSON values are recorded unchanged. An answer whose type is named, by the annotation or
`returns=`, is recorded as the JSON of that type, if msgspec or `model_validate` restores an equal object. Every other
value is recorded with marks that name its kind (journal/objects.py).

A value that would be restored as another value is refused when it is recorded, not when it is replayed. So is a value
that a log cannot hold (avro/canonical.py): integers past 64 bits, and more than DEPTH_MAX levels.
"""

from __future__ import annotations

import contextlib
import marshal
import typing
from collections.abc import Callable, MutableMapping
from functools import cache
from typing import Annotated, Any
from weakref import WeakKeyDictionary

import msgspec

from refold.agents.journal.objects import ANSWER, MARK, dumped, loaded
from refold.agents.journal.record import Plain
from refold.avro.canonical import INTEGER_END, INTEGER_MIN, MAX_DEPTH
from refold.avro.errors import InputError

# A journal stores a value up to 16 levels down, and a float or an object that looks like a mark one level further.
DEPTH_MAX = MAX_DEPTH // 2 - 16

LARGE_BYTES = 1 << 17
_VALUE_BYTES = 8

_SCALARS = (str, int, float, bool, type(None))
_NOUGHTS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_LEVELS_SEEN = 6
_INTEGER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_annotations: MutableMapping[Any, Any] = WeakKeyDictionary()
# A marshal version with values only: no references to resolve.
_MARSHAL_VALUES = 2
_SETS_OF_MARSHAL = (b"<", b">")
_SETLESS = frozenset({str, int, float, bool, type(None), bytes, bytearray})


def is_large(value: object) -> bool:
    """Whether encoding a value may block an event loop for too long: estimated in a few microseconds.

    It visits a limited number of values, so it ends for cyclic ones too.
    """
    left, to_see = LARGE_BYTES, [value]
    while to_see and left > 0:
        each = to_see.pop()
        left -= _VALUE_BYTES
        if isinstance(each, str | bytes | bytearray):
            left -= len(each)
        elif isinstance(each, dict):
            to_see += each.values()
        elif isinstance(each, list | tuple | set | frozenset):
            to_see += each
        elif hasattr(each, "__dict__") and not isinstance(each, type):
            to_see.append(vars(each))
    return left <= 0


def encoded(value: object, what: str) -> bytes:
    """Return a request's JSON. Objects become what JSON makes of them; if JSON cannot represent one, all are marked.

    Args:
        value: The request.
        what: Its name in errors.

    Raises:
        InputError: It holds a value that cannot be recorded; the message has the value's path.
    """
    try:
        data = _in_order(value, _encode(value))
    except _NOT_JSON:  # or a set whose elements cannot be ordered
        data = _encode(_dump_request(value, what))
    # A check without visiting many values: with few brackets it is not deep, and without long digits no number is long.
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX or _LONG_NUMBER in data.translate(_NOUGHTS):
        _holdable(data, what)
    return data


def decoded(data: bytes) -> Plain:
    """Return the tree of what `encoded` and `kept` return."""
    return msgspec.json.decode(data)


def kept(value: Any, what: str) -> bytes:
    """Return the JSON of a value that `objects.loaded` restores unchanged.

    Raises:
        InputError: It holds a value that would be restored as another; the message has the path, and what to do.
    """
    data = _plainly(value)
    if data is not None:
        return data
    tree = dumped(value, what)
    data = _encode(tree)
    _holdable(data, what)
    if dumped(loaded(tree), what) != tree:  # an object whose class changes its fields
        raise InputError(
            f"{what} is a {type(value).__qualname__} that would be read back as another value: use JSON values in it"
        )
    return data


def snapshot(value: Any, what: str) -> bytes:
    """As `kept`, for a value that is not recorded, so that a log need not be able to hold it."""
    try:
        return kept(value, what)
    except InputError:
        try:
            return _encode(value)
        except _NOT_JSON:
            pass
        raise


def _plainly(value: Any) -> bytes | None:
    """Return the JSON of a value that is only JSON; None for any other."""
    try:
        data = _encode(value)
        # marshal knows only Python's own types: among these, equal values have the same types.
        marshal.dumps(value, _MARSHAL_VALUES)
        return data if MARK not in data and _holdable(data, "") == value else None
    except (*_NOT_JSON, InputError):  # a subclass of dict, an enumeration, a number that is too long
        return None


def _dump_request(value: Any, what: str) -> Plain:
    """Return a request with marks; an error names the argument."""
    if not isinstance(value, dict) or not value.keys() <= {"args", "kwargs"}:
        return dumped(value, what)
    args = [dumped(each, f"{what}: argument {number}") for number, each in enumerate(value.get("args", ()), 1)]
    kwargs = {name: dumped(each, f"{what}: {name}") for name, each in value.get("kwargs", {}).items()}
    return {"args": args, "kwargs": kwargs} if "args" in value else {"kwargs": kwargs}


def _in_order(value: Any, data: bytes) -> bytes:
    """Return the JSON with the elements of sets sorted, because their order differs in each process."""
    try:
        inside = marshal.dumps(value, _MARSHAL_VALUES)
    except ValueError:
        return _sorted_sets(value, data)
    # The type codes of sets may occur in texts, too.
    may_be = any(each in inside for each in _SETS_OF_MARSHAL) and _has_sets(value)
    return _sorted_sets(value, data) if may_be else data


def _has_sets(value: Any) -> bool:
    """Return whether anything in Python's own containers is a set, or is not one of Python's own values."""
    kind = type(value)
    if kind is dict:
        return any(map(_has_sets, value.values()))
    if kind is list or kind is tuple:
        return any(map(_has_sets, value))
    return kind not in _SETLESS


class Shape:
    """How answers of one callable are recorded, and restored."""

    def __init__(self, returns: Any, what: str) -> None:
        """Define the form of answers.

        Args:
            returns: Their type; None if they are JSON values.
            what: The name in errors.
        """
        self._returns = returns
        self._what = what

    def recorded(self, answer: object) -> bytes:
        """Return the answer's JSON.

        Raises:
            InputError: Another value would be restored. The message says how to name the type.
        """
        if answer is None or self._returns is None:
            return self._encode_answer(answer)
        data = self._encode_typed(answer)
        return data if data is not None else _encode({ANSWER: decoded(self._encode_answer(answer))})

    def served(self, answer: Plain) -> Any:
        """Return the answer as the code got it.

        Raises:
            InputError: It no longer has the type.
        """
        if answer is None or self._returns is None:
            return loaded(answer) if isinstance(answer, dict | list) and MARK in _encode(answer) else answer
        if isinstance(answer, dict) and answer.keys() == {ANSWER}:
            return loaded(answer)
        try:
            return msgspec.convert(answer, self._returns, str_keys=True, dec_hook=_load_model)
        except (msgspec.ValidationError, TypeError, ValueError, NotImplementedError) as error:
            raise InputError(f"{self._what}: the recorded answer is not a {_name(self._returns)}: {error}") from error

    def _encode_answer(self, answer: object) -> bytes:
        try:
            return kept(answer, f"{self._what}: its answer")
        except InputError as error:
            raise InputError(
                f"{error}; or give a type that msgspec or pydantic can decode from JSON, as returns="
            ) from None

    def _encode_typed(self, answer: Any) -> bytes | None:
        """Return the JSON of the named type; None if a replay would restore another value."""
        try:
            data = _json(answer)
            tree = _holdable(data, self._what)
            again = self.served(tree)
        except (*_NOT_JSON, InputError):
            return None
        if isinstance(tree, dict) and tree.keys() == {ANSWER}:
            return None
        if hasattr(answer, "model_dump"):  # equality would include parts that are not recorded: time, sender
            is_same = hasattr(again, "model_dump") and _json(again) == data
        elif type(answer).__eq__ is object.__eq__:  # type: ignore[comparison-overlap]
            is_same = type(again) is type(answer) and _json(again) == data
        else:
            is_same = type(again) is type(answer) and bool(again == answer)
        return data if is_same else None


def shape_of(function: Callable[..., Any], returns: Any, what: str) -> Shape:
    """Return the shape of a function's answers.

    Args:
        function: The function.
        returns: The type of its answers; None for its annotation, else JSON.
        what: Its name, for errors.
    """
    if returns is None:
        return Shape(_annotated(getattr(function, "__func__", function)), what)
    return Shape(None if _is_plain_type(returns) else returns, what)


def _annotated(function: Any) -> Any:
    """Return a function's annotation, None if that is JSON.

    It is cached, because it takes longer than everything else about a call.
    """
    try:
        return _annotations[function]
    except (KeyError, TypeError):  # not cached yet, or not hashable
        pass
    try:
        found = typing.get_type_hints(function).get("return")
    except Exception:  # annotations may name types that are imported only for type checkers
        found = None
    found = None if _is_plain_type(found) else found
    with contextlib.suppress(TypeError):
        _annotations[function] = found
    return found


def _is_plain_type(returns: Any) -> bool:
    """Return whether values of the type are JSON values without conversion."""
    origin = typing.get_origin(returns) or returns
    if origin in (dict, list):
        return all(map(_is_plain_type, typing.get_args(returns)))
    if origin in _SCALARS or origin in (None, Any, object):
        return True
    parts = typing.get_args(returns)
    return origin in (typing.Union, _UNION) and all(map(_is_plain_type, parts))


_UNION = type(int | str)


def _dump_model(value: Any) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} is not a JSON value")


_encode = msgspec.json.Encoder(enc_hook=_dump_model).encode
_NOT_JSON = (TypeError, NotImplementedError, OverflowError, ValueError, RecursionError)


def _load_model(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"{_name(kind)} cannot be made from JSON")


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _json(answer: object) -> bytes:
    return _sorted_sets(answer, _encode(answer))


def _sorted_sets(value: object, data: bytes) -> bytes:
    """Return JSON with the elements of sets sorted, because their order differs in each process. Other orders stay."""
    if b"[" not in data:
        return data
    ordered = msgspec.json.encode(value, enc_hook=_dump_model, order="deterministic")
    return data if decoded(ordered) == decoded(data) else ordered


def _holdable(data: bytes, what: str) -> Plain:
    """Return the value of JSON.

    Raises:
        InputError: A log cannot hold it.
    """
    try:
        return _decoder().decode(data)
    except msgspec.ValidationError:
        tree = decoded(data)
        _require_holdable(tree, what, DEPTH_MAX)
        return tree


@cache
def _decoder() -> msgspec.json.Decoder[Plain]:
    """Return a decoder that limits the number of levels and integers to 64 bits, as fast as one that checks nothing."""
    inner: Any = None | bool | _INTEGER | float | str
    for _ in range(_LEVELS_SEEN):  # the type doubles with each pass
        inner = None | bool | _INTEGER | float | str | list[inner] | dict[str, inner]
    return msgspec.json.Decoder(inner)


def _require_holdable(tree: Plain, what: str, levels: int) -> None:
    if isinstance(tree, dict | list):
        if not levels:
            raise InputError(f"{what} cannot be recorded: it has more than {DEPTH_MAX} levels; make it flatter")
        for each in tree.values() if isinstance(tree, dict) else tree:
            _require_holdable(each, what, levels - 1)
    elif type(tree) is int and not INTEGER_MIN <= tree < INTEGER_END:
        raise InputError(f"{what} cannot be recorded: {tree} is not an integer of 64 bits; give it as text")
