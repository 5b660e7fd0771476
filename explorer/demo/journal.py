"""How an agent keeps account of itself: each entry says who, in which run and step, and what it follows."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import refold


def now_micros() -> int:
    """This machine's clock, in microseconds since 1970."""
    return time.time_ns() // 1000


class Journal:
    """One agent's entries of one run. `kept`: how many of them the log has acknowledged as durable."""

    def __init__(self, log: refold.Log, agent: str, run: str) -> None:
        self.log = log
        self.agent = agent
        self.run = run
        self.step = ""
        self.kept = 0
        self._seq = itertools.count()
        self._noted = 0

    def note(self, entity: str, patch: Mapping[str, Any], causes: Iterable[str] = (), tool: str = "") -> str:
        """Observe something of an entity; the observation's id, for whatever follows from it."""
        return self._count(self.log.observe(entity, patch, source=self._source(tool), causes=causes))

    def tie(self, entity: str, relation: str, target: str, cause: str) -> str:
        """Observe that an entity stands in a relation to another."""
        return self._count(self.log.link(entity, relation, target, source=self._source(), causes=[cause]))

    def flush(self) -> None:
        """Return when all entries are durable: what is done next may rely on them."""
        self.log.flush()
        self.kept = self._noted

    def _source(self, tool: str = "") -> refold.Source:
        return refold.Source(self.agent, self.run, self.step, tool, next(self._seq))

    def _count(self, observation: str) -> str:
        self._noted += 1
        return observation
