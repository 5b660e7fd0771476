"""Run a program in bubblewrap, with a network in which only the capture proxy answers, or nothing.

`refold record` starts this module instead of the program, and has set the variables that point at its proxy. A program
that records itself may have no proxy: then 2 and 3 are left out.

1. Start bubblewrap with one end of a pair of sockets, in a control group with a bound on processes if there is one.
2. Within, INNER listens on the proxy's port in the new network, whose loopback nothing else uses, and sends that
   listening socket out through the pair. It stays one of the new network. INNER then becomes the program.
3. Here each connection to it is accepted, and connected with the proxy in this network. So the program needs no
   setting of its own, and there is no other way out.

SIGTERM reaches the program by its process group. bubblewrap ignores it: it would end, and the kernel would then kill
the program, which could not end by itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from refold.agents.capture.step_header import PROXY_ENVIRONMENT

POINTED = "OPENAI_BASE_URL"
"""A variable that holds the proxy's URL."""
_BACKLOG = 128
_PIECE = 1 << 16
INNER = f"""
import os, signal, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
if int(sys.argv[2]):
    with socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog={_BACKLOG}) as listener:
        socket.send_fds(channel, [b"."], [listener.fileno()])
channel.close()
signal.signal(signal.SIGTERM, signal.SIG_DFL)
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"{{sys.argv[3]}}: {{error.strerror}}")
"""


def contained_command(
    bubblewrap: list[str], group: str, processes: int | None, command: list[str], kept: Sequence[str] = ()
) -> list[str]:
    """Return the command that runs another contained.

    Args:
        bubblewrap: As containment.py returns it.
        group: The folder of the control group to make; empty for none.
        processes: The most processes in the group.
        command: The program and its arguments.
        kept: The variables of refold that the program gets.
    """
    order = {"bubblewrap": bubblewrap, "group": group, "processes": processes, "kept": list(kept)}
    return [sys.executable, "-P", "-m", "refold.agents.supervise.contained", json.dumps(order), *command]


def main(arguments: list[str]) -> int:
    """Run a program. Return its exit status, 128 and the signal's number if a signal ended it."""
    order = json.loads(arguments[0])
    port = urlsplit(os.environ.get(POINTED, "")).port if PROXY_ENVIRONMENT in os.environ else 0
    outer, inner = socket.socketpair()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # inherited by bubblewrap
    group = Path(order["group"]) if order["group"] else None
    if group is not None:
        _make_group(group, order["processes"])

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text("0")

    listen = [sys.executable, "-I", "-S", "-c", INNER, str(inner.fileno()), str(port)]
    try:
        process = subprocess.Popen(
            [*order["bubblewrap"], "--", *listen, *arguments[1:]], pass_fds=(inner.fileno(),),
            env=_environment(order["kept"]),
            preexec_fn=join,  # noqa: PLW1509  # this process has one thread by now
        )  # fmt: skip
        inner.close()
        _, found, _, _ = socket.recv_fds(outer, 1, 1)
        if found:
            listener = socket.socket(fileno=found[0])
            threading.Thread(target=_serve, args=(listener, port), daemon=True).start()
        return process.wait()
    finally:
        if group is not None:
            with suppress(OSError):
                group.rmdir()


def _environment(kept: Sequence[str]) -> dict[str, str]:
    """Return the program's variables: without those of refold, which lead to the log, but for some."""
    return {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_") or name in kept}


def _make_group(group: Path, processes: int) -> None:
    with suppress(FileNotFoundError):
        group.rmdir()  # one that a killed process left
    group.mkdir()
    (group / "pids.max").write_text(str(processes))


def _serve(listener: socket.socket, port: Any) -> None:
    """Connect each connection with the proxy."""
    while True:
        inside, _ = listener.accept()
        try:
            outside = socket.create_connection(("127.0.0.1", port))
        except OSError:
            inside.close()
            continue
        for source, target in ((inside, outside), (outside, inside)):
            threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction until its end. The sockets are closed when nothing refers to them any more."""
    with suppress(OSError):
        while data := source.recv(_PIECE):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
