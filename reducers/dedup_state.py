"""The dedup state: data next to a state that tells new observations from known ones. A function of the log; not hashed.

An observation is certainly new if its Q is above the greatest of all; or if it is above the floor, and above the
greatest Q of its own source if that source is still held. It is certainly known if its id is among the last ids.
Anything else must be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.reducers.order import FIRST

# Sources and ids take much of an entity's bytes, so few are held; observations they cannot classify are looked up.
SOURCES_HELD = 4
IDS_HELD = 4
PENDING_HELD = 64


@dataclass(slots=True)
class DedupState:
    """The dedup state of one entity.

    Attributes:
        sources: The greatest Q of each source, by (agent, run) as encoded in Q, in log order.
        floor: The greatest Q of all sources that are no longer held.
        pending: The ids that are retracted but not yet seen, or None if there are more than PENDING_HELD.
    """

    greatest: bytes = FIRST
    sources: dict[bytes, bytes] = field(default_factory=dict)
    floor: bytes = FIRST
    last_ids: list[bytes] = field(default_factory=list)
    pending: set[bytes] | None = field(default_factory=set)
    lowest_offset: int = -1
    highest_offset: int = -1

    def certainly_new(self, q: bytes) -> bool:
        """Return whether no observation with this order key can have been folded yet."""
        if q > self.greatest:
            return True
        if q <= self.floor:
            return False
        held = self.sources.get(source_in(q))
        return held is None or q > held

    def note(self, q: bytes, offset: int) -> None:
        """Add the next distinct observation, in log order."""
        self.greatest = max(self.greatest, q)
        sources, last_ids = self.sources, self.last_ids
        source = source_in(q)
        sources[source] = max(q, sources.pop(source, FIRST))
        if len(sources) > SOURCES_HELD:
            self.floor = max(self.floor, sources.pop(next(iter(sources))))
        last_ids.append(q[-32:])
        if len(last_ids) > IDS_HELD:
            del last_ids[:-IDS_HELD]
        if self.lowest_offset < 0:
            self.lowest_offset = offset
        self.highest_offset = offset


def source_in(q: bytes) -> bytes:
    """Return (agent, run) of an order key, as encoded in it."""
    return q[8:-40]
