"""A tee between a client and the MCP server that it starts: every byte is passed on at once, and a copy is captured.

1. The server is a child of this process, with its own standard error. Two threads pass bytes on as they arrive: from
   the client to the server, and back.
2. If the client closes its end, the server's input is closed. If the server closes its end, so is the client's.
3. Signals are passed on and the exit status is returned, as for `refold record` (program.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from subprocess import Popen

from refold.agents.capture.capture import CaptureSettings, spool_root
from refold.agents.capture.mcp_runs import McpRuns
from refold.agents.capture.mcp_wire import McpWire
from refold.agents.capture.program import run_program
from refold.agents.capture.spool import Spool
from refold.agents.capture.spool_drain import StoredExchanges
from refold.streams.open import process_context

FOLDER = "mcp"
"""The folder of the spools of tees. Those of proxies are elsewhere, because they hold other messages."""
_PIECE_BYTES = 1 << 16
_STDIN, _STDOUT = 0, 1


class McpTee:
    """One session's capture. It has started when the constructor returns."""

    def __init__(self, settings: CaptureSettings) -> None:
        runtime = settings.runtime or process_context()
        root = (settings.spool or spool_root(settings.log_url, os.environ)) / FOLDER
        spool = Spool(root, runtime, settings.spool_bytes_max)
        self._wire = McpWire(spool, runtime.now_micros)
        self._storing = settings.drain(root, spool, runtime, McpRuns)

    def run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the server to its end.

        Returns:
            Its exit status, or minus the signal that ended it.
        """
        return run_program(arguments, environment, self._pass)

    def close(self, closing_s: float) -> StoredExchanges:
        """End the capture, and return what was stored and what was not.

        Args:
            closing_s: How long the log may take for the rest of the spool, seconds.
        """
        self._wire.end()
        return self._storing.close(closing_s)

    def _pass(self, server: Popen[bytes]) -> Callable[[], None]:
        assert server.stdin is not None
        assert server.stdout is not None
        to_server, from_server = server.stdin, server.stdout
        forth = threading.Thread(
            target=_pump, args=(_STDIN, to_server.fileno(), self._wire.sent, to_server.close), daemon=True
        )
        back = threading.Thread(
            target=_pump,
            args=(from_server.fileno(), _STDOUT, self._wire.said, from_server.close, _hang_up),
            daemon=True,
        )
        forth.start()
        back.start()
        return back.join


def _pump(source: int, target: int, seen: Callable[[bytes], None], *closes: Callable[[], None]) -> None:
    """Pass bytes on until one end is closed."""
    with suppress(OSError):
        while data := os.read(source, _PIECE_BYTES):
            seen(data)
            while data:
                data = data[os.write(target, data) :]
    for close in closes:
        with suppress(OSError):
            close()


def _hang_up() -> None:
    """Close standard output. Its descriptor stays in use, so that no file of ours gets that number."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDOUT)
    os.close(nowhere)
