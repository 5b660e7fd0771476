"""Read refold.toml: which agents there are, and how each is run.

Each agent is a table `[agents.NAME]`. Paths are relative to the file's folder. An error names the key.

The keys `golden` and `heal` are for healing (agents/heal/agents_file.py): a supervisor only checks `heal`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from refold.agents.heal.plan import HealPlan
from refold.agents.policy.rules import NO_BUDGET, Policy, RunBudget
from refold.avro.errors import InputError
from refold.avro.files import parse_toml, read_toml

FILE = "refold.toml"
Mode: TypeAlias = Literal["sdk", "capture"]
Restart: TypeAlias = Literal["never", "on-failure", "always"]
Isolation: TypeAlias = Literal["none", "bubblewrap"]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DAY_S = 86_400.0
_REFERENCES = ("env", "file", "text")


class AgentLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits on the processes of an agent. None: the supervisor's own limit.

    Attributes:
        processes: The number of processes and threads at once.
        memory_mb: The address space of each process, in MiB.
        files: The number of open files of each process.
        file_mb: The size of a file that it writes, in MiB.
        cpu_s: The processor time of each process, in seconds.
    """

    processes: int | None = None
    memory_mb: int | None = None
    files: int | None = None
    file_mb: int | None = None
    cpu_s: int | None = None


class AgentSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one agent is run. Times are seconds.

    Attributes:
        command: The program and its arguments.
        mode: `sdk` if its code records itself, `capture` if a proxy does.
        restart: When it is started again after its end.
        backoff_s: The wait after the first failure; it doubles with each further one, up to backoff_max_s.
        retries: The number of failures in a row after which it stays failed; None: no bound.
        reset_s: How long a process must run to end the row of failures.
        stop_s: How long it may take to end after SIGTERM.
        resume: Whether a start makes one run, which the next start resumes if it did not succeed.
        env: The variables by reference.
        work: The folder in which it runs.
        policy: The file of the policy of its runs.
        budget: What each of its runs may use.
        hide: The folders and files that a contained agent must not see.
        upstream: As the option --upstream of `refold record`.
        output_mb: The size of each of the two files that hold its output, in MiB.
    """

    command: tuple[str, ...]
    mode: Mode = "sdk"
    restart: Restart = "on-failure"
    backoff_s: float = 1.0
    backoff_max_s: float = 60.0
    retries: int | None = None
    reset_s: float = 60.0
    stop_s: float = 10.0
    resume: bool = True
    env: Mapping[str, str] = {}
    work: str = ""
    upstream: str = ""
    policy: str = ""
    budget: RunBudget = NO_BUDGET
    hide: tuple[str, ...] = ()
    isolation: Isolation = "none"
    limits: AgentLimits = AgentLimits()
    output_mb: int = 16
    golden: str = ""
    heal: Mapping[str, Any] = {}
    name: str = ""

    def backoff_after(self, failures: int) -> float:
        """Return the wait after the n-th failure in a row, seconds.

        Args:
            failures: The number n of the failure, from 1.
        """
        return min(self.backoff_max_s, self.backoff_s * 2.0 ** min(failures - 1, 60))

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that the file gives the agent, with their values.

        Args:
            base: The supervisor's own environment, for references to it.

        Raises:
            InputError: A reference leads nowhere. The message contains no value.
        """
        found = {}
        for variable, reference in self.env.items():
            kind, _, what = reference.partition(":")
            place = f"agents.{self.name}.env.{variable}"
            if kind == "text":
                found[variable] = what
            elif kind == "env":
                if what not in base:
                    raise InputError(f"{place}: {what} is not set in the supervisor's environment")
                found[variable] = base[what]
            else:
                try:
                    found[variable] = Path(what).read_text(encoding="utf-8").rstrip("\n")
                except (OSError, ValueError) as error:
                    reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
                    raise InputError(f"{place}: {what} cannot be read: {reason}") from None
                if "\0" in found[variable]:
                    raise InputError(f"{place}: {what} holds a zero byte, which no variable can")
        return found


def load_agents(path: Path) -> dict[str, AgentSettings]:
    """Read the agents of a file, by name, in its order.

    Args:
        path: The file, such as refold.toml.

    Raises:
        InputError: It cannot be read, or a key is unknown, missing or has an impossible value; the message names it.
    """
    hint = "; docs/guides/supervise.md shows one"
    return _agents(read_toml(path, f"{path}:", hint), path.absolute().parent, str(path))


def parse_agents(text: str, folder: Path, source: str = FILE) -> dict[str, AgentSettings]:
    """Read agents from the text of a file.

    Args:
        text: TOML.
        folder: The folder to which its paths are relative.
        source: The name of the text in errors.

    Raises:
        InputError: As `load_agents`.
    """
    return _agents(parse_toml(text, f"{source}:"), folder, source)


def _agents(tree: Mapping[str, Any], folder: Path, source: str) -> dict[str, AgentSettings]:
    def refuse(what: str) -> NoReturn:
        raise InputError(f"{source}: {what}")

    unknown = sorted(tree.keys() - {"agents"})
    if unknown:
        refuse(f"{unknown[0]}: there is no such key; agents are tables [agents.NAME]")
    agents = tree.get("agents")
    if not isinstance(agents, dict) or not agents:
        refuse("it declares no agent: write a table [agents.NAME] with its command")
    return {name: _agent(name, given, folder, refuse) for name, given in agents.items()}


