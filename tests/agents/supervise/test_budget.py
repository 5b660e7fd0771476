"""The budget that refold.toml declares for an agent: enforced in its runs, with and without a policy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.policy.decision import PolicyDenied
from refold.agents.policy.rules import Policy, RunBudget
from refold.agents.supervise.supervised import BUDGET, GUARD
from refold.avro.errors import InputError
from refold.explorer.cli.record.proxy import BudgetLimit, budget_of

made: list[int] = []


@refold.tool
def look(number: int) -> int:
    """A tool that notes each call."""
    made.append(number)
    return number


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentLog]:
    monkeypatch.setenv(BUDGET, '{"tool_calls":2}')
    made.clear()
    with refold.open(f"file:{tmp_path}/log") as log:
        yield log


def agent(run: refold.Run) -> None:
    for number in range(4):
        run.step("look", look, number)


def denied(log: AgentLog, guard: Policy | None = None, resume: str | None = None) -> tuple[str, str]:
    """Run the agent until it is denied; return the policy and the rule."""
    with pytest.raises(PolicyDenied) as refused:
        log.run("desk", id=None if resume else "one", resume=resume, guard=guard).drive(agent)
    return refused.value.policy, refused.value.rule


def test_budget_without_a_policy_is_enforced_and_counts_over_a_resume(log: AgentLog) -> None:
    assert denied(log) == ("budget", "budget.tool_calls")
    assert made == [0, 1]
    assert denied(log, resume="one") == ("budget", "budget.tool_calls")
    assert made == [0, 1]


def test_smaller_limit_of_policy_and_budget_holds(
    log: AgentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    (tmp_path / "p.toml").write_text('name = "given"\n[budget]\ntool_calls = 3\nsteps = 1\n')
    monkeypatch.setenv(GUARD, str(tmp_path / "p.toml"))
    assert denied(log) == ("given", "budget.steps")
    assert made == [0]


def test_budget_holds_also_with_a_policy_of_the_code(log: AgentLog) -> None:
    own = Policy(name="own", budget=RunBudget(tool_calls=3))
    assert denied(log, own) == ("own", "budget.tool_calls")
    assert made == [0, 1]


def test_budget_of_a_command_line() -> None:
    limits = [BudgetLimit().convert(each, None, None) for each in ("tokens=1000", "cost_usd=0.5")]
    assert budget_of(limits) == RunBudget(tokens=1000, cost_usd=0.5)
    for wrong in ("tokens", "tokens=many", "token=1"):
        with pytest.raises(click.BadParameter):
            BudgetLimit().convert(wrong, None, None)
    for limit in (("tokens", -1), ("tokens", 1.5), ("cost_usd", float("nan"))):
        with pytest.raises(InputError, match=r"--budget"):
            budget_of([limit])
