"""A process that heals a run of stuck_agent.py, and dies at a moment of it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import refold
from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import HealingLog
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
            _live(url, Path(folder), run)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _reach(moment: str) -> None:
    if os.environ["DIES_AT"] == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def _live(url: str, folder: Path, run: str) -> None:
    note, fork, continued = HealingLog.note, AgentLog.fork, AgentLog.continued

    def noting(self: HealingLog, status: str, *given: object, **more: object) -> None:
        _reach(f"before {status}")
        note(self, status, *given, **more)  # type: ignore[arg-type]
        _reach(f"after {status}")

    def forking(self: AgentLog, *given: object, **more: object) -> object:
        made = fork(self, *given, **more)  # type: ignore[arg-type]
        _reach("after the fork")
        return made

    def continuing(self: AgentLog, *given: object, **more: object) -> object:
        made = continued(self, *given, **more)  # type: ignore[arg-type]
        _reach("after the continuation")
        return made

    HealingLog.note = noting  # type: ignore[method-assign]
    AgentLog.fork = forking  # type: ignore[assignment,method-assign]
    AgentLog.continued = continuing  # type: ignore[assignment,method-assign]
    with refold.open(url) as log:
        Healer(log, HealPlan.load(folder / "heal.toml"), setting(folder)).apply(run)
