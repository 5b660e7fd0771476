"""A process that heals a run of stuck_agent.py, and dies at a moment of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import refold
from refold.agents.heal import apply
from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import HealingLog
from refold.agents.heal.lease import healing_lease
from refold.agents.heal.plan import HealPlan
from refold.agents.log import AgentLog
from refold_tests.stuck_agent import setting


def main() -> None:
    """Live once for each line `URL FOLDER RUN MOMENT`: heal the run, and die at that moment. Prints how each life
    ended."""
    for line in sys.stdin:
        url, folder, run, moment = line.rstrip("\n").split("\t")
        pid = os.fork()
        if not pid:
            os.environ["DIES_AT"] = moment
            os.environ["PAY_LEASE_S"] = "4" if moment.endswith("the write") else "60"
            _live(url, Path(folder), run)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _reach(moment: str) -> None:
    if os.environ["DIES_AT"] == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def _dying(holder: object, name: str, moment: str) -> None:
    """Have a function of a class or a module die after it has returned."""
    function = getattr(holder, name)

    def called(*given: Any, **more: Any) -> Any:
        made = function(*given, **more)
        _reach(moment)
        return made

    setattr(holder, name, called)


def _live(url: str, folder: Path, run: str) -> None:
    note = HealingLog.note

    def noting(self: HealingLog, status: str, *given: Any, **more: Any) -> None:
        _reach(f"before {status}")
        note(self, status, *given, **more)
        _reach(f"after {status}")

    HealingLog.note = noting  # type: ignore[method-assign]
    _dying(AgentLog, "fork", "after the fork")
    _dying(AgentLog, "continued", "after the continuation")
    _dying(AgentLog, "run", "after the resume")
    _dying(AgentLog, "link", "after the link")
    _dying(apply, "ask_person", "after the question")
    with refold.open(url) as log, healing_lease(log, run):
        Healer(log, HealPlan.load(folder / "heal.toml"), setting(folder)).apply(run)
