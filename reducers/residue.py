"""The residue: what a state needs beside it to tell new observations from known ones. A function of the log, unhashed.

Certainly new: Q above the greatest of all; or above the floor, and above the greatest of its own source if that is
still held. Certainly known: among the last ids. Anything else has to be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.reducers.order import FIRST

SOURCES_HELD = 16
IDS_HELD = 16
PENDING_HELD = 64


@dataclass(slots=True)
class Residue:
    """sources: greatest Q by (agent, run), in log order; floor: the greatest Q of any source let go.

    pending: ids retracted but not yet seen, or None when there are more than PENDING_HELD.
    """

    greatest: bytes = FIRST
    sources: dict[bytes, bytes] = field(default_factory=dict)
    floor: bytes = FIRST
    last_ids: list[bytes] = field(default_factory=list)
    pending: set[bytes] | None = field(default_factory=set)
    lowest_offset: int = -1
    highest_offset: int = -1

    def certainly_new(self, q: bytes) -> bool:
        """Whether no observation with this order key can have been folded."""
        if q > self.greatest:
            return True
        if q <= self.floor:
            return False
        held = self.sources.get(_source(q))
        return held is None or q > held

    def note(self, q: bytes, offset: int) -> None:
        """One more distinct observation, in log order."""
        self.greatest = max(self.greatest, q)
        source = _source(q)
        held = self.sources.pop(source, FIRST)
        self.sources[source] = max(held, q)
        if len(self.sources) > SOURCES_HELD:
            oldest = next(iter(self.sources))
            self.floor = max(self.floor, self.sources.pop(oldest))
        self.last_ids.append(q[-32:])
        del self.last_ids[:-IDS_HELD]
        if self.lowest_offset < 0:
            self.lowest_offset = offset
        self.highest_offset = offset


def _source(q: bytes) -> bytes:
    """(agent, run) as they stand in an order key."""
    return q[8:-40]
