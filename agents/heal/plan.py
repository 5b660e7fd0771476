"""A plan: the remedies that an operator declares. Read from TOML, or from the table `heal` of another file.

    attempts = 3                    # of one run, then it is left to a person
    attempts_per_hour = 10          # of all runs of the agent
    expect = ["outcome=succeeded"]  # what a copy must satisfy before the run itself continues
    golden = "golden"               # a folder of golden traces that the agent's code must pass
    guard = "policy.toml"           # the policy under which the run continues; paths are relative to the file

    [[remedy]]
    name = "another prompt"
    on = ["loop"]                   # kinds of findings (diagnosis.py); left out: any
    match = "fetch*"                # a pattern of the finding's name
    do = "change"
    arguments.model.system = "If a page gives nothing new, stop and say so."

What a remedy does:

    retry       continue from the last good step
    refresh     continue from before the first stale read, so that it is read again
    change      continue with another state (`state`, `drop`), other arguments of calls (`arguments`: another model or
                prompt), or another function of the agent (`entry`)
    limit       continue under the policy with a raised `budget` or `loop`
    function    continue as a registered function says (registered.py)
    ask         hand it to a person; after their approval, continue from the last good step

Keys of any remedy: `answers`, what a write tool answers to the copy; `expect`, more expectations; `version`, the
agent's version in the run that continues; `approve`, whether a person must approve before the run itself continues.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from refold.agents.golden.expect import expectation
from refold.agents.heal.diagnosis import KINDS, Diagnosis, RunFinding
from refold.agents.journal.record import Plain
from refold.agents.policy.rules import Policy
from refold.avro.errors import InputError
from refold.avro.files import read_toml

Do: TypeAlias = Literal["retry", "refresh", "change", "limit", "function", "ask"]
_NEEDED: Mapping[Do, tuple[str, ...]] = {
    "change": ("state", "drop", "arguments", "entry"), "limit": ("budget", "loop"), "function": ("function",),
}  # fmt: skip
_NOT_HEALED = ("unknown_effect", "question")


class DeclaredRemedy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One remedy; see the module."""

    name: str
    do: Do
    on: list[str] = []
    match: str = "*"
    state: dict[str, Any] = {}
    drop: list[str] = []
    arguments: dict[str, dict[str, Plain]] = {}
    entry: str = ""
    version: str = ""
    budget: dict[str, int | float] = {}
    loop: dict[str, Any] = {}
    function: str = ""
    answers: dict[str, Plain] = {}
    expect: list[str] = []
    approve: bool = False

    def finding(self, diagnosis: Diagnosis) -> RunFinding | None:
        """Return the first finding that the remedy is for; None if there is none."""
        wanted = ["stale_read"] if self.do == "refresh" else self.on or KINDS
        for each in diagnosis.findings:
            if each.kind in wanted and each.kind not in _NOT_HEALED and fnmatch.fnmatchcase(each.name, self.match):
                return each
        return None


class HealPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The remedies of an agent, in the order in which they are tried; see the module."""

    attempts: int = 3
    attempts_per_hour: int = 10
    expect: tuple[str, ...] = ("outcome=succeeded",)
    golden: str = ""
    guard: str = ""
    remedy: tuple[DeclaredRemedy, ...] = ()

    @staticmethod
    def load(path: str | Path) -> HealPlan:
        """Read a plan from a file. Paths in it are relative to its folder.

        Raises:
            InputError: The file cannot be read, is not TOML, or holds something that is not part of a plan.
        """
        return HealPlan.of_table(read_toml(path, f"the plan {path}"), str(path), Path(path).parent)

    @staticmethod
    def of_table(table: Mapping[str, Any], source: str, base: Path) -> HealPlan:
        """Return the plan of a parsed table, such as `heal` of another file.

        Args:
            table: The table.
            source: Its name in errors.
            base: The folder that its paths are relative to.

        Raises:
            InputError: As `load`.
        """
        try:
            plan = msgspec.convert(table, HealPlan)
        except msgspec.ValidationError as error:
            raise InputError(f"{source}: {error}; docs/guides/heal.md describes plans") from None
        _check(plan, source)
        paths = {name: str(base / path) for name in ("golden", "guard") if (path := getattr(plan, name))}
        return msgspec.structs.replace(plan, **paths)

    def policy(self, remedy: DeclaredRemedy) -> Policy | None:
        """Return the policy under which a run continues with a remedy; None if there is none.

        Raises:
            InputError: The policy cannot be read, or the remedy raises a limit of no policy.
        """
        if not self.guard:
            if remedy.budget or remedy.loop:
                raise InputError(f"remedy {remedy.name!r} raises a limit: name the policy's file with guard")
            return None
        policy = Policy.load(self.guard)
        tree = msgspec.to_builtins(policy)
        if remedy.budget:
            tree["budget"] = {**tree.get("budget", {}), **remedy.budget}
        if remedy.loop:
            tree["loop"] = {**(tree.get("loop") or {}), **remedy.loop}
        return Policy.of_table(tree, f"{self.guard} with remedy {remedy.name!r}")


DEFAULT = HealPlan(
    remedy=(
        DeclaredRemedy("retry", "retry", ["error", "tool", "unfinished"]),
        DeclaredRemedy("refresh what was read", "refresh"),
        DeclaredRemedy("hand it to a person", "ask"),
    )
)
"""The plan if none is declared."""


def _check(plan: HealPlan, source: str) -> None:
    def refuse(what: str) -> NoReturn:
        raise InputError(f"{source}: {what}")

    if plan.attempts < 1 or plan.attempts_per_hour < 1:
        refuse("attempts and attempts_per_hour are 1 or more")
    names: set[str] = set()
    for each in plan.remedy:
        if each.name in names:
            refuse(f"two remedies are named {each.name!r}; an attempt names its remedy")
        names.add(each.name)
        needed = _NEEDED.get(each.do, ())
        if needed and not any(getattr(each, name) for name in needed):
            refuse(f"remedy {each.name!r} has do = {each.do!r}, which needs one of: {', '.join(needed)}")
        for do, keys in _NEEDED.items():
            given = [name for name in keys if getattr(each, name)]
            if given and do != each.do:
                refuse(f"remedy {each.name!r} has do = {each.do!r}, and {given[0]} belongs to do = {do!r}")
        for kind in each.on:
            if kind not in KINDS or kind in _NOT_HEALED:
                known = ", ".join(kind for kind in KINDS if kind not in _NOT_HEALED)
                refuse(f"remedy {each.name!r}: on is a list of {known}; given {kind!r}")
    for text in (*plan.expect, *(text for each in plan.remedy for text in each.expect)):
        if expectation(text).subject == "exact":
            refuse("a healed run does something else than was recorded: expect anything but exact")
