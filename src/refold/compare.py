"""Compare recorded runs: the first point at which two runs differ, and the states of one run, step by step.

from refold.compare import compare, describe

divergence = compare(log.recording("8f2c"), log.recording("91aa"))
for line in describe(divergence):
    print(line)
"""

from __future__ import annotations

from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import Divergence
from refold.agents.compare.render import describe
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import state_at, states

__all__ = ["Divergence", "Recording", "compare", "describe", "state_at", "states"]
