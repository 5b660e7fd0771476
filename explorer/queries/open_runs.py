"""Runs that have not ended: since when nothing of them was recorded, and what is known of their process.

A log does not say whether a run continues or its process was killed.

1. The newest record of a run is the newest of those that hold fields of the run and of its last own step.
2. If a supervised agent makes the run, the agent's record says what became of its process
   (agents/supervise/listing.py). As of now the clock decides whether its supervisor's lease is over; as of a cut, the
   time of the newest record below it. So a page at a cut always says the same.
3. Of the process of any other run nothing is known.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.agents.recordings.fields import PlainFields
from refold.agents.supervise.entries import TYPE
from refold.agents.supervise.lease import ACTIVE
from refold.agents.supervise.listing import UNKNOWN, AgentRow, agent_row
from refold.avro.times import millis_text
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.entity_index import views

RUNS, GONE, NOT_KNOWN = "runs", "gone", "not known"
WORDS = {RUNS: "its process runs", GONE: "its process is gone", NOT_KNOWN: "whether its process runs is not known"}


class UnendedRun(NamedTuple):
    """A run that has not ended.

    Attributes:
        recorded_at: When its newest record was recorded, in milliseconds since 1970.
        process: What is known of its process: RUNS, GONE or NOT_KNOWN.
        why: What its agent's record says; empty if no agent makes it.
    """

    recorded_at: int
    process: str
    why: str

    @property
    def outcome(self) -> str:
        """The text that is shown in place of an outcome: whether the run is known to continue."""
        return "running" if self.process == RUNS else "not ended"

    @property
    def known(self) -> str:
        """A description of its process, as far as it is known."""
        return WORDS[self.process] + (f": {self.why}" if self.why else "")

    @property
    def text(self) -> str:
        """All of it in words, with the time in UTC."""
        return f"no record since {millis_text(self.recorded_at)}; {self.known}"

    def json(self) -> dict[str, Any]:
        """Return it in JSON."""
        return {"last_record": millis_text(self.recorded_at), "process": self.process, "why": self.why or None}


def open_runs(log: Log, recorded: Mapping[str, int], cut: Cut, *, is_now: bool) -> dict[str, UnendedRun]:
    """Return what is known of runs that have not ended.

    Args:
        log: The log.
        recorded: By run, when its newest record was recorded, milliseconds.
        cut: The point.
        is_now: Whether the present is asked about, so that the clock decides whether a lease is over.
    """
    if not recorded:
        return {}
    now = time.time_ns() // 1000 if is_now else 1000 * max(
        (log.port.recorded_below(partition, end) for partition, end in cut.offsets.items()), default=0
    )  # fmt: skip
    agents = (agent_row(name.partition("/")[2], view.fields, now) for name, view in views(log, TYPE, cut).items())
    makers = {each.run: each for each in agents if each.run in recorded}
    return {run: UnendedRun(at, *_process(makers.get(run))) for run, at in recorded.items()}


def open_run(log: Log, run: str, steps: int, cut: Cut, *, is_now: bool) -> UnendedRun:
    """Return what is known of one run that has not ended.

    Args:
        run: The id of the run.
        steps: The number of its last step.
        cut: The point.
        is_now: See open_runs.
    """
    found = log.states([f"run/{run}", f"step/{run}#{steps}"], cut)
    recorded = max(PlainFields(view).recorded_at for view in found.values())
    return open_runs(log, {run: recorded}, cut, is_now=is_now)[run]


def _process(agent: AgentRow | None) -> tuple[str, str]:
    if agent is None:
        return NOT_KNOWN, ""
    process = RUNS if agent.status in ACTIVE else NOT_KNOWN if agent.status == UNKNOWN else GONE
    return process, f"agent {agent.name} is {agent.status}" + (f", {agent.why}" if agent.why else "")
