"""Processes that a run's code starts, or submits work to: their calls are not part of the run, and must not be lost.

A call can be recorded only in the run's own process. So a tool that is called in another process is refused, if the
process is known to belong to a run. Each way to start one leaves a mark:

    fork                   the run's scope is copied (recorder/context.py); the process is also marked, in case it
                           leaves that scope
    multiprocessing        the process object's configuration, which is passed to the process
    pools of processes     the work itself, because their processes may be older than the run
    programs               the variable REFOLD_RUN in the environment of the program: of subprocess, `os.exec*`,
                           `os.spawn*` and `os.posix_spawn*`; the command of `os.system` begins with it

A run that begins in such a process is a separate run. A program that another program starts with a new environment, as
by `env -i`, carries no mark.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

VARIABLE = "REFOLD_RUN"
_CONFIGURED = "refold_run"
_HANDED: ContextVar[str] = ContextVar("refold.handed", default="")
_forked_from: list[str] = []
"""The run in whose code this process was forked, if any."""


class WorkForProcess:
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


def mark_forked(run: str) -> None:
    """Mark this process, which a run's code forked. It stays marked even if it catches the exception that ends the
    run."""
    _forked_from[:] = [run]


def marked_environment(run: str, given: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """Return the environment of a program with the mark.

    Args:
        given: Without it; None is this process's own.
    """
    return {**(os.environ if given is None else given), VARIABLE: run}


def marked_command(run: str, command: Any) -> Any:
    """Return a shell command, of text or bytes, with the mark."""
    command = os.fspath(command)
    mark = f"export {VARIABLE}={shlex.quote(run)}\n"
    return os.fsencode(mark) + command if isinstance(command, bytes) else mark + command


def run_of_parent() -> str:
    """Return the run whose code started this process, or submitted its work; "" if none is known."""
    multiprocessing = sys.modules.get("multiprocessing.process")
    configured = "" if multiprocessing is None else multiprocessing.current_process()._config.get(_CONFIGURED, "")
    return _HANDED.get() or str(configured) or "".join(_forked_from) or os.environ.get(VARIABLE, "")
