"""Settings that a supervisor passes to an agent's process in its environment.

REFOLD_RUN    the id of the run that the process begins, or resumes if it was begun
REFOLD_GATE   the folder of the gate at which it waits while it is paused (gate.py)
REFOLD_GUARD  the policy of its runs; one that its code gives is used instead
REFOLD_BUDGET what each of its runs may use, as JSON; it holds with any policy
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from refold.agents.supervise.gate import PauseGate

if TYPE_CHECKING:
    from refold.agents.policy.guard import Guarding
    from refold.streams.client import Log

RUN, GATE, GUARD, BUDGET = "REFOLD_RUN", "REFOLD_GATE", "REFOLD_GUARD", "REFOLD_BUDGET"


def given_gate() -> PauseGate | None:
    """Return the gate of the agent that this process runs; None if it is not supervised."""
    folder = os.environ.get(GATE)
    return PauseGate(Path(folder)) if folder else None


def as_supervised(
    log: Log, id: str | None, resume: str | None, guard: Guarding | None
) -> tuple[str | None, str | None, Guarding | None]:  # fmt: skip
    """Return the id, the run to resume, and the policy of a run of this process.

    The first run of which neither id nor resume is given is the one that the supervisor names: it is resumed if it was
    begun before. The variable is then removed from the environment, so that no process that this one starts makes the
    same run.

    Args:
        log: The log of the run.
        id: The id that the code gives, if any.
        resume: The run to resume that the code gives, if any.
        guard: The policy that the code gives, if any.

    Raises:
        InputError: The policy of the supervisor cannot be read.
    """
    import msgspec

    from refold.agents.policy.guard import policy_of
    from refold.agents.policy.rules import RunBudget
    from refold.agents.recorder.observations import run_entity

    guard = os.environ.get(GUARD) or None if guard is None else guard
    if budget := os.environ.get(BUDGET):
        guard = policy_of(guard, msgspec.json.decode(budget, type=RunBudget))
    if id is None and resume is None and (given := os.environ.pop(RUN, "")):
        return (None, given, guard) if log.states([run_entity(given)]) else (given, None, guard)
    return id, resume, guard
