"""Putting observations that were built elsewhere into a log, without repeating what it holds.

Every WINDOW observations the log is flushed and read afresh, so that of what came before a stop all is
durable, and a repeat is found in the log itself; the ids since then are all that is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from refold.avro.definition import TypeDefinition
from refold.avro.observation import Observation
from refold.streams.client import Log

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
        if observation_id in self._recent or self._log.port.find(observation_id) is not None:
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
        self._recent.clear()
        self.durable = self.read
