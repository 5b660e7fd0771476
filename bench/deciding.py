"""Measures how long a policy's decision takes in a run of many calls, by the wall clock and by the CPU.

Calls of four tools and of a model come in turn. The policy has two rules with conditions, budgets of tokens, cost and
calls, and a loop breaker with cycles of up to 8 calls. Nothing is recorded: only decisions are measured, with the
counting of what ended. The CPU's time is that of the thread, so other programs count only in the wall clock's.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import quantiles

from page import titled_table
from rich.console import Console

from refold.agents.journal.record import Call, RecordedRequest
from refold.agents.policy.decision import decide
from refold.agents.policy.facts import RunFacts
from refold.agents.policy.rules import Policy

CALLS = 10_000
GOAL_MS = 1
POLICY = """
name = "bench"

[[rule]]
name = "large refunds"
tool = "tool-0"
args.eur.over = 1_000_000

[[rule]]
name = "other shops"
tool = "tool-*"
args.order.shop.none_of = ["here", "there"]

[budget]
calls = 1_000_000
tokens = 1_000_000_000
cost_usd = 1_000_000.0

[loop]
repeats = 3
"""


def decided(calls: int) -> tuple[list[float], list[float]]:
    """Decide on each call of a run; return the times in milliseconds, by the wall clock and by the CPU."""
    policy = Policy.parse(POLICY)
    facts = RunFacts(policy, 1)
    wall, cpu = [], []
    for number in range(calls):
        arguments = {"kwargs": {"eur": number, "order": {"shop": "here", "id": f"o-{number}"}}}
        is_model = number % 5 == 4
        asked = RecordedRequest(kind="model" if is_model else "tool", name=f"tool-{number % 5}", request=arguments)
        usage = {"model": "gpt-4o-mini", "usage": {"prompt_tokens": 100, "completion_tokens": 10}}
        answered = Call(asked=asked, answer=usage if is_model else {"found": number // 3}, started_at=number + 1)
        began, began_cpu = time.perf_counter(), time.thread_time()
        decision = decide(policy, facts, asked)
        facts.begin(asked, f"r#{number}")
        facts.end(answered, f"r#{number}")
        cpu.append((time.thread_time() - began_cpu) * 1000)
        wall.append((time.perf_counter() - began) * 1000)
        assert decision is None
    return wall, cpu


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    del folder
    table = titled_table(
        f"Decisions of a policy in a run of {CALLS // share:,} calls (goal: p99 under {GOAL_MS} ms)",
        "clock", "p50, ms", "p99, ms", "longest, ms",
    )  # fmt: skip
    with console.status("deciding"):
        found = decided(CALLS // share)
    for name, took in zip(("wall", "CPU"), found, strict=True):
        cuts = quantiles(took, n=100)
        table.add_row(name, f"{cuts[49]:.3f}", f"{cuts[98]:.3f}", f"{max(took):.3f}")
    console.print(table)
