"""Python values that JSON does not have, as JSON, so that an agent's state is restored with equal values.

    (1, 2)                {"refold.tuple": [1, 2]}
    {1, 2}, frozenset     {"refold.set": [1, 2]}, {"refold.frozenset": ...}: elements in the order of their JSON
    {1: "a"}              {"refold.dict": [[1, "a"]]}: a dict with keys that are not text
    b"x", bytearray       {"refold.bytes": "eA=="}, {"refold.bytearray": ...}: base64
    datetime              {"refold.datetime": "2026-01-02T03:04:05+01:00"}; with "zone": "Europe/Berlin", "fold": 1
    date, time            {"refold.date": "2026-01-02"}, {"refold.time": "03:04:05"}
    timedelta             {"refold.timedelta": [days, seconds, microseconds]}
    Decimal, UUID         {"refold.decimal": "1.20"}, {"refold.uuid": "..."}
    Path                  {"refold.path": "/tmp/a"}; with "pure": "posix" or "windows" for a PurePath
    Colour.RED            {"refold.class": "shop:Colour", "refold.member": "RED"}; "refold.value" for a mix of flags
    Order(total=5)        {"refold.class": "shop:Order", "total": 5}: dataclasses, named tuples, msgspec's Structs, and
                          pydantic models, these with "refold.unset" (fields that were not set) and "refold.extra"
    a dict with such key  {"refold.plain": dict}
    any of these          {"refold.answer": value}, if the named type is not that of the answer (recorder/plain.py)

Law: loaded(dumped(value)) equals the value, in value and in type; or `dumped` refuses the value and names its path.

A class is searched among those that are loaded (class_names.py): data never loads code. An object is created from its
fields without its constructor (pydantic: `model_construct`), and only if its class has exactly these fields. An object
whose class is not loaded, or was changed, is restored as a StandIn. A value whose text a redactor changed is restored
as that text.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import enum
import functools
import math
import sys
import types
import zoneinfo
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID

import msgspec

from refold.agents.journal.class_names import class_name, loaded_class
from refold.agents.journal.record import Plain
from refold.avro.canonical import INTEGER_END, INTEGER_MIN
from refold.avro.errors import InputError

MARK = b'"refold.'
"""Occurs in the JSON of every value that is not plain JSON."""

ANSWER = "refold.answer"
_CLASS, _MEMBER, _VALUE = "refold.class", "refold.member", "refold.value"
_UNSET, _EXTRA = "refold.unset", "refold.extra"
_OF_A_CLASS = {_CLASS, _UNSET, _EXTRA}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_ADVICE = "use its parts: JSON values, a dataclass, a pydantic model"


class _NotRecordable(Exception):
    """A value cannot be recorded.

    Attributes:
        path: The value's position, from the innermost part outwards.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


class StandIn:
    """Replaces an object whose class is not loaded, or no longer has the same fields.

    The fields are its attributes; for a member of an enumeration, `name` or `value`. It is recorded as the object was.
    """

    def __init__(self, tree: Mapping[str, Plain]) -> None:
        self._tree = tree
        shown = {"refold.member": "name", "refold.value": "value"}
        members = {shown.get(key, key): value for key, value in tree.items() if key not in _OF_A_CLASS}
        self._fields = {key: loaded(value) for key, value in {**tree.get(_EXTRA, {}), **members}.items()}

    def __getattr__(self, name: str) -> Any:
        fields = self.__dict__.get("_fields", {})
        if name in fields:
            return fields[name]
        raise AttributeError(
            f"{self.__dict__.get('_tree', {}).get(_CLASS)} is not loaded here, or has changed, so this is a stand-in "
            f"with its recorded fields alone, and none is called {name}: import its module first"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StandIn) and self._tree == other._tree

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self._tree))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._fields.items())
        return f"<stand-in for {self._tree[_CLASS]}({fields})>"


def dumped(value: object, what: str) -> Plain:
    """Return a value as JSON.

    Args:
        value: Any value.
        what: Its name in an error, such as `run.state`.

    Raises:
        InputError: The value contains something that cannot be recorded. The message has its path, and what to do.
    """
    try:
        return _dump_value(value)
    except _NotRecordable as unkept:
        raise InputError(f"{what}{''.join(reversed(unkept.path))}: {unkept.reason}") from None
    except RecursionError:
        raise InputError(
            f"{what} cannot be recorded: it has too many levels, or holds itself; keep it flatter"
        ) from None


