"""Custom rules: functions that the operator registered. A policy file only names them.

    from refold.policy import RunFacts, rule

    @rule("office hours")
    def office_hours(facts: RunFacts, asked) -> str | None:
        return "closed" if asked.effect == "write" and facts.time_s > 3600 else None

A function returns why its rule matches a call, or None if it does not match. It must be a pure function of its
arguments: a replay of an old run against the policy must give the same result. Nothing is imported because a file names
it. A function is registered when the operator's own code is imported, or by an entry point of the group
`refold.policies`, whose name is the rule's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from refold.agents.journal.record import RecordedRequest
from refold.avro.errors import InputError

if TYPE_CHECKING:
    from refold.agents.policy.facts import RunFacts

GROUP = "refold.policies"
RuleFunction: TypeAlias = "Callable[[RunFacts, RecordedRequest], str | None]"

_functions: dict[str, RuleFunction] = {}


def rule(name: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of that name.

    Raises:
        InputError: Another function is registered under the name.
    """

    def mark(function: RuleFunction) -> RuleFunction:
        if _functions.setdefault(name, function) is not function:
            raise InputError(f"two rules are registered as {name!r}: rename one of them")
        return function

    return mark


def rule_named(name: str) -> RuleFunction:
    """Return the registered function of a name, also one that an entry point provides.

    Raises:
        InputError: No function has that name.
    """
    if name not in _functions:
        from importlib.metadata import entry_points  # slow to import, and few policies need it

        for found in entry_points(group=GROUP, name=name):
            _functions[name] = found.load()
    if name not in _functions:
        raise InputError(
            f"no rule is registered as {name!r}: import the module that registers it with @refold.policy.rule, or name "
            f"it as an entry point of the group {GROUP}"
        )
    return _functions[name]
