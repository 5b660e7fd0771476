"""A policy's decision on one call. Pure: the same policy, facts and call give the same decision."""

from __future__ import annotations

import re
from typing import NamedTuple

from refold.agents.journal.record import RecordedRequest
from refold.agents.policy.facts import DECIDED_ON, RunFacts, arguments_of
from refold.agents.policy.registered import rule_named
from refold.agents.policy.rules import Action, Policy, matches
from refold.avro.errors import RefoldError

_QUESTION = re.compile(r"`refold approve ([^`]+)`")


class PolicyDecision(NamedTuple):
    """The decision on a call.

    Attributes:
        policy, rule: Their names; a budget's rule is `budget.NAME`, the loop breaker's is `loop`.
        why: The reason in words, without the call's arguments.
        evidence: The steps that the decision is based on, as RUN#NUMBER, if it depends on particular steps.
        expires_s: How long a question to a person waits for an answer, in seconds.
    """

    action: Action
    policy: str
    rule: str
    why: str
    evidence: tuple[str, ...] = ()
    expires_s: float = 0


class PolicyDenied(RefoldError):
    """A policy denied a tool or model call, which was not made.

    Attributes:
        policy, rule, why: Those of its PolicyDecision.
    """

    def __init__(self, policy: str, rule: str, call: str, why: str) -> None:
        self.policy = policy
        self.rule = rule
        self.why = why
        super().__init__(f"policy {policy}, rule {rule!r}: {call} is denied: {why}")


class ApprovalNeeded(RefoldError):
    """A person must approve a tool or model call before it is made; it was not made.

    Attributes:
        question: The question's id.
    """

    def __init__(self, policy: str, rule: str, call: str, question: str, why: str) -> None:
        self.policy = policy
        self.rule = rule
        self.question = question
        super().__init__(
            f"policy {policy}, rule {rule!r}: {call} needs a person's approval: {why}; answer with `refold approve "
            f"{question}` or `refold deny {question}`, then resume the run"
        )

    @staticmethod
    def question_in(message: str) -> str:
        """Return the id of the question that an error's message names; empty if it names none."""
        found = _QUESTION.search(message)
        return found[1] if found else ""


def decide(policy: Policy, facts: RunFacts, request: RecordedRequest) -> PolicyDecision | None:
    """Return the decision on a call.

    Args:
        policy: The policy.
        facts: The facts of the run before the call.
        request: The call, as it is recorded.

    Returns:
        The decision; None if no rule applies, so the call is allowed.

    Raises:
        InputError: The policy names a function that is not registered.
    """
    if request.kind not in DECIDED_ON:
        return None
    decision = _decide_by_rule(policy, facts, request)
    if decision is not None and decision.action == "deny":
        return decision
    return _decide_by_budget(policy, facts, request) or _decide_by_loop(policy, facts, request) or decision


def _decide_by_rule(policy: Policy, facts: RunFacts, request: RecordedRequest) -> PolicyDecision | None:
    arguments = arguments_of(request) if policy.rule else None
    for rule in policy.rule:
        if rule.function:
            why = rule_named(rule.function)(facts, request)
        else:
            why = rule.matches(request.kind, request.name, arguments)
        if why is not None:
            why = rule.why or why or "the rule matches each such call"
            return PolicyDecision(rule.action, policy.name, rule.name, why, expires_s=rule.expires_s)
    return None


def _decide_by_budget(policy: Policy, facts: RunFacts, request: RecordedRequest) -> PolicyDecision | None:
    """Check the budgets.

    Counts of calls may reach the budget but not exceed it. Tokens, cost and time are known only after a call, so the
    call after the one that used them up is denied. After an answer of a model without a price the cost is not known,
    so it counts as used up.
    """
    for name, limit in policy.budget.limits.items():
        if not _is_about(name, request):
            continue
        used = getattr(facts, name)
        if name == "cost_usd" and facts.unpriced:
            why = f"the model {facts.unpriced} has no price, so the cost is not known; REFOLD_PRICES names a table"
            return PolicyDecision("deny", policy.name, f"budget.{name}", why)
        if used >= limit:
            return PolicyDecision("deny", policy.name, f"budget.{name}", f"{used:g} of {limit:g} are used")
    return None


def _is_about(budget: str, request: RecordedRequest) -> bool:
    if budget == "tool_calls":
        return request.kind == "tool"
    if budget == "write_calls":
        return request.effect == "write"
    return (
        budget not in ("model_calls", "tokens", "input_tokens", "output_tokens", "cost_usd") or request.kind == "model"
    )


def _decide_by_loop(policy: Policy, facts: RunFacts, request: RecordedRequest) -> PolicyDecision | None:
    loop = policy.loop
    if loop is None or any(matches(request.name, pattern) for pattern in loop.but):
        return None
    circle = facts.circle(request)
    if not circle:
        return None
    calls = len(circle) // loop.repeats
    several = "the call" if calls == 1 else f"the {calls} calls of a circle"
    why = f"{several} gave the same result {loop.repeats} times, and this goes on with it"
    return PolicyDecision("deny", policy.name, "loop", why, tuple(dict.fromkeys(call.step for call in circle)))
