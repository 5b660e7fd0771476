"""The result of replaying a run from the command line, with its agent's code or without code."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refold.agents.entry import Agent, agent_of
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import chained
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.edges import counted as counted_edges
from refold.agents.replay.edges import edges
from refold.agents.replay.run import Replayed
from refold.explorer.cli.runs.code import name_for


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The result of a replay.

    Attributes:
        agent: The code that ran; None: the recording was stepped through without code.
        hashes: The hash of each replay; only the last may differ from the first.
        departure: How the code left the recording; None if it did not.
    """

    recording: Recording
    agent: str | None
    is_same: bool
    hashes: tuple[str, ...]
    result: Replayed | None = None
    departure: Departure | None = None

    def json(self) -> dict[str, Any]:
        """Return the result as `refold run replay --json` prints it."""
        result = self.result
        parting = None if result is None else result.parting
        return {
            "run": self.recording.run,
            "agent": self.agent,
            "same": self.is_same,
            "times": len(self.hashes),
            "hash": self.hashes[-1] or None if self.hashes else None,
            "recorded_hash": self.recording.hash or (None if result is None else result.recorded_hash),
            "steps": len(self.recording.steps) if result is None else len(result.now.steps),
            "edges": counted_edges(edges(self.recording)),
            "unused": 0 if result is None else len(result.unused),
            "escapes": [] if result is None else [str(each) for each in result.escapes],
            "unheld": "" if result is None else result.unheld,
            "parting": None if parting is None else {
                "step": parting.step, "name": parting.name,
                "differences": [each.line("now", "recorded") for each in parting.differences],
            },
            "departure": None if self.departure is None else str(self.departure),
        }  # fmt: skip


def run_again(
    log: AgentLog, recording: Recording, entry: str | None, redact: Redact | None, times: int, *, confined: bool
) -> ReplayOutcome:
    """Run the agent's code on the recording `times` times, or until it differs.

    The code's standard output is redirected to standard error.

    Args:
        log: The log of the run.
        recording: The run.
        entry: The name of the agent's function; None: the one that the run names.
        redact: The redactor of the recording.
        times: How often to replay it.
        confined: Run the code each time in a process that the kernel confines. It is imported only there.

    Raises:
        InputError: There is no such code, or the kernel refuses.
    """
    name = name_for(log, recording.run, entry)
    agent: Agent | str = name if confined else agent_of(name, Path.cwd())
    hashes: list[str] = []
    result: Replayed | None = None
    for _ in range(times):
        try:
            with redirect_stdout(sys.stderr):
                result = log.replay(recording.run, agent, redact=redact, confined=confined)
        except Departure as error:
            return ReplayOutcome(recording, name, False, tuple(hashes), result, error)
        hashes.append(result.hash)
        if not result.is_same:
            return ReplayOutcome(recording, name, False, tuple(hashes), result)
    return ReplayOutcome(recording, name, True, tuple(hashes), result)


def step_through(recording: Recording) -> ReplayOutcome:
    """Compute every hash of a recording again, and compare it with the recorded one.

    A run that was observed but not recorded as a run has no hashes, so nothing can differ.
    """
    if not recording.hash and not any(step.hash for step in recording.steps):
        return ReplayOutcome(recording, None, True, ("",))
    again = chained(recording)
    return ReplayOutcome(recording, None, again == recording, (again.hash,))
