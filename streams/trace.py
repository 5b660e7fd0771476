"""Why: from ids to observations, their places in the log, and on through their causes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from refold.avro.observation import Observation
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort, Position, observation_in


class TraceLink(NamedTuple):
    """One observation in a chain; depth 0 holds the value. ids in hex; recorded_at in milliseconds.

    position, recorded_at and statement are None for a cause that does not stand below the cut.
    """

    observation: str
    depth: int
    position: Position | None
    recorded_at: int | None
    causes: list[str]
    statement: Observation | None


def trace(log: LogPort, cut: Cut, ids: Iterable[bytes]) -> list[TraceLink]:
    """The chain behind some observations, each once, nearest first."""
    waiting = deque((observation_id, 0) for observation_id in ids)
    reached: set[bytes] = set()
    chain: list[TraceLink] = []
    while waiting:
        observation_id, depth = waiting.popleft()
        if observation_id in reached:
            continue
        reached.add(observation_id)
        record = log.find(observation_id)
        if record is None or record.offset >= cut.offsets[record.partition]:
            chain.append(TraceLink(observation_id.hex(), depth, None, None, [], None))
            continue
        statement = observation_in(log.registry, record)
        position = Position(record.partition, record.offset)
        causes = [cause.hex() for cause in statement.causes]
        chain.append(TraceLink(observation_id.hex(), depth, position, record.recorded_at, causes, statement))
        waiting.extend((cause, depth + 1) for cause in statement.causes)
    return chain
