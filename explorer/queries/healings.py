"""Attempts to heal runs, and how each failure fared: the answer of `refold heal --report`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from refold.agents.heal.healings import healings
from refold.agents.heal.report import report_json
from refold.agents.log import AgentLog
from refold.explorer.queries.query import arguments_of


@dataclass(frozen=True, slots=True)
class HealingsQuery:
    """Lists the attempts to heal runs.

    Attributes:
        run: The run whose attempts are listed; empty: all runs.
    """

    run: str = ""

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold heal`."""
        return arguments_of(["heal"], {"report": True}, *filter(None, [self.run]))

    def answer(self, log: AgentLog) -> dict[str, Any]:
        """Return each kind of failure, the most frequent first, and each attempt, the oldest first."""
        return report_json(healings(log, self.run))
