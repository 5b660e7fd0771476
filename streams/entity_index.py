"""Facts about all entities of a type, kept in memory and moved from cut to cut.

A page that lists entities needs a few fields of each. A rebuild folds all of them again for each page; the index folds
only those that changed since the last page.

1. The first question rebuilds the type, and keeps one fact for each entity, with the cut.
2. A question about another cut begins at the kept cut that has the fewest records between. The entities that have
   records there are folded at the wanted cut. All others have the same fact at both, because the state of an entity
   depends only on its own records and its type's definition.
3. If a cut has other definitions, is one of the observed clock, or is more than `moved_records_max` records away, the
   type is rebuilt.

The last CUTS_KEPT cuts are kept. A fact must not refer to the log that it was read from: threads with a log of their
own share an index. Facts are kept after the retention removed what they were read from, so they must not hold content.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

from refold.avro.observation import type_of
from refold.streams.cut import Cut
from refold.streams.log.port import LogReader
from refold.streams.view import EntityView, StateView

MOVED_RECORDS_MAX = 20_000
CUTS_KEPT = 4
READ_AT_ONCE = 1_000

T = TypeVar("T")


class IndexedLog(Protocol):
    """The parts of a Log (streams/client.py) that an index uses."""

    indexes: EntityIndexes | None

    @property
    def port(self) -> LogReader:
        """The log's records."""

    def states(self, entities: Iterable[str], at: Cut) -> Mapping[str, EntityView]:
        """Return several entities at a cut."""

    def rebuild(self, at: Cut, *, types: Iterable[str]) -> StateView:
        """Return every entity of some types at a cut."""


class EntityIndex(Generic[T]):
    """The facts about the entities of one type.

    Args:
        type_name: The entity type.
        fact: Returns the fact of an entity; None if the index leaves the entity out.
        moved_records_max: A kept cut that is more records away is not moved from: the type is rebuilt.
    """

    def __init__(
        self, type_name: str, fact: Callable[[EntityView], T | None], *, moved_records_max: int = MOVED_RECORDS_MAX
    ) -> None:
        self._moved_records_max = moved_records_max
        self._type = type_name
        self._fact = fact
        self._kept: OrderedDict[Cut, Mapping[str, T]] = OrderedDict()
        self._lock = Lock()

    def at(self, log: IndexedLog, cut: Cut) -> Mapping[str, T]:
        """Return the fact of each entity at a cut, by name. The mapping is shared and must not be changed.

        Args:
            log: An open log of the calling thread.
            cut: The cut.
        """
        with self._lock:
            found = self._kept.get(cut)
            if found is None:
                near = min((each for each in self._kept if self._is_near(each, cut)), default=None, key=_distance(cut))
                found = self._rebuilt(log, cut) if near is None else self._moved(log, near, cut)
            self._kept[cut] = found
            self._kept.move_to_end(cut)
            while len(self._kept) > CUTS_KEPT:
                self._kept.popitem(last=False)
            return found

    def _is_near(self, a: Cut, b: Cut) -> bool:
        """Whether one cut can be reached from the other."""
        return (
            a.log_id == b.log_id and a.types_digest == b.types_digest and a.schemas == b.schemas
            and a.observed_until is None and b.observed_until is None and a.offsets.keys() == b.offsets.keys()
            and _distance(a)(b) <= self._moved_records_max
        )  # fmt: skip

    def _rebuilt(self, log: IndexedLog, cut: Cut) -> Mapping[str, T]:
        if self._type not in log.port.registry.fingerprints():
            return {}
        view = log.rebuild(cut, types=[self._type])
        facts = ((name, self._fact(view[name])) for name in view)
        return {name: fact for name, fact in facts if fact is not None}

    def _moved(self, log: IndexedLog, kept: Cut, cut: Cut) -> Mapping[str, T]:
        names = list(dict.fromkeys(self._names_between(log, kept, cut)))
        if not names:
            return self._kept[kept]
        found = dict(self._kept[kept])
        for begin in range(0, len(names), READ_AT_ONCE):
            some = names[begin : begin + READ_AT_ONCE]
            views = log.states(some, cut)
            for name in some:
                fact = self._fact(views[name]) if name in views else None
                if fact is None:
                    found.pop(name, None)
                else:
                    found[name] = fact
        return found

    def _names_between(self, log: IndexedLog, a: Cut, b: Cut) -> Iterator[str]:
        for partition, offset in a.offsets.items():
            begin, end = sorted((offset, b.offsets[partition]))
            for record in log.port.read(partition, begin, end):
                if type_of(record.entity) == self._type:
                    yield record.entity


class EntityIndexes:
    """The indexes of one log, created at their first use. Thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Callable[[EntityView], Any]], EntityIndex[Any]] = {}

    def of(self, type_name: str, fact: Callable[[EntityView], T | None]) -> EntityIndex[T]:
        """Return the index of a type by a function, which must be one of a module."""
        return self._known.setdefault((type_name, fact), EntityIndex(type_name, fact))


def facts(log: IndexedLog, type_name: str, fact: Callable[[EntityView], T | None], cut: Cut) -> Mapping[str, T]:
    """Return the fact of each entity of a type at a cut, by the log's index if it has indexes.

    Args:
        log: The log.
        type_name: The entity type.
        fact: A function of a module; see EntityIndex.
        cut: The cut.
    """
    index = EntityIndex(type_name, fact) if log.indexes is None else log.indexes.of(type_name, fact)
    return index.at(log, cut)


def views(log: IndexedLog, type_name: str, cut: Cut) -> Mapping[str, EntityView]:
    """Return every entity of a type at a cut, by name. A log with indexes reads only these entities.

    Args:
        log: The log.
        type_name: The entity type.
        cut: The cut.
    """
    if log.indexes is not None:
        return log.states(facts(log, type_name, exists, cut), cut)
    if type_name not in log.port.registry.fingerprints():
        return {}
    found = log.rebuild(cut, types=[type_name])
    return {name: found[name] for name in found}


def exists(view: EntityView) -> bool:
    """Return True: the fact of an index that is asked for names only."""
    return True


def _distance(a: Cut) -> Callable[[Cut], int]:
    """Return a function that counts the records between a cut and this one."""
    return lambda b: sum(abs(offset - b.offsets[partition]) for partition, offset in a.offsets.items())
