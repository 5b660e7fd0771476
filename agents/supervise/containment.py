"""Contain an agent by bubblewrap: what it can see and reach, and where the kernel refuses.

    file system   the root is read-only; the work folder can be written. /tmp, /run and /dev/shm are empty and its own.
                  What it must not see is covered: the log's folder, refold's state, keys, and `hide` of refold.toml.
                  An agent that records itself can also write the log's folder and its gate (gate.py).
    network       a namespace of its own, with a loopback on which only the proxy answers (contained.py), or nothing
    processes     a namespace of its own; all of them end with the first one. No privilege can be gained.
    limits        rlimits of each process; the number of processes by a control group where one can be made, else by an
                  rlimit, which the kernel does not apply to root

It is not a virtual machine: the kernel is shared, and what the user may read and is not covered can be read.

`probe` starts a program in this way once. If that fails, the agent is not started, and the reason is recorded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from refold.agents.keys.choose import KEYS_ENVIRONMENT
from refold.avro.errors import InputError
from refold.streams.open import file_path, is_kafka

_PROBE_S = 10
_EMPTY = ("/tmp", "/run")
_HIERARCHIES = (Path("/sys/fs/cgroup/pids"), Path("/sys/fs/cgroup"))


def bubblewrap(work: str, hidden: Sequence[str], written: Sequence[str] = ()) -> list[str]:
    """Return the command that contains another, up to the other.

    Args:
        work: The folder that can be written.
        hidden: Folders and files that cannot be seen.
        written: Folders that can be written as well.

    Raises:
        InputError: The program bwrap is missing, the kernel refuses, or Python would not be seen.
    """
    for each in (*_EMPTY, *hidden):
        if Path(sys.executable).is_relative_to(each) and not Path(sys.executable).is_relative_to(
            os.path.realpath(work)
        ):
            raise InputError(
                f'isolation = "bubblewrap": the agent cannot see {each}, and so not {sys.executable}, by which it is '
                "started: install refold elsewhere"
            )
    program = shutil.which("bwrap")
    if program is None:
        raise InputError('isolation = "bubblewrap" needs the program bwrap, which is not on PATH (Debian: bubblewrap)')
    refusal = _refusal(program)
    if refusal:
        raise InputError(f'isolation = "bubblewrap": the kernel refuses it here: {refusal}')
    work = os.path.realpath(work)
    mounts = {each: _cover(each) for each in hidden} | {each: ["--bind", each, each] for each in (work, *written)}
    # A folder before what is in it, which it would hide.
    ordered = [word for each in sorted(mounts, key=lambda path: path.count("/")) for word in mounts[each]]
    return [*_bubblewrap_command(program), *ordered, "--chdir", work]


def hidden_paths(log_url: str, state: str, environment: Mapping[str, str], more: Sequence[str]) -> list[str]:
    """Return what a contained agent must not see, as far as it exists.

    Args:
        log_url: The log; the folder of a `file:` log has a socket by which its owner can be asked.
        state: Refold's folder of the user's state.
        environment: The supervisor's variables.
        more: What refold.toml lists.
    """
    found = [state, *more]
    if not is_kafka(log_url):
        found.append(str(file_path(log_url)))
    keys = environment.get(KEYS_ENVIRONMENT, "")
    if keys.startswith("file:"):
        found.append(keys.removeprefix("file:"))
    return [os.path.realpath(each) for each in found if Path(each).exists()]


def own_records(log_url: str, environment: Mapping[str, str], gate: Path) -> list[str]:
    """Return the folders that a contained agent needs to record itself.

    Args:
        log_url: The log.
        environment: The supervisor's variables.
        gate: The folder of the agent's gate; it is made.

    Raises:
        InputError: The log is on Kafka, or has keys: a contained agent must reach neither brokers nor keys.
    """
    instead = 'use mode = "capture", whose records are written from outside'
    if is_kafka(log_url):
        raise InputError(
            'isolation = "bubblewrap": an agent that records itself on Kafka needs the network of its brokers; '
            f"{instead}, or run a sandbox of yours as its command"
        )
    if environment.get(KEYS_ENVIRONMENT):
        raise InputError(
            f'isolation = "bubblewrap": an agent that records itself needs {KEYS_ENVIRONMENT}, the keys of every run; '
            f"{instead}"
        )
    gate.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = file_path(log_url)
    return [os.path.realpath(each) for each in (log, gate)]


def _bubblewrap_command(program: str) -> list[str]:
    return [
        program, "--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc",
        "--unshare-uts", "--unshare-cgroup-try", "--cap-drop", "ALL", "--ro-bind", "/", "/", "--dev", "/dev",
        "--proc", "/proc", *(word for each in _EMPTY for word in ("--tmpfs", each)),
    ]  # fmt: skip


def _cover(path: str) -> list[str]:
    return ["--tmpfs", path] if Path(path).is_dir() else ["--ro-bind", os.devnull, path]


@cache
def _refusal(program: str) -> str:
    """Return why bubblewrap cannot contain anything here; empty if it can."""
    try:
        done = subprocess.run(
            [*_bubblewrap_command(program), "--", "true"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_PROBE_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"bwrap did not end within {_PROBE_S} s"
    return "" if done.returncode == 0 else " ".join(done.stderr.split()) or f"bwrap exited with {done.returncode}"


def group_for(name: str) -> str:
    """Return the folder of a control group that bounds processes and can be made here; empty if none can."""
    for hierarchy in _HIERARCHIES:
        group = hierarchy / f"refold-{name}"
        try:
            if not group.exists():
                group.mkdir()
            is_usable = (group / "pids.max").exists() and os.access(group / "cgroup.procs", os.W_OK)
            group.rmdir()
        except OSError:
            continue
        if is_usable:
            return str(group)
    return ""
