"""One entity: the answers of `refold state`, `refold history`, `refold diff` and `refold why`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold.agents.log import AgentLog
from refold.avro.errors import InputError, UnknownEntity
from refold.avro.observation import type_of
from refold.explorer.queries.query import arguments_of
from refold.explorer.queries.sealed import Opener
from refold.explorer.queries.shapes import row_json, state_json, why_json
from refold.explorer.queries.untimed import untimed_json
from refold.streams.changes import Row
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.point import Point
from refold.streams.view import EntityView, TraceLink

RECORDED = "recorded"


def _clock(clock: str) -> str:
    """Return the value of the option --clock, empty for the default."""
    return "" if clock == RECORDED else clock


@dataclass(frozen=True, slots=True)
class StateQuery:
    """The state of an entity at a point.

    Attributes:
        clock: The time that a WHEN means: "recorded" or "observed".
    """

    entity: str
    at: str | None = None
    clock: str = RECORDED

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold state`."""
        return arguments_of(["state"], {"at": self.at, "clock": _clock(self.clock)}, self.entity)

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return the entity's fields, each with its origin."""
        point = log.point(self.at, self.entity, self.clock)
        return opened_state_json(log, point, log.state(self.entity, point.cut))


def opened_state_json(log: AgentLog, point: Point, view: EntityView) -> dict[str, Any]:
    """Return a state in JSON. Sealed values are opened if their key is available."""
    found: dict[str, Any] = untimed_json(log, Opener(log).state(state_json(point, view)), point.cut)
    return found


def opened_rows_json(log: AgentLog, rows: list[Row], cut: Cut) -> list[dict[str, Any]]:
    """Return mutations in JSON. Sealed values are opened if their key is available."""
    found: list[dict[str, Any]] = untimed_json(log, [Opener(log).row(row_json(row)) for row in rows], cut)
    return found


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """The changes of an entity between two points."""

    entity: str
    since: str | None = None
    until: str | None = None
    clock: str = RECORDED

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold history`."""
        named = {"since": self.since, "until": self.until, "clock": _clock(self.clock)}
        return arguments_of(["history"], named, self.entity)

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each mutation."""
        last = log.point(self.until, self.entity, self.clock)
        first = None if self.since is None else log.point(self.since, self.entity, self.clock)
        rows = log.history(
            self.entity, since=None if first is None else first.cut, until=last.cut, clock=self.clock, python=False
        )
        return opened_rows_json(log, rows, last.cut)


@dataclass(frozen=True, slots=True)
class DiffQuery:
    """The changes from one point to another, of one entity or of the whole log."""

    a: str
    b: str
    entity: str | None = None
    clock: str = RECORDED

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold diff`."""
        places = [self.a, self.b, *([] if self.entity is None else [self.entity])]
        return arguments_of(["diff"], {"clock": _clock(self.clock)}, *places)

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each mutation."""
        before, after = (log.point(each, self.entity, self.clock) for each in (self.a, self.b))
        return opened_rows_json(log, log.diff(before.cut, after.cut, self.entity, python=False), after.cut)


class FieldReference(NamedTuple):
    """A parsed TYPE/ID.FIELD[.KEY].

    Attributes:
        key: The key in a map field; None: the whole field.
    """

    entity: str
    field: str
    key: str | None


@dataclass(frozen=True, slots=True)
class WhyQuery:
    """The observations that a value comes from.

    Args:
        value: TYPE/ID.FIELD[.KEY].
        at: The point to answer for, as WHEN; None: now.
        clock: Which time a WHEN means, "recorded" or "observed".
        depth: At most how many causes back; None: all.
    """

    value: str
    at: str | None = None
    clock: str = RECORDED
    depth: int | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold why`."""
        depth = None if self.depth is None else str(self.depth)
        return arguments_of(["why"], {"depth": depth, "at": self.at, "clock": _clock(self.clock)}, self.value)

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each observation, the nearest first."""
        point, view, path = field_of(log, self.value, self.at, self.clock)
        chain = view.why(path.field, path.key)
        return opened_chain_json(
            log, [link for link in chain if self.depth is None or link.depth <= self.depth], point.cut
        )


def opened_chain_json(log: AgentLog, chain: list[TraceLink], cut: Cut) -> list[dict[str, Any]]:
    """Return a chain of causes in JSON. Sealed values are opened if their key is available."""
    links = [Opener(log).link(why_json(link, log.port.registry)) for link in chain]
    found: list[dict[str, Any]] = untimed_json(log, links, cut)
    return found


def field_of(log: Log, text: str, at: str | None, clock: str) -> tuple[Point, EntityView, FieldReference]:
    """Resolve TYPE/ID.FIELD[.KEY]; return the point, the entity and the field.

    An id may contain dots, so a text can have several readings. The rightmost split that names an existing entity wins.

    Args:
        log: The log to read.
        text: TYPE/ID.FIELD[.KEY].
        at: The point, as WHEN; None: now.
        clock: Which time a WHEN means, "recorded" or "observed".

    Raises:
        UnknownEntity: No split names an existing entity.
        InputError: The type is unknown, or no part of the text is one of its fields.
    """
    refusal: UnknownEntity | None = None
    for path in readings(log, text):
        try:
            point = log.point(at, path.entity, clock)
            return point, log.state(path.entity, point.cut), path
        except UnknownEntity as error:
            refusal = refusal or error
    if refusal is not None:
        raise refusal
    type_name = type_of(text)
    definition = log.types.get(type_name)
    if definition is None:
        raise InputError(f"{text}: unknown type {type_name!r}; `refold types` lists the types")
    known = ", ".join(definition.by_first_name)
    raise InputError(f"{text}: names no field; give {type_name}/ID.FIELD with one of {known}")


def readings(log: Log, text: str) -> Iterator[FieldReference]:
    """Yield every way to split the text into entity, field and key, the rightmost split first."""
    definition = log.types.get(type_of(text))
    fields = {} if definition is None else definition.by_first_name
    position = text.rfind(".")
    while position > 0:
        field, dot, key = text[position + 1 :].partition(".")
        if field in fields and (not dot or fields[field].reducer == "map"):
            yield FieldReference(text[:position], field, key if dot else None)
        position = text.rfind(".", 0, position)
