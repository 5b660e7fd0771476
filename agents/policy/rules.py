"""A policy: which tool and model calls of a run are denied. Read from a TOML file.

    name = "refund-desk"

    [[rule]]
    name = "large refunds"
    tool = "refund"                 # a pattern: * and ? match as in a shell
    args.eur.over = 100             # every condition must hold
    action = "deny"
    why = "A person decides on more than 100 EUR."

    [budget]
    tool_calls = 50                 # of the whole run, with its nested runs
    tokens = 200_000
    time_s = 900

    [loop]
    repeats = 3                     # after so many equal calls with equal results the next is denied

The order of evaluation:

1. Rules, from top to bottom. The first rule that matches a call decides on it: `allow`, `deny` or `ask` (a person). A
   rule names a `tool`, a `model` or a registered `function` (agents/policy/registered.py).
2. Budgets. A call that would exceed a budget is denied.
3. The loop breaker (agents/policy/facts.py).

A call that nothing denies is allowed. Rules see a call as it is recorded, which is after redaction.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeAlias

import msgspec

from refold.agents.journal.record import Plain
from refold.avro.errors import InputError
from refold.avro.files import parse_toml, read_toml

Action: TypeAlias = Literal["allow", "deny", "ask"]
REPEATS_MIN, PERIOD_MAX = 2, 32
_MISSING = object()


class ArgumentCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The conditions on one argument. All that are given must hold.

    A number written as text is compared as a number. A value that cannot be compared (`over` with a list) counts
    against the call: the condition holds for a rule that denies or asks, and does not hold for a rule that allows.
    """

    equals: Plain | msgspec.UnsetType = msgspec.UNSET
    differs: Plain | msgspec.UnsetType = msgspec.UNSET
    over: float | msgspec.UnsetType = msgspec.UNSET
    under: float | msgspec.UnsetType = msgspec.UNSET
    one_of: list[Plain] | msgspec.UnsetType = msgspec.UNSET
    none_of: list[Plain] | msgspec.UnsetType = msgspec.UNSET
    like: str | msgspec.UnsetType = msgspec.UNSET
    missing: bool | msgspec.UnsetType = msgspec.UNSET

    def holds(self, value: Any, *, if_incomparable: bool) -> bool:
        """Return whether the condition holds for a value.

        Args:
            value: The argument; `_MISSING` if the call has no such argument.
            if_incomparable: The result for a value that cannot be compared.
        """
        if self.missing is not msgspec.UNSET and (value is _MISSING) is not self.missing:
            return False
        if value is _MISSING:
            return self.missing is True
        return all(self._parts(value, if_incomparable))

    def _parts(self, value: Plain, if_incomparable: bool) -> Iterator[bool]:
        if self.equals is not msgspec.UNSET:
            yield value == self.equals
        if self.differs is not msgspec.UNSET:
            yield value != self.differs
        if self.one_of is not msgspec.UNSET:
            yield value in self.one_of
        if self.none_of is not msgspec.UNSET:
            yield value not in self.none_of
        if self.like is not msgspec.UNSET:
            yield matches(value, self.like) if isinstance(value, str) else if_incomparable
        for limit, is_over in ((self.over, True), (self.under, False)):
            if limit is not msgspec.UNSET:
                number = _number(value)
                yield if_incomparable if number is None else number > limit if is_over else number < limit

    def __str__(self) -> str:
        words = {"one_of": "is one of", "none_of": "is none of", "like": "is like", "missing": "missing is"}
        given = msgspec.structs.asdict(self).items()
        return " and ".join(f"{words.get(name, name)} {value}" for name, value in given if value is not msgspec.UNSET)


class PolicyRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One rule: which calls it matches, and the decision.

    Attributes:
        expires_s: For a rule that asks, how long a person has to answer, in seconds. After that the call is denied.
    """

    name: str
    action: Action = "deny"
    tool: str = ""
    model: str = ""
    function: str = ""
    args: dict[str, Any] = {}
    why: str = ""
    expires_s: float = 86_400

    def matches(self, kind: str, name: str, arguments: Plain) -> str | None:
        """Return why the rule matches a call, in words without the call's values; None if it does not match.

        A rule by a function never matches here; its function decides.

        Args:
            kind: The kind of call, `tool` or `model`.
            name: The name of the tool or model.
            arguments: The call's arguments by name.
        """
        pattern = self.tool if kind == "tool" else self.model
        if not pattern or not matches(name, pattern):
            return None
        conditions = list(_conditions(self.args))
        for path, condition in conditions:
            if not condition.holds(_argument_at(arguments, path), if_incomparable=self.action != "allow"):
                return None
        return ", ".join(f"{'.'.join(path)} {condition}" for path, condition in conditions)


class RunBudget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Budgets of a run and its nested runs.

    Attributes:
        time_s: The time from the run's start to the end of its last call, in seconds.
        cost_usd: The cost of model calls in US dollars, by the table of prices in force (agents/usage/prices.py).
    """

    calls: int | None = None
    tool_calls: int | None = None
    write_calls: int | None = None
    model_calls: int | None = None
    steps: int | None = None
    tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    time_s: float | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are given, by name."""
        return {name: limit for name, limit in msgspec.structs.asdict(self).items() if limit is not None}

    @property
    def problem(self) -> str:
        """Which limit is impossible, and why; empty if all are possible."""
        wrong = (f"{name} is {limit}; a budget is 0 or more" for name, limit in self.limits.items() if not limit >= 0)
        return next(wrong, "")

    def smaller(self, other: RunBudget) -> RunBudget:
        """Return the budget that keeps both."""
        mine, theirs = self.limits, other.limits
        return RunBudget(**{
            name: min(limits[name] for limits in (mine, theirs) if name in limits) for name in {*mine, *theirs}
        })  # type: ignore[arg-type]  # fmt: skip


NO_BUDGET = RunBudget()


class LoopLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, rename={"but": "except"}):
    """Defines when tool calls count as a loop.

    Attributes:
        repeats: How often in a row the same calls may have the same results.
        period_max: How many different calls a cycle may have.
        but: The patterns of the names of tools that are exempt.
    """

    repeats: int = 3
    period_max: int = 8
    but: list[str] = []


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rules, the budget and the loop limit of a policy file; see the module."""

    name: str
    rule: list[PolicyRule] = []
    budget: RunBudget = NO_BUDGET
    loop: LoopLimit | None = None

    def within(self, budget: RunBudget) -> Policy:
        """Return the policy with another budget as well: of two limits the smaller one holds."""
        return msgspec.structs.replace(self, budget=self.budget.smaller(budget))

    @staticmethod
    def load(path: str | Path) -> Policy:
        """Read a policy file.

        Raises:
            InputError: The file cannot be read, is not TOML, or holds something that is not part of a policy.
        """
        return Policy.of_table(read_toml(path, f"the policy {path}"), str(path))

    @staticmethod
    def parse(text: str, source: str = "policy") -> Policy:
        """Parse a policy from the text of a file.

        Args:
            text: TOML.
            source: The name of the text in errors.

        Raises:
            InputError: As `load`.
        """
        return Policy.of_table(parse_toml(text, source), source)

    @staticmethod
    def of_table(table: Mapping[str, Any], source: str) -> Policy:
        """Return the policy of a parsed table.

        Args:
            table: The table.
            source: Its name in errors.

        Raises:
            InputError: As `load`.
        """
        try:
            policy = msgspec.convert(table, Policy)
        except msgspec.ValidationError as error:
            raise InputError(f"{source}: {error}; docs/guides/policy.md describes policies") from None
        _check(policy, source)
        return policy


def matches(text: str, pattern: str) -> bool:
    """Return whether a text matches a pattern. Case matters.

    Args:
        text: The text.
        pattern: The pattern, with * and ? as in a shell.
    """
    return fnmatch.fnmatchcase(text, pattern)


def _check(policy: Policy, source: str) -> None:
    def refuse(what: str) -> NoReturn:
        raise InputError(f"{source}: {what}")

    names: set[str] = set()
    for rule in policy.rule:
        if rule.name in names:
            refuse(f"two rules are named {rule.name!r}; a decision names its rule")
        names.add(rule.name)
        if sum(map(bool, (rule.tool, rule.model, rule.function))) != 1:
            refuse(f"rule {rule.name!r} needs exactly one of: tool, model, function")
        if rule.expires_s <= 0:
            refuse(f"rule {rule.name!r}: expires_s is a number of seconds above 0")
        if rule.function and rule.args:
            refuse(f"rule {rule.name!r}: a function looks at the arguments itself; leave args out")
        try:
            for path, condition in _conditions(rule.args):
                if not str(condition):
                    refuse(f"rule {rule.name!r}: args.{'.'.join(path)} has no condition")
        except msgspec.ValidationError as error:
            refuse(f"rule {rule.name!r}: {error}")
    if policy.budget.problem:
        refuse(f"budget.{policy.budget.problem}")
    loop = policy.loop
    if loop is not None and (loop.repeats < REPEATS_MIN or not 1 <= loop.period_max <= PERIOD_MAX):
        refuse(f"loop: repeats is {REPEATS_MIN} or more, period_max from 1 to {PERIOD_MAX}")


def _conditions(
    args: Mapping[str, Any], path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], ArgumentCondition]]:
    """Yield each condition with the path of its argument. A value that is not a table must equal the argument."""
    for name, given in args.items():
        if not isinstance(given, dict):
            yield (*path, name), ArgumentCondition(equals=given)
        elif given.keys() <= set(ArgumentCondition.__struct_fields__):
            yield (*path, name), msgspec.convert(given, ArgumentCondition)
        else:
            yield from _conditions(given, (*path, name))


def _argument_at(arguments: Plain, path: tuple[str, ...]) -> Any:
    for name in path:
        if not isinstance(arguments, dict) or name not in arguments:
            return _MISSING
        arguments = arguments[name]
    return arguments


def _number(value: Plain) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
