"""What a run can keep: JSON values, and objects that become JSON and come back from it.

A recorded answer is served again in a replay, so what the agent's code gets must be the same object then. JSON values
are. Of any other the code has to say what it is: a type that msgspec reads (dataclasses, TypedDicts, NamedTuples, sets,
datetimes...), or one with `model_dump` and `model_validate` (pydantic's, which most model clients return).

What would come back as something else is refused where it is recorded, not where it is replayed. So is what a log
cannot hold (avro/canonical.py): integers past 64 bits, and more than DEPTH_MAX levels.
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

from refold.agents.journal.record import Plain
from refold.avro.canonical import INTEGER_END, INTEGER_MIN, MAX_DEPTH
from refold.avro.errors import InputError

# A journal has a value up to 16 levels down, and a float or an object that looks like one's mark a level further.
DEPTH_MAX = MAX_DEPTH // 2 - 16

_SCALARS = (str, int, float, bool, type(None))
_NOUGHTS = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER = b"0" * 19
_LEVELS_SEEN = 6
_INTEGER = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_annotations: MutableMapping[Any, Any] = WeakKeyDictionary()
# A form of marshal that has nothing in it but values: no references to be looked for.
_MARSHAL_VALUES = 2


def encoded(value: object, what: str) -> bytes:
    """A value's JSON; InputError where it has none. Objects that JSON can hold become it; nothing is kept of it."""
    data = captured(value, what)
    # Seen without looking at each value, of many: too few brackets to be deep, no number that long.
    if data.count(b"[") + data.count(b"{") > DEPTH_MAX or _LONG_NUMBER in data.translate(_NOUGHTS):
        _holdable(data, what)
    return data


def captured(value: object, what: str) -> bytes:
    """As `encoded`, of what is not to be recorded: no log need be able to hold it."""
    try:
        return _encode(value)
    except (TypeError, NotImplementedError, OverflowError, ValueError, RecursionError) as error:
        raise InputError(
            f"{what} cannot be recorded: {error}; give JSON values (text, numbers, lists, dicts)"
        ) from None


def decoded(data: bytes) -> Plain:
    """The value behind `encoded`."""
    return msgspec.json.decode(data)


def kept(value: Any, what: str) -> bytes:
    """The JSON of a value that comes back from it as it is; InputError where it would come back as something else."""
    data = captured(value, what)
    is_same = _holdable(data, what) == value
    try:  # it knows Python's own types alone: of these, what comes back equal is of the same types
        marshal.dumps(value, _MARSHAL_VALUES)
    except ValueError:  # a subclass of dict, an enumeration
        is_same = False
    if not is_same:
        raise InputError(
            f"{what} is a {type(value).__qualname__} that would come back from the record as something else: keep JSON "
            "values in it (text, finite numbers, lists, dicts by text)"
        )
    return data


class Shape:
    """How answers of one callable are recorded, and served again."""

    def __init__(self, returns: Any, what: str) -> None:
        """returns: the type of the answers; None where they are JSON values."""
        self._returns = returns
        self._what = what

    def recorded(self, answer: object) -> bytes:
        """The answer's JSON. InputError says how to name its type where it would come back as something else."""
        if answer is None or self._returns is None:
            return self._plain(answer)
        data = _json(answer, self._what)
        self._require_same(answer, data)
        return data

    def served(self, answer: Plain) -> Any:
        """The answer as the code got it. InputError where it is none of the type any more."""
        if answer is None or self._returns is None:
            return answer
        try:
            return msgspec.convert(answer, self._returns, str_keys=True, dec_hook=_loaded)
        except (msgspec.ValidationError, TypeError, ValueError, NotImplementedError) as error:
            raise InputError(f"{self._what}: the recorded answer is no {_name(self._returns)}: {error}") from error

    def _plain(self, answer: object) -> bytes:
        try:
            return kept(answer, self._what)
        except InputError as error:
            name = type(answer).__qualname__
            if type(answer) in (dict, list, *_SCALARS):
                raise InputError(f"{error}; or name the type of what it answers with, as returns=") from None
            raise InputError(
                f"{self._what} answered with a {name}, which a replay could not give back: name the type, as "
                f"returns={name}, or have JSON values returned"
            ) from None

    def _require_same(self, answer: object, data: bytes) -> None:
        """InputError unless what a replay would give is the same object."""
        again = self.served(decoded(data))
        if hasattr(answer, "model_dump"):  # two are equal only with what is no part of them: when it was sent, by whom
            is_same = hasattr(again, "model_dump") and _json(again, self._what) == data
        elif type(answer).__eq__ is object.__eq__:
            is_same = type(again) is type(answer) and _json(again, self._what) == data
        else:
            is_same = type(again) is type(answer) and bool(again == answer)
        if not is_same:
            raise InputError(
                f"{self._what} answered with a {type(answer).__qualname__}, which a replay would give back as another "
                f"{type(again).__qualname__}: name the type that it answers with, as returns=, down to its parts"
            )


