"""Several workers on one machine: each is a separate process, and all are ended when one ends.

1. Each is started with the same arguments, but its own data folder, instance and port.
2. SIGTERM and SIGINT are passed on to all: each drains.
3. When one ends by itself that is reported, the others are drained too, and the exit status is that one's: none is
   restarted here. The supervisor of this process restarts all of them.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Sequence

from refold.streams.events import event_of

_PASSED_ON = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 0.1

_log = logging.getLogger(__name__)


def run_several(commands: Sequence[Sequence[str]]) -> int:
    """Run the commands until all have ended; the exit status of the first that failed, else 0. Of those that fail
    within _LOOK_S, the first command counts.
    """
    workers = _Workers()
    before = {number: signal.signal(number, workers.end) for number in _PASSED_ON}
    try:
        for count, command in enumerate(commands, 1):
            workers.start(count, command)
        return workers.wait()
    finally:
        workers.end()
        for number, handler in before.items():
            signal.signal(number, handler)


class _Workers:
    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._is_ending = False

    def start(self, number: int, command: Sequence[str]) -> None:
        # In its own session: Ctrl-C reaches it once, through this process.
        process = self._running[number] = subprocess.Popen(command, start_new_session=True)
        if self._is_ending:
            process.terminate()

    def end(self, *_: object) -> None:
        """Drain all; once, because a second signal would end one that is about to leave."""
        if self._is_ending:
            return
        self._is_ending = True
        for process in list(self._running.values()):
            process.terminate()

    def wait(self) -> int:
        """Wait for all; a worker that ends unasked has failed, whatever its status."""
        status = 0
        while self._running:
            # A signal that arrives just before a system call is handled only when the call returns: so each is short.
            time.sleep(_LOOK_S)
            ended = {number: code for number, each in self._running.items() if (code := each.poll()) is not None}
            for number, code in ended.items():
                del self._running[number]
                if not self._is_ending:
                    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
                    _log.warning("worker %d %s, so the others are ended too; start them all again", number, how,
                                 extra=event_of("worker_ended", worker=number, how=how))  # fmt: skip
                failed = 128 - code if code < 0 else code
                status = status or failed or (0 if self._is_ending else 1)
                self.end()
        return status
