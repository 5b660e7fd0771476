"""The keeper of one agent: a process between a supervisor and the agent, which ends the agent when its time is over.

The supervisor starts it with pipes and talks to it in lines of JSON. The first line is the KeeperOrder. Then:

    to the keeper      {"until_s": S}   the agent may run until then, by the clock that also counts sleep (BOOTTIME)
                       {"stop": S}      end the agent: SIGTERM, and SIGKILL after S seconds
                       {"kill": true}   end the agent at once
    from the keeper    {"started": PID, "process_start": TICKS, "contained": {...}}
                       {"ended": STATUS, "ran_s": S}, {"failed": WHY, "is_refused": BOOL}; these are the last line

1. It becomes the leader of a session and the reaper of orphaned descendants.
2. It takes the agent's lock on this machine. While an earlier keeper still has it, it waits, but not beyond `until_s`.
3. It kills every process that carries the agent's mark: descendants of an earlier one whose keeper was killed.
4. It starts the agent in a session of its own, with the mark, and with the kernel's promise to kill the agent when the
   keeper dies (PR_SET_PDEATHSIG).
5. It says `started`, copies the agent's output into files, and waits. It kills the agent and all its descendants if
   a. its standard input ends: the supervisor is gone;
   b. `until_s` is over: the supervisor is stopped, or has lost the agent, or its log is unreachable;
   c. its owner requests it;
   d. the agent's own process ends: what it left is a part of it.
6. When no descendant is left it says `ended`, and ends. The lock is released by that, not before.

Killed before 4: nothing runs. Between 4 and 6: the kernel kills the agent (4); other descendants are killed by the next
keeper on this machine (3), or by a supervisor that sees its keeper end. The lock is the kernel's and is released. The
supervisor kills them only while it holds the lock itself: if the next keeper holds it, the marked processes are that
keeper's.

Stopped with the agent running (SIGSTOP to the keeper alone): the agent runs past its time until the keeper continues.
Only the operator can cause that. A machine that sleeps stops both; `until_s` counts the sleep.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from refold.agents.supervise.machine_processes import MARK, descendants, kill_all, marked, process_start
from refold.agents.supervise.output_files import OutputFile

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LOOK_S = 0.1
_PIECE = 1 << 16
LOCK = "lock"


class KeeperOrder(NamedTuple):
    """The first message to a keeper.

    Attributes:
        command: The command of the agent.
        environment: The agent's variables, without the mark.
        work: The folder in which the agent runs.
        folder: The folder of the lock and the output.
        mark: The mark of the agent's processes (machine_processes.py).
        until_s: Until when the agent may run, by the clock that also counts sleep, in seconds.
        output_bytes: The size of each output file.
        contained: What is reported with `started`.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    work: str
    folder: str
    mark: str
    until_s: float
    output_bytes: int
    contained: Mapping[str, Any]


def boottime_s() -> float:
    """Return seconds since the machine's boot, those in which it slept included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class JsonLineReader:
    """Reads lines of JSON from a descriptor that does not block."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._rest = b""
        self.has_ended = False

    def read(self) -> list[dict[str, Any]]:
        """Return the whole lines that have arrived."""
        while not self.has_ended:
            try:
                piece = os.read(self._descriptor, _PIECE)
            except BlockingIOError:
                break
            except OSError:
                piece = b""
            self._rest += piece
            self.has_ended = not piece
        *whole, self._rest = self._rest.split(b"\n")
        return [json.loads(each) for each in whole if each]