def shape_of(function: Callable[..., Any], returns: Any, what: str) -> Shape:
    """The shape of a function's answers: the type that is given, else the one it is annotated with, else JSON."""
    if returns is None:
        returns = _annotated(getattr(function, "__func__", function))
    return Shape(None if _is_plain_type(returns) else returns, what)


def _annotated(function: Any) -> Any:
    """What a function is annotated with; looked up once, for that takes longer than all else about a call."""
    try:
        return _annotations[function]
    except (KeyError, TypeError):  # not looked up before, or nothing to remember it by
        pass
    try:
        found = typing.get_type_hints(function).get("return")
    except Exception:  # annotations may name what is only imported for type checkers
        found = None
    with contextlib.suppress(TypeError):
        _annotations[function] = found
    return found


def _is_plain_type(returns: Any) -> bool:
    """Whether values of the type are JSON values as they are."""
    origin = typing.get_origin(returns) or returns
    if origin in (dict, list):
        return all(map(_is_plain_type, typing.get_args(returns)))
    if origin in _SCALARS or origin in (None, Any, object):
        return True
    parts = typing.get_args(returns)
    return origin in (typing.Union, _UNION) and all(map(_is_plain_type, parts))


_UNION = type(int | str)


def _dumped(value: Any) -> object:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__qualname__} is no JSON value")


_encode = msgspec.json.Encoder(enc_hook=_dumped).encode


def _loaded(kind: Any, value: Any) -> Any:
    if hasattr(kind, "model_validate"):
        return kind.model_validate(value)
    raise NotImplementedError(f"{_name(kind)} cannot be made from JSON")


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) else str(kind)


def _json(answer: object, what: str) -> bytes:
    """JSON with the elements of sets sorted: their order is another in each process. Other orders stay."""
    data = encoded(answer, what)
    if b"[" not in data:
        return data
    ordered = msgspec.json.encode(answer, enc_hook=_dumped, order="deterministic")
    return data if decoded(ordered) == decoded(data) else ordered


def _holdable(data: bytes, what: str) -> Plain:
    """The value behind JSON; InputError where a log cannot hold it."""
    try:
        return _decoder().decode(data)
    except msgspec.ValidationError:
        tree = decoded(data)
        _require_holdable(tree, what, DEPTH_MAX)
        return tree


@cache
def _decoder() -> msgspec.json.Decoder[Plain]:
    """Takes no more than some levels, and integers of 64 bits: as fast as one that looks at nothing."""
    inner: Any = None | bool | _INTEGER | float | str
    for _ in range(_LEVELS_SEEN):  # the type doubles with each
        inner = None | bool | _INTEGER | float | str | list[inner] | dict[str, inner]
    return msgspec.json.Decoder(inner)


def _require_holdable(tree: Plain, what: str, levels: int) -> None:
    if isinstance(tree, dict | list):
        if not levels:
            raise InputError(f"{what} cannot be recorded: it has more than {DEPTH_MAX} levels; keep it flatter")
        for each in tree.values() if isinstance(tree, dict) else tree:
            _require_holdable(each, what, levels - 1)
    elif type(tree) is int and not INTEGER_MIN <= tree < INTEGER_END:
        raise InputError(f"{what} cannot be recorded: {tree} is no integer of 64 bits; give it as text")
