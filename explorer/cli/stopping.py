"""SIGTERM and Ctrl-C end a command, whenever they arrive.

Both raise an exception, so that unfinished files are removed and the log is closed. But Python drops an exception that
is raised within a callback from C, such as that of a weak reference. It only prints that the exception was ignored, and
the command would continue. So a dropped exception is raised again:

1. Python passes a dropped exception to `sys.unraisablehook`. If it is one of the two, a timer is set.
2. AGAIN_S later, when the callback has returned, the timer's signal handler raises the exception again. If it is
dropped
   again, step 1 follows again.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

TERMINATED = 143
AGAIN_S = 0.01


class Terminated(SystemExit):
    """Raised when SIGTERM arrives."""


def install() -> None:
    """Handle SIGTERM in this process, and raise dropped SIGTERM and Ctrl-C exceptions again."""
    dropped: list[BaseException] = []
    hook = sys.unraisablehook

    def unraisable(found: sys.UnraisableHookArgs) -> None:
        error = found.exc_value
        if not isinstance(error, Terminated | KeyboardInterrupt):
            hook(found)
            return
        dropped.append(error)
        signal.setitimer(signal.ITIMER_REAL, AGAIN_S)

    def again(number: int, frame: FrameType | None) -> None:
        if dropped:
            raise dropped.pop()

    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGALRM, again)
    sys.unraisablehook = unraisable


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise Terminated(TERMINATED)
