"""A supervisor: it owns agents of a log, and runs them. owner.py describes what it does for each one.

An agent never waits for another one's process: no step of an owner blocks on a process. If an owner fails by a defect
or by the log, that is said, and the others continue.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from refold.agents.heal.supervised import HealingKind
from refold.agents.log import AgentLog
from refold.agents.supervise.owner import AgentOwner, SupervisorSettings
from refold.agents.supervise.settings import AgentSettings
from refold.avro.errors import RefoldError

TICK_S = 0.25


class SupervisorCounts(NamedTuple):
    """The counts of a supervisor.

    Attributes:
        agents: The number of agents that it owns, by status.
        others: The number of agents that it does not own.
        starts, failures: The numbers of processes that were started, and that failed.
        losses: How often a claim was not renewed in time.
        healings: The number of attempts to heal runs that ended, by what they were for.
    """

    agents: Mapping[str, int]
    others: int
    starts: int
    failures: int
    losses: int
    healings: Mapping[HealingKind, int]


class Supervisor:
    """Runs agents. For one thread, the log's."""

    def __init__(self, log: AgentLog, agents: Mapping[str, AgentSettings], by: SupervisorSettings) -> None:
        """Take care of agents.

        Args:
            log: The log of the agents.
            agents: The settings of the agents, by name.
            by: The supervisor as its owners know it.
        """
        self._say = by.say
        self._owners = {name: AgentOwner(log, settings, by) for name, settings in agents.items()}
        self._problems: dict[str, str] = {}

    def run(self, is_stopped: Callable[[float], bool], *, is_until_done: bool = False) -> bool:
        """Run the agents until a stop, then end them.

        Args:
            is_stopped: Waits for at most so many seconds; returns whether to stop.
            is_until_done: Whether to stop when no agent has anything to do: each ended, failed, or was stopped.

        Returns:
            Whether no agent had failed.
        """
        while not is_stopped(TICK_S):
            for name, owner in self._owners.items():
                self._try_step(name, owner.tick)
            if is_until_done and all(owner.is_done for owner in self._owners.values()):
                break
        has_succeeded = not any(owner.has_failed for owner in self._owners.values())
        self.end()
        return has_succeeded

    def counts(self) -> SupervisorCounts:
        """Return what is counted so far. May be called from any thread."""
        owners = list(self._owners.values())
        agents = Counter(owner.status for owner in owners if owner.is_owned)
        starts, failures, losses = map(sum, zip(*(owner.counts for owner in owners), strict=True))
        healed = sum((Counter(owner.healing.counts) for owner in owners), Counter[HealingKind]())
        return SupervisorCounts(agents, len(owners) - agents.total(), starts, failures, losses, healed)

    def end(self) -> None:
        """End every agent, and give it up."""
        ahead = dict(self._owners)
        while ahead:
            for name, owner in list(ahead.items()):
                if self._try_step(name, owner.end):
                    del ahead[name]
            time.sleep(TICK_S / 5)

    def _try_step(self, name: str, step: Callable[[], bool | None]) -> bool:
        """Do a step of an owner; return its result. A problem is logged once, until a step works again."""
        try:
            result = bool(step())
        except Exception as error:  # also a defect: the other agents must continue
            is_ours = isinstance(error, RefoldError | OSError)
            problem = " ".join((str(error) if is_ours else f"a defect: {type(error).__name__}: {error}").split())
            if self._problems.get(name) != problem:
                self._say(f"{name}: {problem}")
            self._problems[name] = problem
            return False
        self._problems.pop(name, None)
        return result
