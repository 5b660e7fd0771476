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
from refold.agents.registered_functions import RegisteredFunctions

if TYPE_CHECKING:
    from refold.agents.policy.facts import RunFacts

GROUP = "refold.policies"
RuleFunction: TypeAlias = "Callable[[RunFacts, RecordedRequest], str | None]"

_registered: RegisteredFunctions[RuleFunction] = RegisteredFunctions("rule", "rules", "refold.policy.rule", GROUP)


def rule(name: str) -> Callable[[RuleFunction], RuleFunction]:
    """Register the decorated function as the rule of that name.

    Raises:
        InputError: Another function is registered under the name.
    """
    return _registered.register(name)


def rule_named(name: str) -> RuleFunction:
    """Return the registered function of a name, also one that an entry point provides.

    Raises:
        InputError: No function has that name.
    """
    return _registered.named(name)
