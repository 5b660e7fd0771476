"""Requests of other processes to a log's owner. They are validated by the rules of the Python interface first.

    append    [[id, framed bytes]]          ids of 32 bytes; the owner decodes the bytes and computes each id again
    flush     null
    register  an annotated Avro schema      as avro/definition.py reads it
    mark      {marked: [name, cut, marked_at], replace}   a name as `Log.mark` takes it, a cut of this log
    snapshot  pinned_at                     milliseconds since 1970, or null
    pin       {epochs: [[partition, offset, schemas]], pinned_at}
    collect   {dry_run, damaged}
    recover   wait                          true or false

Numbers are integers in [0, 2^63); true and false are not numbers. Anything else raises InputError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

from refold.avro.definition import TypeDefinition, parse
from refold.avro.envelope import check_name
from refold.avro.errors import InputError, SchemaError
from refold.avro.observation import ID_BYTES
from refold.avro.times import TIME_MAX
from refold.streams.cut import Cut, parse_cut
from refold.streams.log.port import Marked
from refold.streams.snapshots.manifest import Epoch

NUMBER_END = 2**63
MILLIS_MAX = TIME_MAX // 1000


class Mark(NamedTuple):
    """A request `mark`."""

    marked: Marked
    cut: Cut
    replace: bool


class PinQuestion(NamedTuple):
    """A request `pin`."""

    epochs: Sequence[Epoch]
    pinned_at: int | None


def appended(payload: object) -> list[tuple[bytes, bytes]]:
    """The observations of `append`."""
    return [_appended(each) for each in _list(payload, "append")]


def nothing(payload: object) -> None:
    """`flush` has no payload."""
    if payload is not None:
        _refuse("flush")


def registered(payload: object) -> TypeDefinition:
    """The definition of `register`.

    Raises:
        SchemaError: It is invalid.
    """
    if not isinstance(payload, dict):
        _refuse("register")
    try:
        return parse(payload)
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise SchemaError(f"definition: this is no annotated Avro schema ({type(error).__name__})") from error


def mark(payload: object) -> Mark:
    """The marker of `mark`."""
    given = _fields(payload, "mark", "marked", "replace")
    parts = _list(given["marked"], "mark")
    if len(parts) != 3:
        _refuse("mark")
    name, text, marked_at = parts
    check_name(name, "marker")
    if not isinstance(text, str):
        _refuse("mark")
    cut = parse_cut(text)
    found = Marked(str(name), str(cut), _millis(marked_at, "mark"))
    return Mark(found, cut, _flag(given["replace"], "mark"))


def pinned_at(payload: object) -> int | None:
    """The payload of `snapshot`."""
    return None if payload is None else _millis(payload, "snapshot")


def pin(payload: object) -> PinQuestion:
    """The epochs of `pin`."""
    given = _fields(payload, "pin", "epochs", "pinned_at")
    epochs = [_epoch(each) for each in _list(given["epochs"], "pin")]
    return PinQuestion(epochs, None if given["pinned_at"] is None else _millis(given["pinned_at"], "pin"))


def collect(payload: object) -> dict[str, bool]:
    """The flags of `collect`."""
    given = _fields(payload, "collect", "dry_run", "damaged")
    return {name: _flag(value, "collect") for name, value in given.items()}


def wait(payload: object) -> bool:
    """The payload of `recover`."""
    return _flag(payload, "recover")


def _appended(given: object) -> tuple[bytes, bytes]:
    match given:
        case [bytes(observation_id), bytes(data)] if len(observation_id) == ID_BYTES:
            return observation_id, data
    _refuse("append")


def _epoch(given: object) -> Epoch:
    parts = [_number(each, NUMBER_END - 1, "pin") for each in _list(given, "pin")]
    if len(parts) != 3:
        _refuse("pin")
    return Epoch(*parts)


def _list(given: object, op: str) -> list[object]:
    if not isinstance(given, list):
        _refuse(op)
    return given


def _fields(given: object, op: str, *names: str) -> Mapping[str, object]:
    if not isinstance(given, dict) or given.keys() != set(names):
        _refuse(op)
    return given


def _number(given: object, greatest: int, op: str) -> int:
    if type(given) is not int or not 0 <= given <= greatest:
        _refuse(op)
    return given


def _millis(given: object, op: str) -> int:
    return _number(given, MILLIS_MAX, op)


def _flag(given: object, op: str) -> bool:
    if not isinstance(given, bool):
        _refuse(op)
    return given


def _refuse(op: str) -> NoReturn:
    raise InputError(
        f"what was sent with {op} is not valid for the log's owner; use the same release in both processes"
    )
