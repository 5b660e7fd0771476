"""Policies: what a run's tool and model calls are held to, and rules of one's own.

from refold.policy import Policy, rule

with log.run("refund-agent", guard="policy.toml") as run: ...

docs/guides/policy.md shows what a policy may hold.
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
