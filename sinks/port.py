"""What a sink is: a store that holds the state of a log at an exact cut, and the history up to it.

What every sink keeps, held by refold.testing.sinks:
1. What stands in the store and the cut it is the state of are written together, or not at all.
2. `position` is the only truth about how far the store is. Nothing is remembered elsewhere.
3. Of two processes on one store at most one is believed: a write that does not follow the position it was made for is
   refused.
4. A store that refuses for now raises SinkBusy; what waiting does not mend raises SinkRefused. Neither names a secret.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from refold.avro.definition import TypeDefinition
from refold.avro.errors import InputError, StorageError
from refold.avro.observation import Source, type_of
from refold.reducers.cells import Mutation
from refold.streams.changes import Row, Shown, rows
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.view import StateView


class SinkBusy(StorageError):
    """The store refuses now and may take it later: back-pressure. What was being written may stand there or not."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SinkRefused(InputError):
    """The store refuses, and waiting changes nothing; the message says what to do."""


@dataclass(slots=True)
class EntityState:
    """One entity at a cut.

    definition: the one in force at the cut. partition, offset, recorded_at (milliseconds): where and when its latest
    distinct observation stands. fields: canonical values by first name, as the state hash takes them; avro/jsonform.py
    shows them. links: {relation, target, valid_from?, valid_to?}, times in microseconds, in the state's order. places:
    of each append field the place of every element (order key, index).
    """

    entity: str
    definition: TypeDefinition
    partition: int
    offset: int
    recorded_at: int
    version: int
    state_hash: bytes
    fields: dict[str, Any]
    links: list[dict[str, Any]]
    places: dict[str, list[tuple[bytes, int]]]

    @property
    def type(self) -> str:
        """The name of its type."""
        return type_of(self.entity)


class HistoryStep(NamedTuple):
    """One observation of an entity and what it changed; `rows` gives it as log.history does, values in JSON form.

    by: its id. observed_at in microseconds, recorded_at in milliseconds. shown: how the definition's values are shown.
    """

    entity: str
    version: int
    by: bytes
    partition: int
    offset: int
    observed_at: int
    recorded_at: int
    source: Source
    mutations: Sequence[Mutation]
    shown: Shown

    def rows(self) -> Iterator[Row]:
        """One row for each mutation."""
        return rows(
            self.shown, self.entity, self.mutations, by=self.by, version=self.version, partition=self.partition,
            offset=self.offset, observed_at=self.observed_at, recorded_at=self.recorded_at, source=self.source,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """What changed from cut `before` to cut `cut`. Its states are whole, and good until the next batch is asked for.

    states: each entity once. history: each entity's in its order, without observations that changed nothing. changes:
    how many changes of the log it is made of. definitions: of every type at the cut, by name.
    """

    before: Cut
    cut: Cut
    states: Sequence[EntityState]
    history: Sequence[HistoryStep]
    changes: int
    definitions: Mapping[str, TypeDefinition]


@dataclass(frozen=True, slots=True)
class Load:
    """Everything at a cut, in place of whatever is held: of all types, or of `types`, which were defined anew.

    before: the position that this follows, None where nothing is held. entities, history: to be gone through once each,
    in either order; in no order that means anything. total: how many entities.
    """

    before: Cut | None
    cut: Cut
    types: frozenset[str] | None
    entities: Callable[[], Iterator[EntityState]]
    history: Callable[[], Iterator[HistoryStep]]
    total: int
    definitions: Mapping[str, TypeDefinition]


class Sink(ABC):
    """A store that follows a log change by change. For one thread."""

    name: str
    """How it is called in messages: what store, and where; no password in it."""
    wants_history = True
    """Whether `history` is to be made for it."""

    def attach(self, log: LogPort) -> None:  # noqa: B027  # most need none
        """The log that is followed from here on, for who reads more of it than states; not to be closed."""

    @abstractmethod
    def position(self) -> Cut | None:
        """The cut the store holds; None where it holds nothing yet."""

    @abstractmethod
    def load(self, load: Load) -> None:
        """Put all of it in place of what is held, and `load.cut`, in one transaction."""

    def held(self, names: Collection[str]) -> Mapping[str, bytes]:
        """Of some entities, those that are held, what states.packed() made when they were written.

        A sink that keeps nothing of the kind holds none: whatever changes is then computed from the log.
        """
        return {}

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Put states, history and the batch's cut, in one transaction. Only where the position is `batch.before`."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store. Once more is nothing."""


class SnapshotSink(ABC):
    """A store that takes whole cuts."""

    name: str

    @property
    def is_outdated(self) -> bool:
        """Whether what `position` found is in an earlier form: it is committed again, also at the same cut."""
        return False

    @abstractmethod
    def position(self) -> Cut | None:
        """The newest cut the store holds; None where it holds nothing yet."""

    @abstractmethod
    def commit(self, view: StateView, progress: Callable[[int, int], None] = lambda more, total: None) -> None:
        """Put every entity of a view, and its cut, at once. progress: (more entities, of how many)."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the store. Once more is nothing."""
