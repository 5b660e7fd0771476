"""The interface of a sink: a store that holds the state of a log at an exact cut, and the history up to it.

Rules for every sink of states, tested by refold.testing.sinks:
1. The state and its cut are written atomically.
2. `position` alone says which cut the store holds. It is stored nowhere else.
3. Of two processes on one store at most one succeeds: a write or a load is refused if the store's position is not the
   one that it follows.
4. A store that is temporarily unable to write raises SinkBusy. An error that waiting does not fix raises SinkRefused.
   Neither message contains a secret.
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
from refold.streams.changes import MutationFormatter, Row, rows
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.view import StateView


class SinkBusy(StorageError):
    """The store refuses a write for now: back-pressure. The write may have been stored or not."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class SinkRefused(InputError):
    """The store refuses, and waiting does not help; the message says what to do."""


@dataclass(slots=True)
class EntityState:
    """One entity at a cut.

    Attributes:
        definition: The definition of its type that is in force at the cut.
        partition, offset: The position of the entity's latest distinct observation.
        recorded_at: When that observation was recorded, in milliseconds since 1970.
        fields: The canonical values by first name, in the form that the state hash covers; avro/jsonform.py converts
            them to JSON.
        links: The links as {relation, target, valid_from?, valid_to?}, with times in microseconds, in the state's
            order.
        element_keys: For each append field, the key of every element: order key and index.
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
    element_keys: dict[str, list[tuple[bytes, int]]]

    @property
    def type(self) -> str:
        """The name of its type."""
        return type_of(self.entity)


class HistoryStep(NamedTuple):
    """One observation of an entity and its changes. `rows` returns them as log.history does, with values in JSON form.

    Attributes:
        version: The entity's version after it.
        by: The observation's id, 32 bytes.
        partition, offset: Its position in the log.
        observed_at: When it was observed, in microseconds since 1970.
        recorded_at: When it was recorded, in milliseconds since 1970.
        mutations: What it changed.
        shown: Converts the definition's values to JSON.
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
    shown: MutationFormatter

    def rows(self) -> Iterator[Row]:
        """One row for each mutation."""
        return rows(
            self.shown, self.entity, self.mutations, by=self.by, version=self.version, partition=self.partition,
            offset=self.offset, observed_at=self.observed_at, recorded_at=self.recorded_at, source=self.source,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """The changes from cut `before` to cut `cut`. Its states are complete, and valid until the next batch is requested.

    Attributes:
        states: The states of the changed entities, each once.
        history: The history, in order for each entity, without observations that changed nothing.
        changes: The number of changes of the log in the batch.
        definitions: The definitions of all types at the cut, by name.
    """

    before: Cut
    cut: Cut
    states: Sequence[EntityState]
    history: Sequence[HistoryStep]
    changes: int
    definitions: Mapping[str, TypeDefinition]


@dataclass(frozen=True, slots=True)
class Load:
    """All entities at a cut, which replace the store's content: of all types, or of `types`.

    Attributes:
        types: The types that must be read again, because their definition changed, or because an observation of theirs
            was set aside or restored; None for all.
        before: The position that this follows; None if the store is empty.
        states: Returns an iterator over the entities, to be read once, in no particular order.
        history: Returns an iterator over their history, to be read once, in no particular order, before or after the
            states.
        total: The number of entities.
    """

    before: Cut | None
    cut: Cut
    types: frozenset[str] | None
    states: Callable[[], Iterator[EntityState]]
    history: Callable[[], Iterator[HistoryStep]]
    total: int
    definitions: Mapping[str, TypeDefinition]


class Sink(ABC):
    """A store that follows a log change by change. For one thread."""

    name: str
    """The name in messages: which store, and where, without a password."""
    wants_history = True
    """Whether batches and loads contain `history`."""

    def attach(self, log: LogPort) -> None:  # noqa: B027  # most need none
        """Called once with the log that the sink follows, for sinks that read more than states. Do not close the
        log.
        """

    @abstractmethod
    def position(self) -> Cut | None:
        """Return the cut that the store holds; None if it is empty."""

    @abstractmethod
    def load(self, load: Load) -> None:
        """Replace the store's content by the load's, and store `load.cut`, in one transaction.

        With `load.types` only the entities of these types are replaced.

        Raises:
            SinkBusy: The position is not `load.before`, with retry_after_s=0: another writer was first.
        """

    def stored(self, names: Collection[str]) -> Mapping[str, bytes]:
        """Return, for each of these entities that the store has, the bytes that `refold.sink.packed` gave when it was
        written.

        Args:
            names: The entities, as `type/id`.

        Returns:
            The packed states by entity. A sink may return an empty mapping. Each changed entity whose state is not
            remembered from a recent batch is then read from the log, which is exact and slower.
        """
        return {}

    @abstractmethod
    def write(self, batch: Batch) -> None:
        """Store states, history and the batch's cut, in one transaction.

        Raises:
            SinkBusy: The position is not `batch.before`, with retry_after_s=0: another writer was first.
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store. Idempotent."""


class SnapshotSink(ABC):
    """A sink that commits whole cuts: it holds the state of one cut, without history and without single changes.

    The rules above hold for it, too: `commit` is its only write. For one thread.
    """

    name: str

    @property
    def is_outdated(self) -> bool:
        """Whether the content that `position` found has an earlier format. It is then committed again, even at the same
        cut.
        """
        return False

    @abstractmethod
    def position(self) -> Cut | None:
        """Return the newest cut that the store holds; None if it is empty."""

    @abstractmethod
    def commit(self, view: StateView, progress: Callable[[int, int], None] = lambda more, total: None) -> None:
        """Store every entity of a view, and its cut, atomically.

        Args:
            progress: Called with (further entities, total).
        """

    @abstractmethod
    def close(self) -> None:
        """Close the store. Idempotent."""
