"""Adds observations that were built elsewhere to a log, without repeating those it has.

Every `window` observations the log is flushed and refreshed, so everything before an interruption is durable. Repeats
are looked up in the log, and memory holds only the ids since the last flush. For a log that cannot look up an id
without reading its records, memory holds the ids of all its records (some 100 bytes each). Nothing is looked up in a
log that was empty and to which nobody else writes, for up to ALONE observations.

`Recorder` is a log's `observe` for importers that build many observations and must not write before all are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Kind, Link, Observation, Source, type_of
from refold.reducers.cells import new_tuple
from refold.streams.client import Log
from refold.streams.exchange.import_types import TypeCatalog
from refold.streams.exchange.spool import ObservationSpool
from refold.streams.log.port import LogPort
from refold.streams.writer_types import EncodedObservation

WINDOW = 20_000
ALONE = 1_000_000

Take: TypeAlias = Callable[[Observation, bytes, TypeDefinition, Mapping[bytes, bytes], bytes], None]
"""Called with an observation, its id, the definition it was built with, the contents it names, and its framed bytes
under any wire id."""


class Intake:
    """Adds observations to a log, and counts them: read, new, already known, and the distinct entities.

    Attributes:
        durable: How many of those read are certainly in the log.
    """

    def __init__(self, log: Log, advance: Callable[[int], None] = lambda more: None, window: int = WINDOW) -> None:
        """Begin to add to a log.

        Args:
            log: It must be open for writing.
            advance: Called with the number of further observations read.
            window: After so many new observations the log is flushed.
        """
        self._log = log
        self._window = window
        self._advance = advance
        self._recent: set[bytes] = set()
        self._held = None if log.port.has_id_index else _KnownIds(log.port)
        # The ids that this has recorded, as long as the log holds no other record.
        self._alone: set[bytes] | None = None if any(log.port.ends().values()) else set()
        self.read = 0
        self.new = 0
        self.durable = 0
        self.entities: set[str] = set()

    @property
    def known(self) -> int:
        """The number of observations that the log had already."""
        return self.read - self.new

    def take(self, observation: EncodedObservation) -> None:
        """Record an observation, unless the log has it."""
        self._take([observation])

    def take_all(self, spool: ObservationSpool) -> None:
        """Record the observations of a spool, apart from those that the log has."""
        for batch in spool.batches():
            self._take(batch)

    def _take(self, some: Sequence[EncodedObservation]) -> None:
        new = [each for each in some if self._is_new(each.entity, each.id)]
        if new:
            self._log.append_encoded(new)
        self._advance(len(some))
        if len(self._recent) >= self._window:
            self.flush()

    def _is_new(self, entity: str, observation_id: bytes) -> bool:
        """Count an observation; returns whether the log lacks it, and has it from now on."""
        self.read += 1
        self.entities.add(entity)
        if observation_id in self._recent or self._has(observation_id):
            return False
        self._recent.add(observation_id)
        if self._alone is not None:
            self._alone.add(observation_id)
        self.new += 1
        return True

    def flush(self) -> None:
        """Return once everything taken so far is durable."""
        self._log.flush()
        self._log.port.refresh()
        if self._held is not None:
            self._held.read_new()
        self._recent.clear()
        if self._alone is not None and not len(self._alone) == sum(self._log.port.ends().values()) < ALONE:
            self._alone = None
        self.durable = self.read

    def _has(self, observation_id: bytes) -> bool:
        if self._alone is not None:
            return observation_id in self._alone
        if self._held is not None:
            return observation_id in self._held.ids
        return self._log.port.find(observation_id) is not None


class _KnownIds:
    """The ids of all records of a log that have been read."""

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._read_to: dict[int, int] = {}
        self.ids: set[bytes] = set()
        self.read_new()

    def read_new(self) -> None:
        """Read the records that are new since the last call."""
        for partition, end in self._port.ends().items():
            self.ids.update(record.id for record in self._port.read(partition, self._read_to.get(partition, 0), end))
            self._read_to[partition] = end


class Recorder:
    """Checks each observation as a log does, and passes it on: in the first pass to a counter, then to an Intake."""

    def __init__(self, vocabulary: TypeCatalog, take: Take) -> None:
        self._vocabulary = vocabulary
        self._take = take

    def observe(
        self,
        entity: str,
        patch: Mapping[str, object] | None = None,
        *,
        source: Source,
        observed_at: int,
        causes: Sequence[str] = (),
        link: Link | None = None,
        kind: Kind = "assert",
    ) -> str:
        """Check an observation and pass it on.

        Args:
            entity: the entity's name.
            patch: the observed fields.
            source: who observed it.
            observed_at: microseconds since 1970; may be in the future.
            causes: ids of observations, in hex.
            link: a link to another entity.
            kind: the observation's kind.

        Returns:
            The observation's id in hex.

        Raises:
            InputError: the observation is invalid.
        """
        version = self._vocabulary.writer(type_of(entity))
        blobs: dict[bytes, bytes] = {}
        observation = version.validator.build(
            entity,
            patch,
            observed_at=observed_at,
            now=observed_at,
            kind=kind,
            source=source,
            causes=causes,
            link=link,
            blobs=blobs,
        )
        data, observation_id = version.codec.encode_identified(observation)
        self._take(observation, observation_id, version.definition, blobs, data)
        return observation_id.hex()


class EncodedRecorder:
    """Like Recorder, but passes on encoded observations: most of them are never built."""

    def __init__(self, vocabulary: TypeCatalog, put: Callable[[EncodedObservation], None]) -> None:
        self._vocabulary = vocabulary
        self._put = put

    def observe(
        self,
        entity: str,
        patch: Mapping[str, object] | None = None,
        *,
        source: Source,
        observed_at: int,
        causes: Sequence[str] = (),
        link: Link | None = None,
        kind: Kind = "assert",
    ) -> str:
        """As Recorder.observe."""
        version = self._vocabulary.writer(type_of(entity))
        blobs: dict[bytes, bytes] = {}
        data, observation_id, _ = version.encode(
            entity, patch, source=source, observed_at=observed_at, now=observed_at, causes=causes, link=link, kind=kind,
            blobs=blobs,
        )  # fmt: skip
        parts = (entity, observation_id, version.definition, data, blobs)
        self._put(new_tuple(EncodedObservation, parts))
        return observation_id.hex()
