"""The names of the demo: its agents, its run and its entities."""

from __future__ import annotations

AGENT = "refund-agent"
DEPLOYER = "deployer"
PLATFORM = "platform"
EVALUATOR = "evaluator"
BANK = "acme-statement"

RUN = "nightly-1"
PIPELINE = "pipeline/refund-nightly"
SESSION = f"agent_session/{RUN}"
CONFIG = "tool_config/acme-config"
EVALUATION = f"evaluation/{RUN}"

DEPLOYED = "deploy-1"
CRASH = "crash"

STEPS = ("load-config", "fetch-claims", "check-orders", "score-risk", "approve", "pay-refunds", "notify")
PAYING = STEPS.index("pay-refunds") + 1
PAYMENT = f"action/{RUN}#{PAYING}."
"""The prefix of the entities of payments."""