def loaded(tree: Plain) -> Any:
    """Return the value of what `dumped` returned; trees without a mark are copied unchanged."""
    if isinstance(tree, list):
        return [loaded(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    for key, load in _LOAD.items():
        if key in tree:
            try:
                return load(tree)
            except (ValueError, TypeError, KeyError, ArithmeticError, AttributeError):  # a redactor changed the text
                return loaded(tree[key])
    return {key: loaded(value) for key, value in tree.items()}


def loaded_json(data: bytes) -> Any:
    """Return the value of the JSON text of `dumped`."""
    tree = msgspec.json.decode(data)
    return loaded(tree) if MARK in data else tree


def bare(tree: Plain) -> Plain:
    """Return the tree without marks, for people to read: objects are their fields, tuples and sets are lists."""
    if isinstance(tree, list):
        return [bare(each) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if _CLASS in tree:
        for key in (_MEMBER, _VALUE):
            if key in tree:
                return bare(tree[key])
        fields = {key: value for key, value in tree.items() if key not in _OF_A_CLASS}
        return {key: bare(value) for key, value in {**fields, **tree.get(_EXTRA, {})}.items()}
    if "refold.plain" in tree and isinstance(tree["refold.plain"], dict):
        return {key: bare(value) for key, value in tree["refold.plain"].items()}
    if "refold.timedelta" in tree:
        return str(loaded(tree))
    marks = [key for key in tree if key in _LOAD]
    return bare(tree[marks[0]]) if marks else {key: bare(value) for key, value in tree.items()}


def is_mark(key: str | int) -> bool:
    """Return whether a key in such a tree is one of the marks, as opposed to a key of the value itself."""
    return key in _LOAD


def _dump_value(value: Any) -> Plain:
    kind = type(value)
    dump = _DUMP.get(kind)
    if dump is not None:
        return dump(value)
    if isinstance(value, StandIn):
        return value._tree
    if isinstance(value, enum.Enum):
        return _dump_enum(value)
    if isinstance(value, PurePath):
        return _dump_path(value)
    fields = _fields_of(value)
    if fields is None:
        raise _NotRecordable(_reason(value))
    found = {name: _dump_at(f".{name}", each) for name, each in fields.items()}
    named: dict[str, Plain] = {**found, _CLASS: _type_name(kind)}
    if _is_model(value):
        if extra := value.__pydantic_extra__:
            named[_EXTRA] = {name: _dump_at(f".{name}", each) for name, each in sorted(extra.items())}
        if unset := sorted(fields.keys() - value.__pydantic_fields_set__):
            named[_UNSET] = unset
    return dict(sorted(named.items()))


def _dump_at(place: str, value: object) -> Plain:
    try:
        return _dump_value(value)
    except _NotRecordable as unkept:
        unkept.path.append(place)
        raise


def _fields_of(value: Any) -> dict[str, Any] | None:
    """Return the fields from which an object can be created; None for an object that is not defined by its fields."""
    kind = type(value)
    names = getattr(kind, "_fields", None)
    if isinstance(value, tuple) and isinstance(names, tuple):
        return dict(zip(names, value, strict=True))
    if isinstance(value, type | list | dict | set | frozenset | tuple | str | bytes | bytearray | int | float):
        return None
    if _is_model(value):
        return {name: value.__dict__[name] for name in kind.model_fields if name in value.__dict__}
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in kind.__struct_fields__}
    if not dataclasses.is_dataclass(value) or isinstance(value, BaseException):
        return None
    names = [each.name for each in dataclasses.fields(value)]
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    more = [
        name for name in getattr(value, "__dict__", {})
        if name not in found and not isinstance(getattr(kind, name, None), functools.cached_property)
    ]  # fmt: skip
    if more or len(found) < len(names):
        what = f"{more[0]}, which is not one of its fields" if more else "a field that is not set"
        raise _NotRecordable(
            f"{_with_article(kind)} with {what}: such an object cannot be recorded; store all of its state in fields"
        )
    return found


def _is_model(value: object) -> bool:
    """Return whether a value is a pydantic model, without importing pydantic."""
    pydantic = sys.modules.get("pydantic")
    return pydantic is not None and isinstance(value, getattr(pydantic, "BaseModel", ()))


def _type_name(kind: type) -> str:
    name = class_name(kind)
    if not name:
        raise _NotRecordable(
            f"{_with_article(kind)} cannot be recorded: its class is not found as {kind.__module__}.{kind.__qualname__}"
            "; move the class to the top of its module"
        )
    return name


def _reason(value: object) -> str:
    """Return why a value cannot be recorded, and what to do."""
    kind = type(value)
    if isinstance(value, _FUNCTIONS):
        return "a function cannot be recorded; use its name, and look it up by that"
    if isinstance(value, type):
        return f"the class {value.__qualname__} cannot be recorded; use its name, and look it up by that"
    if isinstance(value, BaseException):
        return f"{_with_article(kind)} cannot be recorded; use its text"
    for base in (dict, list, set, frozenset, tuple, str, bytes, int, float):
        if isinstance(value, base):
            return f"{_with_article(kind)} cannot be recorded: it would be restored as a {base.__name__}; make it one"
    if hasattr(value, "__next__"):
        return f"{_with_article(kind)} cannot be recorded: it can be read only once; use a list of its values"
    return f"{_with_article(kind)} cannot be recorded; {_ADVICE}"


def _with_article(kind: type) -> str:
    """Return a class's name with its article: `a Thing`, `an Engine`."""
    name = kind.__qualname__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _dump_text(value: str) -> Plain:
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _NotRecordable(
                "a text with a lone surrogate (half a character) cannot be recorded; replace it"
            ) from None
    return value


def _dump_integer(value: int) -> Plain:
    if not INTEGER_MIN <= value < INTEGER_END:
        raise _NotRecordable("an integer of more than 64 bits cannot be recorded; use text")
    return value


def _dump_float(value: float) -> Plain:
    if not math.isfinite(value):
        raise _NotRecordable(f"{value} is not a JSON number and cannot be recorded; use None, or text")
    return value


def _dump_dict(value: dict[Any, Any]) -> Plain:
    if not all(type(key) is str for key in value):
        return {
            "refold.dict": [
                [_dump_at(" (a key)", key), _dump_at(f"[{_short_repr(key)}]", each)] for key, each in value.items()
            ]
        }
    for key in value:
        _dump_at(" (a key)", key)
    inner = {key: _dump_at(f"[{_short_repr(key)}]", each) for key, each in value.items()}
    return {"refold.plain": inner} if not _LOAD.keys().isdisjoint(inner) else inner


def _dump_list(value: list[Any] | tuple[Any, ...]) -> list[Plain]:
    return [_dump_at(f"[{index}]", each) for index, each in enumerate(value)]


def _dump_set(value: set[Any] | frozenset[Any]) -> list[Plain]:
    return sorted((_dump_at(f" (its element {_short_repr(each)})", each) for each in value), key=msgspec.json.encode)


def _dump_datetime(value: dt.datetime) -> Plain:
    zone: dict[str, Plain] = {}
    if isinstance(value.tzinfo, zoneinfo.ZoneInfo) and value.tzinfo.key in _zones():
        zone = {"zone": value.tzinfo.key}
    else:
        _require_offset(value)
    fold = {"fold": 1} if value.fold else {}
    return {**fold, "refold.datetime": value.isoformat(), **zone}


def _dump_time(value: dt.time) -> Plain:
    _require_offset(value)
    return {**({"fold": 1} if value.fold else {}), "refold.time": value.isoformat()}


def _require_offset(value: dt.datetime | dt.time) -> None:
    if value.tzinfo is not None and not isinstance(value.tzinfo, dt.timezone):
        raise _NotRecordable(
            f"{_with_article(type(value))} whose tzinfo is {_with_article(type(value.tzinfo))} cannot be recorded; use "
            "datetime.timezone, or for a datetime one of zoneinfo.available_timezones()"
        )


def _dump_enum(value: enum.Enum) -> Plain:
    kind = type(value)
    if kind.__members__.get(value.name) is value:
        return {_CLASS: _type_name(kind), _MEMBER: value.name}
    return {_CLASS: _type_name(kind), _VALUE: _dump_at(".value", value.value)}


def _dump_path(value: PurePath) -> Plain:
    kind = type(value)
    text = _dump_text(str(value))
    if kind is type(Path()):
        return {"refold.path": text}
    if kind in (PurePosixPath, PureWindowsPath):
        return {"pure": "posix" if kind is PurePosixPath else "windows", "refold.path": text}
    raise _NotRecordable(f"{_with_article(kind)} cannot be recorded; make it a pathlib.Path")


def _short_repr(key: object) -> str:
    shown = repr(key)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _base64(value: bytes | bytearray) -> str:
    return base64.b64encode(value).decode()


_DUMP: dict[type, Callable[[Any], Plain]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    str: _dump_text,
    int: _dump_integer,
    float: _dump_float,
    list: _dump_list,
    dict: _dump_dict,
    tuple: lambda value: {"refold.tuple": _dump_list(value)},
    set: lambda value: {"refold.set": _dump_set(value)},
    frozenset: lambda value: {"refold.frozenset": _dump_set(value)},
    bytes: lambda value: {"refold.bytes": _base64(value)},
    bytearray: lambda value: {"refold.bytearray": _base64(value)},
    dt.datetime: _dump_datetime,
    dt.date: lambda value: {"refold.date": value.isoformat()},
    dt.time: _dump_time,
    dt.timedelta: lambda value: {"refold.timedelta": [value.days, value.seconds, value.microseconds]},
    Decimal: lambda value: {"refold.decimal": str(value)},
    UUID: lambda value: {"refold.uuid": str(value)},
}


def _load_datetime(tree: Mapping[str, Plain]) -> dt.datetime:
    found = dt.datetime.fromisoformat(tree["refold.datetime"])
    zone = tree.get("zone")
    if zone in _zones():  # for an unknown name, ZoneInfo would search files and packages
        found = found.replace(tzinfo=zoneinfo.ZoneInfo(zone))
    return found.replace(fold=1 if tree.get("fold") else 0)


@functools.cache
def _zones() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones())


def _load_time(tree: Mapping[str, Plain]) -> dt.time:
    return dt.time.fromisoformat(tree["refold.time"]).replace(fold=1 if tree.get("fold") else 0)


def _load_timedelta(tree: Mapping[str, Plain]) -> dt.timedelta:
    days, seconds, microseconds = tree["refold.timedelta"]
    return dt.timedelta(days, seconds, microseconds)


def _load_path(tree: Mapping[str, Plain]) -> PurePath:
    kind = {"posix": PurePosixPath, "windows": PureWindowsPath}.get(tree.get("pure", ""), Path)
    return kind(tree["refold.path"])


def _instance(tree: Mapping[str, Plain]) -> Any:
    try:
        found = _object_of(tree)
    except Exception:  # a class may run any code when it is created
        found = None
    return StandIn(tree) if found is None else found


def _object_of(tree: Mapping[str, Plain]) -> Any:
    """Return the object; None if its class is not loaded or does not match."""
    kind: Any = loaded_class(tree[_CLASS])
    if kind is None:
        return None
    if issubclass(kind, enum.Enum):
        return kind.__members__.get(tree[_MEMBER]) if _MEMBER in tree else kind(loaded(tree[_VALUE]))
    fields = {name: loaded(value) for name, value in tree.items() if name not in _OF_A_CLASS}
    if issubclass(kind, tuple):
        is_fit = fields.keys() == set(getattr(kind, "_fields", ()))
        return tuple.__new__(kind, [fields[name] for name in kind._fields]) if is_fit else None
    if issubclass(kind, msgspec.Struct):
        return kind(**fields) if fields.keys() == set(kind.__struct_fields__) else None
    pydantic: Any = sys.modules.get("pydantic")
    if pydantic is not None and issubclass(kind, pydantic.BaseModel):
        if not fields.keys() <= kind.model_fields.keys():
            return None
        extra = {name: loaded(value) for name, value in tree.get(_EXTRA, {}).items()}
        given = fields.keys() - set(tree.get(_UNSET, ()))
        return kind.model_construct(_fields_set=given | extra.keys(), **fields, **extra)
    if not dataclasses.is_dataclass(kind) or fields.keys() != {each.name for each in dataclasses.fields(kind)}:
        return None
    instance = object.__new__(kind)  # type: ignore[arg-type]
    for name, value in fields.items():
        object.__setattr__(instance, name, value)
    return instance


_LOAD: dict[str, Callable[[Mapping[str, Plain]], Any]] = {
    _CLASS: _instance,
    ANSWER: lambda tree: loaded(tree[ANSWER]),
    "refold.plain": lambda tree: {key: loaded(value) for key, value in tree["refold.plain"].items()},
    "refold.dict": lambda tree: {loaded(key): loaded(value) for key, value in tree["refold.dict"]},
    "refold.tuple": lambda tree: tuple(map(loaded, tree["refold.tuple"])),
    "refold.set": lambda tree: set(map(loaded, tree["refold.set"])),
    "refold.frozenset": lambda tree: frozenset(map(loaded, tree["refold.frozenset"])),
    "refold.bytes": lambda tree: base64.b64decode(tree["refold.bytes"], validate=True),
    "refold.bytearray": lambda tree: bytearray(base64.b64decode(tree["refold.bytearray"], validate=True)),
    "refold.datetime": _load_datetime,
    "refold.date": lambda tree: dt.date.fromisoformat(tree["refold.date"]),
    "refold.time": _load_time,
    "refold.timedelta": _load_timedelta,
    "refold.decimal": lambda tree: Decimal(tree["refold.decimal"]),
    "refold.uuid": lambda tree: UUID(tree["refold.uuid"]),
    "refold.path": _load_path,
}