class Keeper:
    """Keeps one agent. told: its standard input."""

    def __init__(self, order: KeeperOrder, lines: JsonLineReader) -> None:
        self._order = order
        self._told = lines
        self._until_s = order.until_s
        self._kill_at_s: float | None = None
        self._agent: subprocess.Popen[bytes] | None = None

    def run(self) -> int:
        """Run the agent to its end. Return the exit status of this process."""
        lock = self._locked()
        if lock is None:
            return self._report_failure("an earlier process of it has not ended", is_refused=False)
        if not kill_until_none(lambda: [*marked(self._order.mark)], self._is_over):
            return self._report_failure("processes of an earlier one cannot be killed", is_refused=False)
        output = OutputFile(Path(self._order.folder), self._order.output_bytes)
        began = time.monotonic()
        try:
            agent = self._start()
        except OSError as error:
            return self._report_failure(f"{self._order.command[0]}: {error.strerror or error}", is_refused=True)
        except subprocess.SubprocessError as error:  # raised in the child, before the program
            return self._report_failure(f"it cannot be prepared: {error}", is_refused=True)
        self._agent = agent
        _write_line(started=agent.pid, process_start=process_start(agent.pid), contained=self._order.contained)
        status = self._wait_for_end(agent, output)
        _write_line(ended=status, ran_s=time.monotonic() - began)
        return 0

    def _locked(self) -> int | None:
        """Return the descriptor of the lock; None if another keeper still has it when time is over."""
        while (lock := try_lock(self._order.folder)) is None:
            if self._is_over():
                return None
            time.sleep(_LOOK_S)
        return lock

    def _start(self) -> subprocess.Popen[bytes]:
        order, own = self._order, os.getpid()
        libc = ctypes.CDLL(None)

        def before() -> None:
            libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != own:
                os.kill(os.getpid(), signal.SIGKILL)

        return subprocess.Popen(
            list(order.command), env={**order.environment, MARK: order.mark}, cwd=order.work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True, bufsize=0,
            preexec_fn=before,  # noqa: PLW1509  # this process has one thread
        )  # fmt: skip

    def _wait_for_end(self, agent: subprocess.Popen[bytes], output: OutputFile) -> int:
        """Wait for the end of the agent and of its descendants; return the agent's exit status."""
        assert agent.stdout is not None
        pipe = agent.stdout.fileno()
        os.set_blocking(pipe, False)
        status: int | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
            while status is None:
                selector.select(_LOOK_S)
                if not copied(pipe, output) and pipe in {key.fd for key in selector.get_map().values()}:
                    selector.unregister(pipe)
                if self._is_over():
                    kill_all(descendants(os.getpid()))
                status = _reap(agent.pid)
        agent.returncode = status
        kill_until_none(lambda: descendants(os.getpid()), lambda: False)
        copied(pipe, output)
        output.close()
        return status

    def _is_over(self) -> bool:
        """Return whether the agent's time is over, after what the supervisor said meanwhile."""
        for line in self._told.read():
            self.take(line)
        now = boottime_s()
        is_stopped = self._kill_at_s is not None and (now >= self._kill_at_s or self._agent is None)
        return self._told.has_ended or now >= self._until_s or is_stopped

    def take(self, line: Mapping[str, Any]) -> None:
        """Do what the supervisor says."""
        if "until_s" in line:
            self._until_s = line["until_s"]
        elif "kill" in line:
            self._kill_at_s = 0.0
        elif "stop" in line and self._kill_at_s is None:
            self._kill_at_s = boottime_s() + line["stop"]
            if self._agent is not None:
                with suppress(ProcessLookupError):
                    os.killpg(self._agent.pid, signal.SIGTERM)

    @staticmethod
    def _report_failure(why: str, *, is_refused: bool) -> int:
        _write_line(failed=why, is_refused=is_refused)
        return 1


def try_lock(folder: str) -> int | None:
    """Take the agent's lock on this machine.

    Args:
        folder: The folder of the lock.

    Returns:
        The descriptor of the lock, which is released when it is closed; None if another process has the lock.
    """
    lock = os.open(Path(folder) / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except BaseException:
        os.close(lock)
        raise
    return lock


def copied(pipe: int, output: OutputFile) -> bool:
    """Copy what a pipe has. Return False at its end."""
    while True:
        try:
            data = os.read(pipe, _PIECE)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        output.write(data)


def kill_until_none(found: Callable[[], list[int]], is_over: Callable[[], bool]) -> bool:
    """Kill processes until there is none left: one that is being killed may still start another.

    Args:
        found: Returns their ids.
        is_over: Returns whether to give up.

    Returns:
        Whether there is none left.
    """
    while pids := found():
        if is_over():
            return False
        kill_all(pids)
        _reap(0)
        time.sleep(_LOOK_S / 10)
    return True


def _reap(wanted: int) -> int | None:
    """Reap every child that has ended; return the exit status of the wanted one, if it was among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, found = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                status = os.waitstatus_to_exitcode(found)
    return status


def _write_line(**line: object) -> None:
    with suppress(OSError):  # the supervisor is gone, which ends the agent
        os.write(sys.stdout.fileno(), json.dumps(line).encode() + b"\n")


def main() -> int:
    """Keep the agent that the first line describes."""
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    told = JsonLineReader(sys.stdin.fileno())
    while not (lines := told.read()):
        if told.has_ended:
            return 1
        time.sleep(_LOOK_S / 10)
    keeper = Keeper(KeeperOrder(**lines[0]), told)
    for line in lines[1:]:
        keeper.take(line)
    return keeper.run()


if __name__ == "__main__":
    sys.exit(main())
