"""Compare a run with its own replay without code: step by step from its input.

Its states are computed again from the deltas and its hashes from the states; both must match the recorded ones.
"""

from __future__ import annotations

from typing import NamedTuple

from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import Divergence
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import chained


class Itself(NamedTuple):
    """The result of the comparison. altered: the numbers of the steps whose recorded hashes do not match their content;
    is_altered: whether the run's own hash does not."""

    run: str
    steps: int
    divergence: Divergence | None
    altered: tuple[int, ...]
    is_altered: bool

    @property
    def is_equal(self) -> bool:
        """Whether the run equals its replay."""
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