def _agent(name: str, given: object, folder: Path, refuse: Callable[[str], NoReturn]) -> AgentSettings:
    place = f"agents.{name}"
    if not NAME.fullmatch(name):
        refuse(f"{place}: a name has letters, digits and . _ -, begins with a letter or a digit, and is up to 64 long")
    if not isinstance(given, dict):
        refuse(f"{place}: write a table: [{place}]")
    if "name" in given:
        refuse(f"{place}.name: the name is that of the table")
    if "budgets" in given:
        refuse(f"{place}.budgets: write the table [{place}.budget]")
    try:
        found = msgspec.convert(given, AgentSettings)
    except msgspec.ValidationError as error:
        said, _, where = str(error).partition(" - at ")
        key = where.strip("`").removeprefix("$")
        refuse(f"{place}{key}: {said[:1].lower()}{said[1:]}; docs/guides/supervise.md lists the keys")
    problem = _problem(found)
    if problem is not None:
        refuse(f"{place}.{problem}")
    try:
        hidden = tuple(str(folder / Path(each).expanduser()) for each in found.hide)
    except RuntimeError:
        refuse(f"{place}.hide: the home folder of a user in it is not known")
    found = msgspec.structs.replace(
        found, name=name, work=str(folder / found.work), env=_absolute(found.env, folder),
        policy=str(folder / found.policy) if found.policy else "",
        hide=hidden,
        golden=str(folder / found.golden) if found.golden else "",
    )  # fmt: skip
    if not os.path.isdir(found.work):  # noqa: PTH112  # a name that is too long is none, and no OSError
        refuse(f"{place}.work: {found.work} is no folder")
    try:
        HealPlan.of_table(found.heal, "heal", folder)
    except InputError as error:
        refuse(f"{place}.{error}")
    if found.policy:
        try:
            Policy.load(found.policy)
        except InputError as error:
            refuse(f"{place}.policy: {error}")
    return found


def _problem(found: AgentSettings) -> str | None:
    """Return the key whose value is impossible, and why; None if all are possible."""
    if not found.command or not all(found.command) or any("\0" in each for each in found.command):
        return 'command: write the program and its arguments as a list of texts, such as ["python", "agent.py"]'
    for key, seconds in (("backoff_s", found.backoff_s), ("backoff_max_s", found.backoff_max_s),
                         ("reset_s", found.reset_s), ("stop_s", found.stop_s)):  # fmt: skip
        if not 0 <= seconds <= _DAY_S:
            return f"{key}: {seconds:g} is not a number of seconds from 0 to {_DAY_S:g}"
    if found.backoff_s > found.backoff_max_s:
        return "backoff_s: it is above backoff_max_s"
    if found.retries is not None and found.retries < 0:
        return "retries: a number of 0 or more"
    if not 1 <= found.output_mb <= 1 << 20:
        return "output_mb: a whole number of MiB, from 1"
    for key, limit in msgspec.structs.asdict(found.limits).items():
        if limit is not None and limit < 1:
            return f"limits.{key}: a whole number from 1"
    for variable, reference in found.env.items():
        kind, colon, what = reference.partition(":")
        if not _VARIABLE.fullmatch(variable) or variable.startswith("REFOLD_"):
            return f"env.{variable}: it is no name of a variable, or one of refold's own"
        if kind not in _REFERENCES or not colon or (kind != "text" and not what) or "\0" in what:
            return f'env.{variable}: write a reference: "env:NAME", "file:PATH", or "text:VALUE" for what is no secret'
    if found.budget.problem:
        return f"budget.{found.budget.problem}"
    if found.upstream and found.mode != "capture" and found.isolation == "none":
        return 'upstream: only an agent with mode = "capture" or isolation = "bubblewrap" has a proxy'
    if found.heal and (found.mode != "sdk" or not found.resume):
        return 'heal: only an agent with mode = "sdk" that resumes its run can be healed'
    if found.hide and found.isolation == "none":
        return 'hide: only isolation = "bubblewrap" hides anything'
    return None


def _absolute(env: Mapping[str, str], folder: Path) -> dict[str, str]:
    return {
        variable: f"file:{folder / reference.removeprefix('file:')}" if reference.startswith("file:") else reference
        for variable, reference in env.items()
    }


def chosen(agents: Mapping[str, AgentSettings], names: tuple[str, ...], source: str) -> dict[str, AgentSettings]:
    """Return the named agents, or all if no name is given.

    Raises:
        InputError: A name is not in the file.
    """
    for name in names:
        if name not in agents:
            raise InputError(f"{source}: there is no agent {name}; it declares {', '.join(agents)}")
    return {name: agents[name] for name in names} if names else dict(agents)


def inherited(base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the supervisor that every agent gets: those of the system and of refold, no others."""
    return {name: value for name, value in base.items() if name in _INHERITED or name.startswith(("LC_", "REFOLD_"))}


_INHERITED = frozenset({
    "HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER", "VIRTUAL_ENV", "XDG_STATE_HOME",
    "SSL_CERT_DIR", "SSL_CERT_FILE",
})  # fmt: skip
