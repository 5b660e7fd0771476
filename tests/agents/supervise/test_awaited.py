"""Agents whose policy asks a person: no process waits, and the run continues after the answer or the timeout."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.agents.supervise.awaited import AwaitedApproval
from refold.agents.supervise.entries import OwnedEntries
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.listing import AgentRow, agents
from refold.agents.supervise.settings import load_agents
from refold.agents.supervise.supervisor import Supervisor
from refold_tests.supervised import Desk, now
from refold_tests.supervising import Killed, supervisor_settings

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
AGENT = """
[agents.{name}]
command = [{python!r}, "-P", "agent.py", "{name}"]
policy = "{name}.toml"
retries = 0
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
        declared += AGENT.format(name=name, python=sys.executable)
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


def test_supervisor_killed_while_its_agent_asks_is_replaced(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before and after it records `asking`, and before and after it records that the question is answered."""
    (desk.folder / "agent.py").write_text(CODE)
    (desk.folder / "desk.toml").write_text(POLICY.format(86400))
    (desk.folder / "refold.toml").write_text(AGENT.format(name="desk", python=sys.executable))
    record_status, begin = OwnedEntries.status, KeptProcess.__init__
    processes: list[KeptProcess] = []
    late_s = 0.0

    def begun(process: KeptProcess, order: Any) -> None:
        begin(process, order)
        processes.append(process)

    def run(at_look: Callable[[int], None]) -> None:
        looks = itertools.count()

        def is_stopped(wait_s: float) -> bool:
            time.sleep(0.01)
            at_look(next(looks))
            if desk.row.status == "asking":
                for each in desk.log.questions():
                    desk.log.answer(each.id, is_approved=True, by="ann")
            return False

        by = supervisor_settings(desk.url, desk.folder, 60, print)
        clock_s = by.clock_s
        by = by._replace(clock_s=lambda: clock_s() + late_s)
        assert Supervisor(desk.log, load_agents(desk.folder / "refold.toml"), by).run(is_stopped, is_until_done=True)

    def outlast(look: int) -> None:
        """Let the killed supervisor's lease be over, once its claim was seen."""
        nonlocal late_s
        late_s += 61 if look == 1 else 0

    monkeypatch.setattr(KeptProcess, "__init__", begun)
    for number, (status, when) in enumerate(itertools.product(("asking", "waiting"), ("before", "after"))):
        print(status, when)
        desk.wish("running")

        def killed(
            entries: OwnedEntries, record: Any, observed: Any, status: str = status, when: str = when, **more: Any
        ) -> None:
            if observed.status == status and when == "before":
                raise Killed
            record_status(entries, record, observed, **more)
            if observed.status == status:
                raise Killed

        monkeypatch.setattr(OwnedEntries, "status", killed)
        with pytest.raises(Killed):
            run(lambda look: None)
        monkeypatch.setattr(OwnedEntries, "status", record_status)
        while processes:  # the kernel closes the pipes of a process that is killed
            processes.pop().close()
        run(outlast)
        assert desk.row.status == "ended"
        assert (desk.folder / "desk").read_text() == "500\n" * (number + 1), "paid twice, or not at all"
