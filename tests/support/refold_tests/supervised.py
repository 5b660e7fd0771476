"""An agent that supervisors run, as a test sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import refold
from refold.agents.supervise.entries import AgentEntries
from refold.agents.supervise.listing import AgentRow, agent_row, agents
from refold_tests.child import Child
from refold_tests.supervising import lives
from refold_tests.waiting import await_true

Starting = Callable[..., Child]


def now() -> int:
    """Return the time, microseconds."""
    return time.time_ns() // 1000


class Desk:
    """The agent `desk` of a test, and its log as another process sees it. folder: of refold.toml and all else."""

    def __init__(self, folder: Path, url: str = "") -> None:
        self.folder = folder
        self.url = url or f"file:{folder}/log"
        # This process owns a log in a folder, so that no supervisor that is killed or stopped does.
        self.log = refold.open(self.url)
        self._entries = AgentEntries(self.log, now)

    def __enter__(self) -> Desk:
        return self

    def __exit__(self, *error: object) -> None:
        self.log.close()

    @property
    def row(self) -> AgentRow:
        """The agent as anybody sees it."""
        found = agents(self.log, now())
        return found[0] if found else agent_row("desk", {}, now())

    def output(self) -> str:
        """Return what the agent wrote."""
        return next((self.folder / "state").rglob("desk/output.log")).read_text()

    def wish(self, what: str) -> None:
        """Request what the agent should do."""
        self._entries.request("desk", what, "ann", "")

    def await_status(self, *statuses: str, lives_min: int = 0) -> AgentRow:
        """Return the agent's row once it has one of the statuses, and had so many lives."""
        await_true(
            lambda: self.row.status in statuses and len(lives(self.folder)) >= lives_min,
            f"{statuses}: {self.row}",
        )
        return self.row

    def awaits_gate(self) -> None:
        """Return when the agent is to wait at its next boundary."""
        await_true(lambda: any((self.folder / "state").rglob("desk/gate/hold")), "nobody paused it")

    @property
    def story(self) -> list[str]:
        """The statuses that it had."""
        return [each["after"] for each in self.row.transitions]
