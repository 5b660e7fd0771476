"""The residue: what a state needs beside it to tell new observations from known ones. A function of the log, unhashed.

Certainly new: Q above the greatest of all; or above the floor, and above the greatest of its own source if that is
still held. Certainly known: among the last ids. Anything else has to be looked up.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from refold.reducers.order import FIRST

# Sources and ids are much of an entity's bytes; what these cannot tell is looked up.
SOURCES_HELD = 4
IDS_HELD = 4
PENDING_HELD = 64


@dataclass(slots=True)
class DedupState:
    """sources: by (agent, run), as Q has them, what stands around them in its greatest Q; in log order.

    floor: the greatest Q of any source let go.

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
        source, around = _split(q)
        held = self.sources.get(source)
        return held is None or around > held

    def note(self, q: bytes, offset: int) -> None:
        """One more distinct observation, in log order."""
        self.greatest = max(self.greatest, q)
        sources, last_ids = self.sources, self.last_ids
        source, around = _split(q)
        held = sources.pop(source, FIRST)
        sources[source] = around if around > held else held
        if len(sources) > SOURCES_HELD:
            oldest = next(iter(sources))
            around = sources.pop(oldest)
            self.floor = max(self.floor, around[:8] + oldest + around[8:])
        last_ids.append(q[-32:])
        if len(last_ids) > IDS_HELD:
            del last_ids[:-IDS_HELD]
        if self.lowest_offset < 0:
            self.lowest_offset = offset
        self.highest_offset = offset


def _split(q: bytes) -> tuple[bytes, bytes]:
    """(agent, run) as they stand in an order key, and what stands around them."""
    return q[8:-40], q[:8] + q[-40:]
