"""A timer of the kernel that kills this process at a time, unless it is set again.

It also kills a process that is stopped or hangs, and no code of the process can catch it. It counts the time in which
the machine sleeps. Linux only; elsewhere it does nothing.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import time
from typing import Any

_BY_SIGNAL = 0
_ABSOLUTE = 1


class _Event(ctypes.Structure):
    _fields_ = (("value", ctypes.c_void_p), ("signal", ctypes.c_int), ("notify", ctypes.c_int),
                ("rest", ctypes.c_char * 48))  # fmt: skip


class _Moment(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Moment), ("at", _Moment))


class KillTimer:
    """One timer, not set. May be set by any thread. Children of this process do not inherit it."""

    def __init__(self) -> None:
        """Create it.

        Raises:
            OSError: The kernel refused.
        """
        self._timer = ctypes.c_void_p()
        self._library = _library()
        if self._library is not None:
            event = _Event(signal=signal.SIGKILL, notify=_BY_SIGNAL)
            _raise_if_failed(
                self._library.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(self._timer))
            )

    def set(self, at_s: float) -> None:
        """Kill this process at that time, seconds of CLOCK_BOOTTIME. A time that is past kills it at once."""
        if self._library is not None:
            at_s = max(at_s, 1e-9)  # 0 would clear the timer
            setting = _Setting(at=_Moment(int(at_s), int(at_s % 1 * 1e9)))
            _raise_if_failed(self._library.timer_settime(self._timer, _ABSOLUTE, ctypes.byref(setting), None))

    def close(self) -> None:
        """Kill nothing any more, and give it back to the kernel."""
        if self._library is not None:
            self._library.timer_delete(self._timer)
            self._library = None


def _library() -> Any:
    if sys.platform != "linux":
        return None
    found = ctypes.CDLL(None, use_errno=True)
    return found if hasattr(found, "timer_create") else ctypes.CDLL("librt.so.1", use_errno=True)


def _raise_if_failed(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), "the kernel gives no timer")
