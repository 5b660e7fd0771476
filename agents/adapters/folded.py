"""State that an adapter folds from an entity's observations in log order, starting where its last read ended.

So all processes that read a log agree on the order of its observations, and a read costs only what is new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Protocol, TypeVar

from refold.agents.log import AgentLog
from refold.avro.observation import Observation
from refold.streams.client import Log
from refold.streams.log.port import observation_in


class FoldedState(Protocol):
    """The state folded from one entity's observations.

    Attributes:
        offset: The offset up to which its partition was read.
        ids: The ids of its observations, in log order.
    """

    offset: int
    ids: dict[bytes, None]

    def apply(self, log: Log, observation: Observation) -> None:
        """Apply the next observation, in log order."""


F = TypeVar("F", bound=FoldedState)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def caught_up(log: Log, entity: str, folded: F) -> F:
    """Apply an entity's observations since the last call, and return the folded state. The caller must hold
    `Log.lock`.
    """
    port = log.port
    end = port.ends()[port.partition_of(entity)]
    if end > folded.offset:
        for record in port.entity_records(entity, end, folded.offset):
            if record.id not in folded.ids:  # a process that was killed and restarted may have sent it twice
                folded.apply(log, observation_in(port.registry, record))
                folded.ids[record.id] = None
            folded.offset = record.offset + 1
        folded.offset = end
    return folded


def settle(log: AgentLog) -> None:
    """Return when everything recorded so far can be lost only together with all that is recorded from now on.

    A log that keeps the order guarantees this by itself; any other log is flushed. The caller must hold `Log.lock`.
    """
    if not log.port.keeps_order:
        log.port.flush()


def recent(cache: OrderedDict[K, V], key: K, new: Callable[[], V], limit: int) -> V:
    """Return the cached value of a key, creating it if needed, and mark it as the most recently used."""
    found = cache.pop(key, None)
    cache[key] = found = new() if found is None else found
    if len(cache) > limit:
        cache.popitem(last=False)
    return found
