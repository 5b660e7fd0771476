"""Policies: rules for a run's tool and model calls, and custom rules.

from refold.policy import Policy, rule

with log.run("refund-agent", guard="policy.toml") as run: ...

docs/guides/policy.md describes policies.
"""

from __future__ import annotations

from refold.agents.journal.record import RecordedRequest
from refold.agents.policy.check import PolicyCheck, check
from refold.agents.policy.decision import ApprovalNeeded, PolicyDecision, PolicyDenied
from refold.agents.policy.facts import RunFacts
from refold.agents.policy.registered import rule
from refold.agents.policy.rules import Policy

__all__ = [
    "ApprovalNeeded",
    "Policy",
    "PolicyCheck",
    "PolicyDecision",
    "PolicyDenied",
    "RecordedRequest",
    "RunFacts",
    "check",
    "rule",
]
