"""What model calls took and cost, in words: for commands and pages alike."""

from __future__ import annotations

from refold.agents.usage.of_runs import UsageSum


def usage_text(usage: UsageSum) -> str:
    """`1,234 tokens read, 1,000 of them from a cache, 56 written; $0.0123`"""
    tokens = usage.tokens
    cached = f", {tokens.cached:,} of them from a cache" if tokens.cached else ""
    return f"{tokens.read:,} tokens read{cached}, {tokens.output:,} written; {cost_text(usage)}"


def cost_text(usage: UsageSum) -> str:
    """`$0.0123`, and which models have no price."""
    unknown = f"no price is known of {', '.join(usage.unpriced)}" if usage.unpriced else ""
    if usage.cost_usd is None:
        return unknown
    return dollars(usage.cost_usd) + (f" without some: {unknown}" if unknown else "")


def dollars(amount: float) -> str:
    """With as many digits as say something."""
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.4f}" if amount >= 0.01 else f"${amount:.6f}"
