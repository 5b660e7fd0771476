"""SIGTERM and Ctrl-C end a command, wherever they arrive.

Both raise an exception, so that unfinished files are removed and a log is closed. Python drops an exception that is
raised within a callback from C, such as that of a weak reference, and only prints that it was ignored. The command
would go on as if nobody had asked it to stop. So what is dropped is raised again:

1. Python hands what it drops to `sys.unraisablehook`. Where it is one of the two, a timer is set.
2. The timer's signal raises it again, AGAIN_S later, when the callback has returned. If it is dropped again, step 1
   follows again.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

TERMINATED = 143
AGAIN_S = 0.01


class Terminated(SystemExit):
    """SIGTERM arrived."""


def install() -> None:
    """For the process: handle SIGTERM, and lose neither it nor Ctrl-C."""
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
