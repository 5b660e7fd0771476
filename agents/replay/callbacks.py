"""Callbacks that replayed code leaves behind: the guard's denials apply to them too, even after the guard is left.

`atexit.register`, `weakref.finalize` and `Future.add_done_callback` are wrapped (agents/replay/hooks.py). Others are
stored in lists and slots of the interpreter: handlers of signals, `gc.callbacks`, and the profile and trace functions
of the thread and of later threads. `InterpreterCallbacks` compares these at both ends of a guard, and puts new ones
under it.

Finalizers of objects (`__del__`), callbacks of weak references and other hooks of the interpreter are not detected.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from refold.agents.replay.watch import GuardContext, within

Function: TypeAlias = Callable[..., Any]
_SLOTS: tuple[tuple[Callable[[], Any], Callable[[Any], object]], ...] = (
    (sys.getprofile, sys.setprofile),
    (sys.gettrace, sys.settrace),
    (threading.getprofile, threading.setprofile),
    (threading.gettrace, threading.settrace),
)


class GuardedFunction:
    """A function that runs under a guard, wherever it is called. Equal to the bare function, so that it can be
    removed."""

    __slots__ = ("function", "under")

    def __init__(self, function: Function, under: GuardContext) -> None:
        self.function = function
        self.under = under

    @property
    def __wrapped__(self) -> Function:
        """The bare function, as for any function that wraps another."""
        return self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with within(self.under):
            return self.function(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return bool(self.function == (other.function if isinstance(other, GuardedFunction) else other))

    def __hash__(self) -> int:
        return hash(self.function)


class InterpreterCallbacks:
    """The callbacks that the interpreter has now."""

    def __init__(self) -> None:
        self._slots = [getter() for getter, _ in _SLOTS]
        self._of_gc = list(gc.callbacks)
        self._signals = _handlers()

    def carry_new(self, under: GuardContext) -> None:
        """Put callbacks that were added since then under a guard."""
        for before, (getter, setter) in zip(self._slots, _SLOTS, strict=True):
            found = getter()
            if found is not None and found is not before and callable(found):
                setter(GuardedFunction(found, under))
        for index, each in enumerate(gc.callbacks):
            if each not in self._of_gc:
                gc.callbacks[index] = GuardedFunction(each, under)
        for number, handler in _handlers().items():
            if handler is not self._signals.get(number):
                signal.signal(number, GuardedFunction(handler, under))


def _handlers() -> dict[int, Function]:
    """Return the signal handlers that are functions; only the main thread can have set any."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {number: signal.getsignal(number) for number in signal.valid_signals()}
    return {number: handler for number, handler in found.items() if callable(handler) and _is_python(handler)}


def _is_python(handler: object) -> bool:
    return handler is not signal.default_int_handler and not isinstance(handler, signal.Handlers)
