"""Supervisors in processes of their own, which kill or stop themselves at moments of the protocol."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import refold
from refold.agents.state_home import state_folder
from refold.agents.supervise.entries import OwnedEntries
from refold.agents.supervise.keeper import boottime_s
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.owner import SupervisorSettings, supervisor_folder
from refold.agents.supervise.settings import load_agents
from refold.agents.supervise.supervisor import Supervisor
from refold.streams.open import process_context
from refold_tests.child import Child
from refold_tests.command import COMMAND

MOMENTS: dict[str, tuple[type, str]] = {
    "claimed": (OwnedEntries, "claim"),
    "granted": (OwnedEntries, "granted"),
    "recorded": (OwnedEntries, "status"),
    "started": (KeptProcess, "__init__"),
    "renewed": (OwnedEntries, "renew"),
    "extended": (KeptProcess, "extend"),
    "stopping": (KeptProcess, "stop"),
    "released": (OwnedEntries, "release"),
}


class Killed(BaseException):
    """A supervisor of this process was killed: nothing of it runs after this."""


CODE = "from refold_tests.supervising import main; main()"


def supervisor(
    start: Callable[..., Child], log_url: str, folder: Path, *, moment: str = "", count: int = 1, lease_s: float = 60,
    sent: str = "SIGKILL",
) -> Child:  # fmt: skip
    """Start a supervisor of the agents in `folder`/refold.toml. It prints what it says.

    Args:
        start: Starts a child.
        log_url: The log.
        folder: Of refold.toml; the state of the supervisor is in its folder `state`.
        moment: The moment, of MOMENTS, after which it sends itself a signal; empty: none.
        count: Which time that moment is reached.
        lease_s: Its lease.
        sent: The signal.
    """
    return start(CODE, log_url, folder, lease_s, moment, count, sent)


def main() -> None:
    """Run a supervisor in this process."""
    log_url, folder, lease_s, moment, count, sent = sys.argv[1:]
    os.environ["XDG_STATE_HOME"] = f"{folder}/state"
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
    if moment:
        _signal_after(*MOMENTS[moment], int(count), signal.Signals[sent])
    with refold.open(log_url) as log:
        by = supervisor_settings(log_url, Path(folder), float(lease_s), lambda line: print(line, flush=True))
        Supervisor(log, load_agents(Path(folder) / "refold.toml"), by).run(stop.wait)
    print("ended", flush=True)


def supervisor_settings(
    log_url: str, folder: Path, lease_s: float, say: Callable[[str], None]
) -> SupervisorSettings:  # fmt: skip
    """Return the settings of a supervisor whose state is in `folder`/state."""
    around = process_context()
    state = supervisor_folder(state_folder("agents", log_url, {"XDG_STATE_HOME": f"{folder}/state"}))
    return SupervisorSettings(
        around.agent, socket.gethostname(), log_url, state, dict(os.environ), [*COMMAND, "record"], int(lease_s * 1000),
        around.now_micros, boottime_s, around.new_id, say,
        [*COMMAND, "heal", "--apply", "--file", f"{folder}/refold.toml", "--supervised"],
    )  # fmt: skip


def _signal_after(owner: type, name: str, count: int, sent: signal.Signals) -> None:
    """Send this process a signal after a method's count-th call."""
    original: Callable[..., Any] = getattr(owner, name)
    calls: list[None] = []

    def wrapped(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        calls.append(None)
        if len(calls) == count:
            os.kill(os.getpid(), sent)
        return result

    setattr(owner, name, wrapped)


ALONE = '''
"""Notes whether another process of it runs too. It ends at `done`, fails at `fail`, and is held at its gate."""
import fcntl, os, sys, time
folder = sys.argv[1]
lock = open(folder + "/alone", "a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(folder + "/violated", "a").write("two at once\\n")
    time.sleep(600)
with open(folder + "/lives", "a") as lives:
    lives.write("%d\\n" % os.getpid())
print("alive", os.getpid(), flush=True)
gate = os.environ["REFOLD_GATE"]
while not os.path.exists(folder + "/done"):
    if os.path.exists(folder + "/fail"):
        sys.exit(3)
    if os.path.exists(gate + "/hold"):
        open(gate + "/held", "w").close()
    time.sleep(0.02)
'''


def lone_agent(folder: Path, **settings: object) -> None:
    """Write a refold.toml with one agent, `desk`, which notes each of its lives, and whether two were at once."""
    (folder / "alone.py").write_text(ALONE)
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in settings.items()
    ]
    (folder / "refold.toml").write_text("\n".join([
        "[agents.desk]", f"command = [{sys.executable!r}, '-S', '-E', 'alone.py', {str(folder)!r}]", *lines, ""
    ]))  # fmt: skip


def lives(folder: Path) -> list[int]:
    """Return the process ids of the agent's lives so far. Fail if two were at once."""
    assert not (folder / "violated").exists(), "two processes of the agent ran at once"
    try:
        return [int(line) for line in (folder / "lives").read_text().split()]
    except FileNotFoundError:
        return []
