"""Putting observations that were built elsewhere into a log, without repeating what it holds.

Every WINDOW observations the log is flushed and read afresh, so that of what came before a stop all is durable. A
repeat is found in the log itself, and the ids since then are all that is held in memory; of a log that cannot be asked
for one id without being read, the ids of all its records are (some 100 bytes each).

A log's `observe` for those who build many observations and must not begin to write before all are good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from refold.avro.definition import TypeDefinition
from refold.avro.ids import identify
from refold.avro.observation import Kind, Link, Observation, Source, type_of
from refold.streams.client import Log
from refold.streams.exchange.import_types import Vocabulary
from refold.streams.log.port import LogPort

WINDOW = 20_000

Take: TypeAlias = Callable[[Observation, bytes, TypeDefinition, Mapping[bytes, bytes]], None]
"""Given an observation, its id, the definition it was built by and the contents it names."""


class Intake:
    """Counts of what came: read, new, known before, and the distinct entities spoken of.

    durable: of those read, how many the log certainly holds.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        self._recent: set[bytes] = set()
        self._held = None if log.port.finds_at_once else _Held(log.port)
        self.read = 0
        self.new = 0
        self.durable = 0
        self.entities: set[str] = set()

    @property
    def known(self) -> int:
        """How many were there already."""
        return self.read - self.new

    def take(
        self,
        observation: Observation,
        observation_id: bytes,
        definition: TypeDefinition,
        blobs: Mapping[bytes, bytes],
    ) -> None:
        """Record the observation unless the log has it."""
        self.read += 1
        self.entities.add(observation.entity)
        if observation_id in self._recent or self._has(observation_id):
            return
        self._log.take(observation, observation_id, definition, blobs)
        self._recent.add(observation_id)
        self.new += 1
        if len(self._recent) >= WINDOW:
            self.flush()

    def flush(self) -> None:
        """Return when all that was taken is durable."""
        self._log.flush()
        self._log.port.refresh()
        if self._held is not None:
            self._held.read_on()
        self._recent.clear()
        self.durable = self.read

    def _has(self, observation_id: bytes) -> bool:
        if self._held is not None:
            return observation_id in self._held.ids
        return self._log.port.find(observation_id) is not None


class _Held:
    """The ids of all that a log has, as far as it was read."""

    def __init__(self, port: LogPort) -> None:
        self._port = port
        self._read_to: dict[int, int] = {}
        self.ids: set[bytes] = set()
        self.read_on()

    def read_on(self) -> None:
        """Read what is new since the last time."""
        for partition, end in self._port.ends().items():
            self.ids.update(record.id for record in self._port.read(partition, self._read_to.get(partition, 0), end))
            self._read_to[partition] = end


class Recorder:
    """Checks each observation as a log does, and hands it on: to a counter first, then to a log's Intake."""

    def __init__(self, vocabulary: Vocabulary, take: Take) -> None:
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
        """The observation's id in hex. observed_at in microseconds, which may be ahead; raises InputError."""
        door = self._vocabulary.door(type_of(entity))
        self._vocabulary.use(door.definition)
        blobs: dict[bytes, bytes] = {}
        observation = door.build(
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
        observation_id = identify(observation)
        self._take(observation, observation_id, door.definition, blobs)
        return observation_id.hex()
