"""Processes that a run's code starts, or hands work to: what they call is not part of the run, and must not be lost.

A call can be recorded in the run's own process alone. So a tool that is called in another process is refused, if that
can be known to belong to a run. Each way to get there leaves a mark:

    fork                   the run's scope is there (recorder/context.py)
    multiprocessing        the process object's configuration, which goes along with it
    pools of processes     the work itself, for their processes may be older than the run
    subprocess             the variable REFOLD_RUN in the environment of the program

A run that begins in such a process is a run of its own. Programs that are started by `os.system`, `os.exec*` or
`os.posix_spawn` carry no mark.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

VARIABLE = "REFOLD_RUN"
_CONFIGURED = "refold_run"
_HANDED: ContextVar[str] = ContextVar("refold.handed", default="")


class Handed:
    """Work for another process."""

    def __init__(self, run: str, work: Callable[..., Any]) -> None:
        self._run = run
        self._work = work

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _HANDED.set(self._run)
        try:
            return self._work(*args, **kwargs)
        finally:
            _HANDED.reset(token)


def mark_process(process: Any, run: str) -> None:
    """Mark a process of multiprocessing that is about to start."""
    process._config[_CONFIGURED] = run


def run_of_parent() -> str:
    """The run whose code started this process, or handed it what it does; "" where none is known."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    configured = "" if multiprocessing is None else multiprocessing.current_process()._config.get(_CONFIGURED, "")
    return _HANDED.get() or str(configured) or os.environ.get(VARIABLE, "")
