"""The journal that an agent keeps of itself. Each entry names the agent, the run, the step and the entry's causes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import refold


def now_micros() -> int:
    """Return this machine's clock, in microseconds since 1970."""
    return time.time_ns() // 1000


class Journal:
    """One agent's entries in one run. `kept`: how many of them are durable in the log."""

    def __init__(self, log: refold.Log, agent: str, run: str) -> None:
        self.log = log
        self.agent = agent
        self.run = run
        self.step = ""
        self.kept = 0
        self._seq = itertools.count()
        self._noted = 0

    def note(self, entity: str, patch: Mapping[str, Any], causes: Iterable[str] = (), tool: str = "") -> str:
        """Observe fields of an entity; return the observation's id, which later entries can name as a cause."""
        return self._count(self.log.observe(entity, patch, source=self._source(tool), causes=causes))

    def tie(self, entity: str, relation: str, target: str, cause: str) -> str:
        """Observe a relation from an entity to another; return the observation's id."""
        return self._count(self.log.link(entity, relation, target, source=self._source(), causes=[cause]))

    def flush(self) -> None:
        """Return once all entries are durable, so that the next action may rely on them."""
        self.log.flush()
        self.kept = self._noted

    def _source(self, tool: str = "") -> refold.Source:
        return refold.Source(self.agent, self.run, self.step, tool, next(self._seq))

    def _count(self, observation: str) -> str:
        self._noted += 1
        return observation
