"""Close the network for code under replay: messages that it would send to the world are not recorded, and must not be
sent.

1. `NetworkGuard` is a context manager. Code runs under guard if its context says so (contextvars), or if the frame that
   entered the guard is on its stack. Tasks, started threads and work in thread pools inherit the context
   (agents/replay/hooks.py). The frame finds code that runs in a new context.
2. Under guard these are denied: to resolve a name, to connect or bind (loopback and Unix sockets too), to send on a
   socket that was open before, to start a process or submit work to one, and to load or call native code by ctypes. A
   pair of sockets within the process is allowed: event loops need it. In a process that the kernel confines, changing a
   file outside its temporary folder is denied, too.
3. A denied operation raises NetworkDenied where it was tried. That also holds after the guard is left, for threads and
   tasks that were started under it, and for callbacks that it left behind (agents/replay/callbacks.py).
4. Other threads and contexts of the process continue: the guard cannot know whether the replayed code makes them act.
   While a guard is open, each operation of step 2 that they perform is noted. Code in `outside()` and refold's own
   threads are exempt.
5. Denied and noted operations are in `escapes`. A replay with escapes is never reported as the same.
6. Python starts a process when the platform is first queried, so the result is cached before the guard begins
   (agents/confined/kernel.py).

The guard does not detect: extensions that connect in C (librdkafka, libcurl, grpc); a method of a C type that is called
without its Python class (`_socket.socket.send`); a function that was stored before the first guard in another place
than a module's names; reads from a pipe of an earlier process; an older thread after the guard is left; and finalizers
of objects (`__del__`) that run then. The kernel prevents these in a confined replay (agents/confined/kernel.py).
"""

from __future__ import annotations

import contextvars
import sys
from types import FrameType, TracebackType
from typing import Self

from refold.agents.confined.kernel import learn_processor
from refold.agents.replay.callbacks import InterpreterCallbacks
from refold.agents.replay.hooks import install
from refold.agents.replay.watch import GuardContext, GuardWatch, close_watch, open_watch, set_under, unset_under


class NetworkGuard(GuardWatch):
    """Closes the network for code that runs inside it. A context manager."""

    _token: contextvars.Token[GuardContext | None]
    _kept: InterpreterCallbacks

    def __enter__(self) -> Self:
        learn_processor()
        install()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name == "__enter__":
            frame = frame.f_back
        self.frame = frame
        self._kept = InterpreterCallbacks()
        self._token = set_under(GuardContext(self, ""))
        open_watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.carry_new(GuardContext(self, ""))
        close_watch(self)
        unset_under(self._token)
        self.frame = None
