"""Agents whose policy asks a person: no process waits, and the run goes on after the answer or the end of the time."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from refold.agents.supervise.awaited import AwaitedApproval
from refold.agents.supervise.listing import AgentRow, agents
from refold.agents.supervise.settings import load_agents
from refold.agents.supervise.supervisor import Supervisor
from refold_tests.supervised import Desk, now
from refold_tests.supervising import supervisor_settings

pytestmark = pytest.mark.outside

CODE = """
import sys, refold

@refold.tool(effect="write")
def refund(eur):
    with open(sys.argv[1], "a") as paid:
        paid.write(f"{eur}\\n")

with refold.open() as log:
    log.run(sys.argv[1]).drive(lambda run: run.step("refund", refund, eur=500))
"""
POLICY = "name = 'p'\n[[rule]]\nname = 'large'\ntool = 'refund'\naction = 'ask'\nexpires_s = {}\n"


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as found:
        yield found


def test_agent_that_asks_goes_on_after_the_answer_or_in_time(desk: Desk) -> None:
    (desk.folder / "agent.py").write_text(CODE)
    declared = ""
    for name, expires_s in (("desk", 86400), ("till", 0.1)):
        (desk.folder / f"{name}.toml").write_text(POLICY.format(expires_s))
        declared += f"""
[agents.{name}]
command = [{sys.executable!r}, "-P", "agent.py", "{name}"]
policy = "{name}.toml"
retries = 0
"""
    (desk.folder / "refold.toml").write_text(declared)
    answered: list[AgentRow] = []

    def rows() -> dict[str, AgentRow]:
        return {each.name: each for each in agents(desk.log, now())}

    def is_stopped(wait_s: float) -> bool:
        time.sleep(0.01)
        found = rows()
        if not answered and found and found["desk"].status == "asking":
            answered.append(found["desk"])
            [question] = [each for each in desk.log.questions() if each.run == found["desk"].run]
            before, after = (AwaitedApproval(desk.log, now, time.monotonic) for _ in range(2))  # as of new owners
            assert not before.is_over(found["desk"].run)
            desk.log.answer(question.id, is_approved=True, by="ann")
            assert after.is_over(found["desk"].run)
        return False

    by = supervisor_settings(desk.url, desk.folder, 60, print)
    supervisor = Supervisor(desk.log, load_agents(desk.folder / "refold.toml"), by)
    assert not supervisor.run(is_stopped, is_until_done=True), "one was denied"
    found = rows()
    assert (answered[0].attempt, answered[0].failures, answered[0].pid) == (1, 0, 0)
    steps = [[each["after"] for each in found[name].transitions] for name in ("desk", "till")]
    for story, last in zip(steps, ("ended", "failed"), strict=True):
        assert [each for each in story if each != "running"] == ["starting", "asking", "waiting", "starting", last]
    assert (desk.folder / "desk").read_text() == "500\n"
    assert not (desk.folder / "till").exists()
    assert "nobody approved it within 0.1 s" in desk.log.recording(found["till"].run).failure.message  # type: ignore[union-attr]
