"""A run against its own replay without code: gone through step by step from what it was started with.

Its states are made again from the deltas and its hashes from the states; both have to be those that stand recorded.
"""

from __future__ import annotations

from typing import NamedTuple

from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import Divergence
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import chained


class Itself(NamedTuple):
    """How a run compares with its own replay. altered: the numbers of the steps whose recorded hashes are not those of
    what stands in them; is_altered: whether the run's own hash is not."""

    run: str
    steps: int
    divergence: Divergence | None
    altered: tuple[int, ...]
    is_altered: bool

    @property
    def is_equal(self) -> bool:
        """Whether the run is what its replay is."""
        return self.divergence is None and not self.altered and not self.is_altered


def against_itself(recording: Recording) -> Itself:
    """The run, stepped through and compared."""
    again = chained(recording)
    altered = tuple(
        one.number
        for one, other in zip(recording.steps, again.steps, strict=True)
        if (one.hash, one.state_before, one.state_after) != (other.hash, other.state_before, other.state_after)
    )
    is_altered = recording.hash != again.hash
    return Itself(
        recording.run, len(recording.steps), compare(recording, again, exact=True), altered, is_altered
    )  # fmt: skip
