"""Values of every type that runs can store, and an agent that uses one of them wherever a run stores values."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import os
import signal
import sys
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import pydantic

import refold

CODE = "from refold_tests.recordable_values import main; main()"


class Colour(enum.Enum):
    """An enumeration."""

    RED = "red"
    BLUE = (0, 0, 255)


class Word(enum.StrEnum):
    """An enumeration whose members are text."""

    YES = "yes"


class Rights(enum.Flag):
    """Flags."""

    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    """A named tuple."""

    left: Any
    right: Any


@dataclasses.dataclass
class Item:
    """A dataclass."""

    name: str
    price: Decimal
    more: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """An immutable dataclass of other values."""

    items: tuple[Item, ...]
    colour: Colour
    count: int = dataclasses.field(init=False, default=3)


class Ticket(pydantic.BaseModel):
    """A model of pydantic's."""

    id: int
    opened: dt.datetime
    item: Item | None = None
    tags: set[str] = set()


class Open(pydantic.BaseModel):
    """One that takes what it does not know."""

    model_config = pydantic.ConfigDict(extra="allow")
    name: str = "nobody"


class Part(msgspec.Struct):
    """A Struct of msgspec's."""

    number: int
    inside: Any = None


class Outer:
    """A class with a nested class."""

    @dataclasses.dataclass
    class Inner:
        """A dataclass within a class."""

        size: float


_WHEN = dt.datetime(2026, 3, 4, 5, 6, 7, 89)  # noqa: DTZ001  # one without a zone is a kind of its own
_ITEM = Item("tea", Decimal("1.20"))

KINDS: dict[str, Callable[[], Any]] = {
    "json": lambda: {"b": [1, 1.0, "x", None, True], "a": {}},
    "dataclass": lambda: Item("tea", Decimal("4.50"), {"x": (1, 2)}),
    "nested dataclass": lambda: [Order((_ITEM, Item("pot", Decimal(-3), _ITEM)), Colour.RED)],
    "inner dataclass": lambda: Outer.Inner(1.0),
    "pydantic": lambda: Ticket(id=7, opened=_WHEN, item=_ITEM, tags={"b", "a"}),
    "pydantic unset": lambda: Ticket(id=7, opened=_WHEN),
    "pydantic extra": lambda: Open(name="x", colour=Colour.BLUE),  # type: ignore[call-arg]
    "struct": lambda: Part(1, Part(2)),
    "named tuple": lambda: Pair(1, [Pair("a", (1,))]),
    "tuple": lambda: ((), (1, [2, (3,)])),
    "set": lambda: {"b", "a", (1, frozenset({2}))},
    "frozenset": lambda: frozenset({1.5, None}),
    "bytes": lambda: [b"", b"\x00\xff"],
    "bytearray": lambda: bytearray(b"abc"),
    "datetime": lambda: [
        _WHEN,
        _WHEN.replace(tzinfo=dt.UTC),
        _WHEN.replace(tzinfo=dt.timezone(dt.timedelta(hours=-3))),
    ],
    "datetime in a zone": lambda: dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    "date and time": lambda: {"on": dt.date(2026, 1, 2), "at": dt.time(3, 4, 5, 6, tzinfo=dt.UTC)},
    "timedelta": lambda: dt.timedelta(days=-2, seconds=3, microseconds=4),
    "decimal": lambda: [Decimal("1.20"), Decimal("-0"), Decimal("1E+400"), Decimal("Infinity")],
    "uuid": lambda: UUID("12345678-1234-5678-1234-567812345678"),
    "enum": lambda: {"colour": Colour.BLUE, "word": Word.YES, "rights": Rights.READ | Rights.WRITE},
    "path": lambda: [Path("/tmp/a b"), PurePosixPath("x"), PureWindowsPath("c:\\y")],
    "keys": lambda: {1: "a", (2, 3): "b", Colour.RED: {None: 1}},
    "what looks like a mark": lambda: {"refold.tuple": [1], "x": {"refold.class": "os:system", "refold.plain": (1,)}},
}
"""The name of each kind, and what creates a value of it."""

EVERY = "all of them"


def made_of(kind: str) -> Callable[[], Any]:
    """Return the function that creates a value of a kind, or of all kinds."""
    return KINDS[kind] if kind != EVERY else lambda: {name: make() for name, make in KINDS.items()}


def parts(value: Any) -> Any:
    """Reduce a value to builtins, with the type of every part."""
    kind = type(value).__qualname__
    if dataclasses.is_dataclass(value):
        return kind, {each.name: parts(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, pydantic.BaseModel):
        return kind, {name: parts(each) for name, each in value}, sorted(value.model_fields_set)
    if isinstance(value, msgspec.Struct):
        return kind, {name: parts(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return kind, [(parts(key), parts(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return kind, [parts(each) for each in value]
    if isinstance(value, set | frozenset):
        return kind, sorted((parts(each) for each in value), key=repr)
    return kind, repr(value)


def require_same(found: Any, made: Callable[[], Any], place: str) -> None:
    """Fail unless the value equals another one that is created the same way, in value and type."""
    wanted = made()
    assert parts(found) == parts(wanted), place
    assert found == wanted, place


CALLED: list[str] = []
"""The calls that were really made."""


@refold.tool(effect="read")
def echo(value: Any) -> Any:
    """A read tool."""
    CALLED.append("echo")
    return value


@refold.tool(effect="write")
def send(value: Any) -> Any:
    """A write tool."""
    CALLED.append("send")
    return value


def chat(value: Any) -> Any:
    """A model's client."""
    CALLED.append("chat")
    return value


def agent(run: refold.Run, kind: str, *, dies: bool = False) -> Any:
    """Use the value in every place. dies: its process is killed in its last step."""
    made = made_of(kind)
    require_same(run.input["value"], made, "input")
    require_same(run.state["begun"], made, "state at the start")
    require_same(run.step("made", echo, made()), made, "result of a step")
    with run.step("called"):
        require_same(echo(value=made()), made, "answer of a read tool")
        require_same(send(made()), made, "answer of a write tool")
        require_same(run.model(chat, value=made()), made, "answer of a model")
        run.state["kept"] = [made()]
    with run.step("changed"):
        require_same(run.state["kept"][0], made, "state")
        run.state["kept"].append(made())
    if dies:
        run._sink.await_written()  # everything recorded so far is durable, so that the test knows the run's position
        os.kill(os.getpid(), signal.SIGKILL)
    with run.step("read again"):
        require_same(run.state["kept"][1], made, "state behind a step")
        require_same(run.state["begun"], made, "state at the start, later")
    return {"value": made()}


def everything(run: refold.Run) -> Any:
    """Run the agent with one value of every kind."""
    return agent(run, EVERY)


def begun(log: Any, kind: str, run: str) -> refold.Run:
    """Return a run of the agent that can be driven."""
    made = made_of(kind)
    found: refold.Run = log.run("keeper", id=run, input={"value": made()}, state={"begun": made()})
    return found


def main() -> None:
    """Begin a run, whose process is killed."""
    with refold.open(sys.argv[1]) as log:
        begun(log, EVERY, "killed").drive(partial(agent, kind=EVERY, dies=True))
