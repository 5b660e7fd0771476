"""The command and the environment with which an agent is started."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from refold.agents.capture.step_header import PROXY_ENVIRONMENT
from refold.agents.supervise.contained import contained_command
from refold.agents.supervise.containment import bubblewrap, group_for, hidden_paths, own_records
from refold.agents.supervise.gate import gate_folder
from refold.agents.supervise.settings import AgentSettings, inherited
from refold.agents.supervise.supervised import BUDGET, GATE, GUARD, RUN
from refold.avro.errors import InputError

_LIMITS = {
    "processes": ("nproc", 1), "memory_mb": ("as", 1 << 20), "files": ("nofile", 1), "file_mb": ("fsize", 1 << 20),
    "cpu_s": ("cpu", 1),
}  # fmt: skip
"""Each limit's name for prlimit, and its unit."""

_RECORDING = ("REFOLD_LOG", RUN, GATE, GUARD, BUDGET, "REFOLD_TYPES", "REFOLD_PRICES", PROXY_ENVIRONMENT)
"""The variables that a process needs to record itself."""


class AgentLaunch(NamedTuple):
    """How an agent is started.

    Attributes:
        contained: What is contained, as it is recorded.
    """

    command: list[str]
    environment: dict[str, str]
    contained: dict[str, Any]


def launch_of(
    settings: AgentSettings,
    log_url: str,
    environment: Mapping[str, str],
    capture_command: Sequence[str],
    folder: Path,
    run: str = "",
) -> AgentLaunch:
    """Return how an agent is started.

    Args:
        settings: The agent.
        log_url: Its log, with an absolute path.
        environment: The supervisor's variables.
        capture_command: Runs a program whose model calls are captured, up to its options.
        folder: The agent's folder in the user's state.
        run: The run that it makes or resumes; empty if it decides itself.

    Raises:
        InputError: It cannot be started as the file says; the message says why.
    """
    given = settings.environment(environment)
    variables = {"PYTHONUNBUFFERED": "1", **inherited(environment), **given, "REFOLD_LOG": log_url}
    limits = {name: limit for name, limit in msgspec.structs.asdict(settings.limits).items() if limit is not None}
    contained: dict[str, Any] = {"isolation": settings.isolation, "limits": limits}
    if settings.isolation == "bubblewrap":
        command, more = _contained_command(settings, log_url, environment, folder, limits)
        contained |= more
    else:
        if "processes" in limits and os.geteuid() == 0:
            raise InputError("limits.processes: the kernel does not apply it to root; run refold up as another user")
        command = _limited_command(limits, settings.command)
    if settings.mode == "capture" or settings.upstream:
        _require_capture()
        options = ["--log", log_url, "--agent", settings.name]
        options += ["--upstream", settings.upstream] if settings.upstream else []
        if settings.mode == "capture":
            options += ["--policy", settings.policy] if settings.policy else []
            options += [f"--budget={name}={limit}" for name, limit in settings.budget.limits.items()]
            options += ["--resume", run] if run else []
        command = [*capture_command, *options, "--", *command]
    if settings.mode == "sdk":
        variables |= {RUN: run} if run else {}
        variables |= {GUARD: settings.policy} if settings.policy else {}
        variables |= {BUDGET: msgspec.json.encode(settings.budget).decode()} if settings.budget.limits else {}
    return AgentLaunch(command, variables, contained)


def _contained_command(
    settings: AgentSettings, log_url: str, environment: Mapping[str, str], folder: Path, limits: Mapping[str, int]
) -> tuple[list[str], dict[str, Any]]:  # fmt: skip
    """Return the command of a contained agent, and what is contained."""
    is_recording = settings.mode == "sdk"
    hidden = hidden_paths(log_url, str(folder.parent), environment, settings.hide)
    written: list[str] = []
    if is_recording:
        written = own_records(log_url, environment, gate_folder(folder))
        hidden = [each for each in hidden if each not in written]
    prefix = bubblewrap(settings.work, hidden, written)
    group, processes = "", limits.get("processes")
    if processes is not None:
        group = group_for(hashlib.sha256(str(folder).encode()).hexdigest()[:16])
        if not group and os.geteuid() == 0:
            raise InputError("limits.processes: no control group can be made here, and root has no rlimit of it")
    inner = {name: limit for name, limit in limits.items() if name != "processes" or not group}
    contained = {
        "file_system": f"read-only but for {', '.join([settings.work, *written])}",
        "hidden": ["/tmp", "/run", *hidden],
        "network": "none" if is_recording and not settings.upstream else "the capture proxy only",
        "processes": "a namespace of its own",
    }  # fmt: skip
    if processes is not None:
        contained["limited_by"] = "a control group" if group else "an rlimit"
    command = contained_command(
        prefix, group, processes, _limited_command(inner, settings.command), kept=_RECORDING if is_recording else ()
    )  # fmt: skip
    return command, contained


def _require_capture() -> None:
    """Refuse an agent that would fail at each start, because the extra that captures model calls is not installed."""
    for name in ("aiohttp", "brotli", "zstandard"):
        if find_spec(name) is None:
            raise InputError(
                f'{name} is not installed, and its model calls are captured: pip install "refold[capture]"'
            )


def _limited_command(limits: Mapping[str, int], command: Sequence[str]) -> list[str]:
    """Return a command that runs another with limits on its resources."""
    options = [f"--{_LIMITS[name][0]}={limit * _LIMITS[name][1]}" for name, limit in limits.items()]
    if not options:
        return list(command)
    program = shutil.which("prlimit")
    if program is None:
        raise InputError("its limits need the program prlimit (util-linux), which is not on PATH here")
    return [program, *options, "--", *command]
