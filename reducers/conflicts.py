"""Conflicts: agents that disagree with the winner of a field. They are not in the state, but computed on request.

For latest, first and each map key, take the live assertions with the winning priority, and of these each agent's last
in Q order. It is a loser if its value differs from the winner's, and no later assertion of the field names its id as a
cause.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from refold.avro.observation import Value
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import FIRST

LISTED = 8
DECIDED = frozenset({"latest", "first", "map"})


class Loser(NamedTuple):
    """One agent's last assertion that did not win; `key` is the map key, else None."""

    field: str
    key: str | None
    agent: str
    observation: bytes
    value: Value


class Conflicts(NamedTuple):
    """At most LISTED losers, and their total number."""

    losers: list[Loser]
    total: int


def conflicts(fold: Fold, entity: Entity, history: Sequence[Seen]) -> Conflicts:
    """Return the losers among an entity's distinct observations."""
    retracted = {target for seen in history for target in seen.observation.retracts}
    live = sorted((seen for seen in history if seen.id not in retracted), key=lambda seen: seen.q)
    found: list[Loser] = []
    for name in sorted(fold.reducers):
        cell = entity.cells.get(name)
        if cell is None or fold.definition.by_first_name[name].reducer not in DECIDED:
            continue
        cleared = entity.clears.get(name, FIRST)
        asserting = [seen for seen in live if name in seen.observation.patch and seen.q >= cleared]
        settled = {cause: seen.q for seen in asserting for cause in seen.observation.causes}
        if not isinstance(cell, dict):
            assertions = [(seen, seen.observation.patch[name]) for seen in asserting]
            found += _losers(name, None, cell, assertions, settled)
            continue
        for key in sorted(cell):
            found += _losers(
                name, key, cell[key], [each for seen in asserting for each in _of_key(seen, name, key)], settled
            )
    return Conflicts(found[:LISTED], len(found))


def _of_key(seen: Seen, name: str, key: str) -> Iterator[tuple[Seen, Any]]:
    entries: Any = seen.observation.patch[name]
    if key in entries:
        yield seen, entries[key]


def _losers(
    field: str,
    key: str | None,
    winner: Sequence[Any],
    assertions: Sequence[tuple[Seen, Any]],
    settled: Mapping[bytes, bytes],
) -> Iterator[Loser]:
    """Yield the losers of one field or map key.

    winner: the cell (value, priority, q); settled: by id, the greatest Q of an assertion that names it as a cause.
    """
    value, priority, _ = winner
    last: dict[str, tuple[Seen, Any]] = {}
    for seen, asserted in assertions:
        if seen.observation.priority == priority:
            last[seen.observation.source.agent] = (seen, asserted)
    for seen, asserted in sorted(last.values(), key=lambda each: each[0].q):
        if asserted != value and settled.get(seen.id, FIRST) <= seen.q:
            yield Loser(field, key, seen.observation.source.agent, seen.id, asserted)
