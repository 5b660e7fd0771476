"""An agent's process as its owner sees it: the keeper that was started for it, and what the keeper says."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from refold.agents.supervise.keeper import JsonLineReader, KeeperOrder, try_lock
from refold.agents.supervise.machine import ProcessView
from refold.agents.supervise.machine_processes import kill_all, marked
from refold.streams import child_process

_KEEPER = "refold.agents.supervise.keeper"


class KeptProcess:
    """A keeper, and the agent below it.

    Attributes:
        contained: What is contained, as the keeper reports it.
    """

    def __init__(self, order: KeeperOrder) -> None:
        """Start a keeper.

        Raises:
            OSError: No process can be started.
        """
        self._mark, self._folder = order.mark, order.folder
        self._keeper = child_process.start(_KEEPER, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._keeper.stdout is not None
        self._lines = JsonLineReader(self._keeper.stdout.fileno())
        self._view = ProcessView(is_there=True)
        self._last: ProcessView | None = None
        self.process_start = 0
        self.contained: Mapping[str, Any] = {}
        self._send_line(order._asdict())

    def extend(self, until_s: float) -> None:
        """Let the agent run until then, by BOOTTIME."""
        self._send_line({"until_s": until_s})

    def stop(self, within_s: float) -> None:
        """End the agent: by SIGTERM, and by SIGKILL after this time, seconds."""
        self._send_line({"stop": within_s})

    def kill(self) -> None:
        """End the agent at once."""
        self._send_line({"kill": True})

    @property
    def is_gone(self) -> bool:
        """Whether the keeper has ended; nothing of the agent runs any more."""
        return self._keeper.poll() is not None

    def view(self) -> ProcessView:
        """Return what is known of the agent's process. It has ended for its owner only when its keeper has ended."""
        has_ended = self._keeper.poll() is not None
        for line in self._lines.read():
            if "started" in line:
                self._view = self._view._replace(pid=line["started"])
                self.process_start, self.contained = line["process_start"], line["contained"]
            elif "ended" in line:
                self._last = self._view._replace(is_there=False, exit_status=line["ended"], ran_s=line["ran_s"])
            else:
                self._last = self._view._replace(
                    is_there=False, failure=line["failed"], is_refused=line["is_refused"]
                )  # fmt: skip
        if has_ended and self._view.is_there:
            self._kill_left()
            why = f"its keeper {child_process.ending(self._keeper.returncode)}"
            self._view = self._last or self._view._replace(is_there=False, failure=why)
        return self._view

    def close(self) -> None:
        """Release the pipes of a keeper that has ended."""
        for pipe in (self._keeper.stdin, self._keeper.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def _kill_left(self) -> None:
        """Kill what a keeper left that was killed itself, but no process of a keeper that holds the lock now."""
        lock = None
        with suppress(OSError):  # the next keeper kills what is left before it starts the agent
            lock = try_lock(self._folder)
        if lock is not None:
            try:
                kill_all(marked(self._mark))
            finally:
                os.close(lock)

    def _send_line(self, line: Mapping[str, Any]) -> None:
        assert self._keeper.stdin is not None
        with suppress(OSError):  # the keeper has ended, which `view` notices
            self._keeper.stdin.write(json.dumps(line).encode() + b"\n")
