"""The network, closed off for code under replay: what it would say to the world is not recorded, and not to be said.

1. `NetworkGuard` is a context manager. Code runs under guard if its context says so (contextvars), or if the frame that
   entered the guard is on its stack. The context goes along with tasks, with threads that are started and with work
   that is given to pools of threads (agents/replay/hooks.py). The frame finds code that runs in a context of its own.
2. Under guard these are denied: to look up a name, to connect or bind (loopback and Unix sockets too), to send on a
   socket that was open before, to start a process or hand work to one, and to load or call native code by ctypes.
   A pair of sockets within the process is allowed: event loops need it.
   In a process that the kernel confines, to change a file outside of its temporary folder is denied, too.
3. What is denied raises NetworkDenied at the place where it was tried. That holds after the guard is left, too, for
   threads and tasks that were begun under it, and for callbacks that it left behind (agents/replay/callbacks.py).
4. Other threads and contexts of the process go on: the guard cannot know whether the code had them act for it. While a
   guard is open, each thing of step 2 that they do is noted. Code in `outside()` and refold's own threads are exempt.
5. What was denied or noted is in `escapes`. A replay with escapes is never called the same.
6. What Python would start a process for when it is first asked for the platform is learned before the guard begins
   (agents/confined/kernel.py).

This does not see: extensions that connect in C (librdkafka, libcurl, grpc), a method of a C type that is called past
its Python class (`_socket.socket.send`), a function that was kept before the first guard in another place than a
module's names, what a process from before reads from a pipe, what an older thread does after the guard is left, and
finalizers of objects (`__del__`) that run then.
The kernel closes these for a confined replay (agents/confined/kernel.py).
"""

from __future__ import annotations

import contextvars
import sys
from types import FrameType, TracebackType
from typing import Self

from refold.agents.confined.kernel import learn_processor
from refold.agents.replay.callbacks import InterpreterCallbacks
from refold.agents.replay.hooks import install
from refold.agents.replay.watch import GuardWatch, Under, close_watch, open_watch, set_under, unset_under


class NetworkGuard(GuardWatch):
    """Closes the network to what runs inside of it; a context manager."""

    _token: contextvars.Token[Under | None]
    _kept: InterpreterCallbacks

    def __enter__(self) -> Self:
        learn_processor()
        install()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code.co_name == "__enter__":
            frame = frame.f_back
        self.frame = frame
        self._kept = InterpreterCallbacks()
        self._token = set_under(Under(self, ""))
        open_watch(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.carry_new(Under(self, ""))
        close_watch(self)
        unset_under(self._token)
        self.frame = None
