"""Conflicts: agents that disagree with the winner of a field. No part of the state; computed when asked for.

For latest, first and each map key: among the live assertions of the winning priority, each agent's last in Q. One
whose value differs from the winner's, and whose id no later assertion of the field names in its causes, is a loser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from refold.avro.observation import Value
from refold.reducers.entity import Entity
from refold.reducers.fold import Fold, Seen
from refold.reducers.order import FIRST

LISTED = 8
DECIDED = frozenset({"latest", "first", "map"})


class Loser(NamedTuple):
    """One agent's last word that did not win; `key` is the map key, else None."""

    field: str
    key: str | None
    agent: str
    observation: bytes
    value: Value


class Conflicts(NamedTuple):
    """At most LISTED losers, and how many there are."""

    losers: list[Loser]
    total: int


def conflicts(fold: Fold, entity: Entity, history: Sequence[Seen]) -> Conflicts:
    """The losers among an entity's distinct observations."""
    retracted = {target for seen in history for target in seen.observation.retracts}
    live = sorted((seen for seen in history if seen.id not in retracted), key=lambda seen: seen.q)
    found: list[Loser] = []
    for field in fold.definition.fields.values():
        name = field.first_name
        cell = entity.cells.get(name)
        if field.reducer not in DECIDED or cell is None:
            continue
        said = [seen for seen in live if name in seen.observation.patch and seen.q >= entity.clears.get(name, FIRST)]
        if field.reducer != "map":
            said_here = [(seen, seen.observation.patch[name]) for seen in said]
            found.extend(_losers(name, None, cell[0], cell[1], cell[2], said_here))
            continue
        for key in sorted(cell):
            value, priority, q = cell[key]
            said_key: list[tuple[Seen, Any]] = []
            for seen in said:
                patch: Any = seen.observation.patch[name]
                if key in patch:
                    said_key.append((seen, patch[key]))
            found.extend(_losers(name, key, value, priority, q, said_key))
    return Conflicts(found[:LISTED], len(found))


def _losers(
    field: str, key: str | None, winner: Value, priority: int, q: bytes, said: list[tuple[Seen, Any]]
) -> Iterator[Loser]:
    last: dict[str, tuple[Seen, Any]] = {}
    for seen, value in said:
        if seen.observation.priority == priority:
            last[seen.observation.source.agent] = (seen, value)
    for agent, (seen, value) in sorted(last.items()):
        if value == winner or seen.q == q:
            continue
        if not any(later.q > seen.q and seen.id in later.observation.causes for later, _ in said):
            yield Loser(field, key, agent, seen.id, value)
