"""SIGKILL at each transition of `apply` (agents/heal/apply.py): what is recorded is true, the next process continues,
and the payment is made once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import refold
from refold.agents.entry import agent_of
from refold.agents.heal.healings import healings
from refold.agents.log import AgentLog
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.stuck_agent import PLAN, failed, paid, placed, stuck

pytestmark = pytest.mark.faults

RETRY = """
attempts = 1
expect = ["steps>=1"]
[[remedy]]
name = "again"
do = "retry"
answers.pay = "paid"
"""


class KillStory(NamedTuple):
    """One run that is healed by processes that die one after the other.

    fails: makes the run fail. moments: where each process dies, and the statuses of the attempts after that; `answer`
    in place of a moment: a process ends by itself, and a person answers the question. ends: the statuses at the end.
    """

    fails: Callable[[AgentLog, Path, str], None]
    plan: str
    moments: tuple[tuple[str, str], ...]
    ends: str
    is_approved: bool = True
    is_paid: bool = True
    is_down: bool = False


STORIES = {
    "continues": KillStory(stuck, PLAN, (
        ("before begun", ""), ("after begun", "begun"), ("after the fork", "begun"), ("before refuted", "begun"),
        ("after refuted", "refuted"), ("after begun", "refuted begun"), ("before proved", "refuted begun"),
        ("after proved", "refuted proved"), ("after resuming", "refuted resuming"),
        ("after the continuation", "refuted resuming"), ("before the write", "refuted resuming"),
        ("after the write", "refuted resuming"), ("after the link", "refuted resuming"),
        ("before healed", "refuted resuming"), ("after healed", "refuted healed"),
    ), "refuted healed"),
    "asks": KillStory(stuck, PLAN.replace("answers.pay", "approve = true\nanswers.pay"), (
        ("after the question", "refuted proved"), ("after waiting", "refuted waiting"), ("answer", "refuted waiting"),
        ("before resuming", "refuted waiting"),
    ), "refuted healed"),
    "rejects": KillStory(stuck, PLAN.replace("answers.pay", "approve = true\nanswers.pay"), (
        ("answer", "refuted waiting"), ("before rejected", "refuted waiting"), ("after rejected", "refuted rejected"),
        ("before stopped", "refuted rejected"), ("after stopped", "refuted rejected stopped"),
    ), "refuted rejected stopped", is_approved=False, is_paid=False),
    "resumes": KillStory(failed, RETRY, (
        ("after resuming", "resuming"), ("after the resume", "resuming"), ("before the write", "resuming"),
        ("after the write", "resuming"), ("before healed", "resuming"), ("after healed", "healed"),
    ), "healed"),
    "fails": KillStory(failed, RETRY, (
        ("after the resume", "resuming"), ("before failed", "resuming"), ("after failed", "failed"),
    ), "failed stopped", is_paid=False, is_down=True),
}  # fmt: skip
ON_KAFKA = KillStory(stuck, PLAN, (("after the write", "refuted resuming"),), "refuted healed")
"""The moment that matters most: the payment was made, and nothing says so yet."""


def heals_through(child: Callable[..., Child], url: str, agent: Path, story: KillStory) -> None:
    entry = placed(agent, story.plan)
    lives = child("from refold_tests.dying_heal import main; main()")

    def live(moment: str) -> int:
        lives.say(f"{url}\t{agent}\tr\t{moment}")
        return int(lives.line())

    with refold.open(url) as log:
        story.fails(log, agent, "r")
        if not story.is_down:
            (agent / "down").unlink(missing_ok=True)
        for moment, statuses in story.moments:
            assert live("" if moment == "answer" else moment) == (0 if moment == "answer" else -signal.SIGKILL), moment
            assert [each.status for each in healings(log, "r")] == statuses.split(), moment
            for question in log.questions() if moment == "answer" else []:
                log.answer(question.id, is_approved=story.is_approved, by="ann")
            log.flush()
        made = healings(log, "r")
        if made[-1].status != "healed":
            assert live("") == 0
            made = healings(log, "r")
        assert [each.status for each in made] == story.ends.split()
        effects = [(effect.key.split(":")[0], effect.status, effect.times_done) for effect in log.effects.list()]
        assert effects == ([("r", "done", 1)] if story.is_paid else [])
        assert [key.split(":")[0] for key in paid(agent)] == ["r"] * story.is_paid
        if story.is_paid:
            assert log.replay(made[-1].healed_by, agent_of(entry, agent)).is_same


@pytest.mark.parametrize("name", STORIES)
def test_killed_heal_continues_and_writes_once(name: str, child: Callable[..., Child], tmp_path: Path) -> None:
    heals_through(child, f"file:{tmp_path / 'log'}", tmp_path / "agent", STORIES[name])


def test_killed_heal_continues_on_kafka(
    child: Callable[..., Child], kafka: SharedKafka, prefix: str, tmp_path: Path
) -> None:
    heals_through(child, f"kafka://{kafka.bootstrap}/{prefix}", tmp_path / "agent", ON_KAFKA)
