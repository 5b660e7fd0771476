"""A process between a server and its starter, so that the server never outlives the starter, even after kill -9.

Run as a script, on the standard library alone: supervisor.py LOG REMOVE COMMAND...

1. Start COMMAND with LOG as its output, and print its process id.
2. Each line on standard input is the name of a signal: send it, and answer `ok` when it has taken effect. (A killed
   process is gone then, and a stopped one is stopped.)
3. When COMMAND ends, end too.
4. When standard input ends, or the parent process changes, the starter is gone: kill COMMAND, remove the folder REMOVE
   unless REMOVE is the empty string, and end. (The parent is checked too, because a fork of the starter may keep our
   input open.)
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# The longest time until an ended command, or an ended parent with a living fork, is noticed.
_TICK_S = 0.2


def main(log: str, remove: str, *command: str) -> None:
    """Start the command and watch it until it ends or its starter does."""
    parent = os.getppid()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    with Path(log).open("ab") as out:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
    is_alone = False
    try:
        is_alone = _watch(child, parent)
    finally:
        child.kill()
        child.wait()
    if is_alone and remove:
        # Brokers of other supervisors may still be writing here: the supervisor that ends last removes the rest.
        shutil.rmtree(remove, ignore_errors=True)


def _watch(child: subprocess.Popen[bytes], parent: int) -> bool:
    """Return when the command has ended (False) or the starter has ended (True)."""
    try:
        _say(str(child.pid))
        while child.poll() is None:
            if os.getppid() != parent:
                return True
            if not select.select([0], [], [], _TICK_S)[0]:
                continue
            name = _hear()
            if not name:
                return True
            child.send_signal(signal.Signals[name])
            if name == "SIGKILL":
                child.wait()
            elif name == "SIGSTOP":
                # Not Popen's wait, which does not return for a stopped child. The next poll notices a child that ended.
                os.waitpid(child.pid, os.WUNTRACED)
            _say("ok")
    except BrokenPipeError:
        return True
    return False


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def _hear() -> str:
    """The next line, byte by byte so that `select` sees what is left; empty at the end of the input."""
    line = b""
    while byte := os.read(0, 1):
        if byte == b"\n":
            return line.decode()
        line += byte
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
