"""Test a recorded run against a policy: which of its calls the policy would have denied. Pure; no code is run again.

The calls are processed in the order in which they began, with those of nested runs. A call that a policy denied when it
was recorded is decided but not counted, as at that time. A call that would be denied counts as made, because the
recording continues after it: later calls show what the run did, and not what it would have done.
"""

from __future__ import annotations

from typing import NamedTuple

from refold.agents.journal.record import Recording
from refold.agents.policy.decision import PolicyDecision, decide
from refold.agents.policy.facts import DECIDED_ON, RunFacts, title_of
from refold.agents.policy.guard import calls_of, count_recorded, is_denial
from refold.agents.policy.rules import Policy


class PolicyCheck(NamedTuple):
    """One call on which the policy decided.

    Attributes:
        step: The step, as RUN#NUMBER.
        call: The kind and the name of the call.
        decision: The decision; None if no rule applies.
        was_denied: Whether it was denied when it was recorded, and not made.
    """

    step: str
    call: str
    decision: PolicyDecision | None
    was_denied: bool

    @property
    def is_denied(self) -> bool:
        """Whether the policy denies the call."""
        return self.decision is not None and self.decision.action == "deny"


def check(policy: Policy, recording: Recording) -> list[PolicyCheck]:
    """Return the policy's decision on each tool and model call of a run, in the order of the calls.

    Args:
        policy: The policy.
        recording: The run, with its nested runs.
    """
    facts = RunFacts(policy, recording.started_at)
    found = []
    for step, call in calls_of(recording):
        was_denied = is_denial(call)
        if call.asked.kind in DECIDED_ON:
            found.append(PolicyCheck(step, title_of(call.asked), decide(policy, facts, call.asked), was_denied))
        count_recorded(facts, call, step)
    return found
