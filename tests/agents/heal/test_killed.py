"""SIGKILL between each two steps of `apply` (agents/heal/apply.py): the next one goes on, and the payment is made
once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import refold
from refold.agents.entry import agent_of
from refold.agents.heal.healings import healings
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.stuck_agent import PLAN, paid, placed, stuck

pytestmark = pytest.mark.faults

MOMENTS = (
    "after begun", "after the fork", "before proved", "after proved", "after resuming", "after the continuation",
    "before the write", "after the write", "before healed", "after healed",
)  # fmt: skip


def killed_and_healed(child: Callable[..., Child], url: str, agent: Path, moments: Sequence[str]) -> None:
    """Heal a run for each moment, all in one log: kill the process that heals it there, and go on with another."""
    entry = placed(agent, PLAN.replace("guard", "attempts_per_hour = 100\nguard"))
    runs = {f"r{number}": moment for number, moment in enumerate(moments)}
    with refold.open(url) as log:
        for run in runs:
            stuck(log, agent, run)
    lives = child("from refold_tests.dying_heal import main; main()")

    def live(run: str, moment: str) -> int:
        lives.say(f"{url}\t{agent}\t{run}\t{moment}")
        return int(lives.line())

    for run, moment in runs.items():
        assert live(run, moment) == -signal.SIGKILL, moment
        if moment != "after healed":
            assert live(run, "") == 0, moment
    keys = [key.split(":")[0] for key in paid(agent)]
    with refold.open(url) as log:
        effects = {effect.key.split(":")[0]: (effect.status, effect.times_done) for effect in log.effects.list()}
        for run, moment in runs.items():
            made = healings(log, run)
            assert [each.status for each in made] == ["refuted", "healed"], moment
            assert (keys.count(run), effects[run]) == (1, ("done", 1)), moment
            assert log.replay(made[-1].healed_by, agent_of(entry, agent)).is_same, moment


def test_killed_heal_continues_and_writes_once(child: Callable[..., Child], tmp_path: Path) -> None:
    killed_and_healed(child, f"file:{tmp_path / 'log'}", tmp_path / "agent", MOMENTS)


def test_killed_heal_continues_on_kafka(
    child: Callable[..., Child], kafka: SharedKafka, prefix: str, tmp_path: Path
) -> None:
    """At the moment that matters most: the payment was made, and nothing says so yet."""
    killed_and_healed(child, f"kafka://{kafka.bootstrap}/{prefix}", tmp_path / "agent", ["after the write"])
