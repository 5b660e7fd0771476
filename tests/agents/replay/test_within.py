"""A run that begins another one within itself: where a recording answers, the one within is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.golden.adding import golden_of_run
from refold.agents.golden.exercise import judged_run
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure, WithinRun
from refold.agents.recorder.run import Run
from refold_tests.older_thread import older_thread

done: list[int] = []


@refold.tool(effect="write")
def pay(amount: int, *, idempotency_key: str = "") -> int:
    done.append(amount)
    return amount


def paying(run: Run) -> int:
    with run.step("pay"):
        return pay(3)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    done.clear()
    with refold.open(f"file:{tmp_path}/log") as found:
        yield found


def begun_in(log: AgentLog, place: str) -> Callable[[Run], Any]:
    def agent(run: Run) -> Any:
        if place == "outside of any step":
            return log.run("inner").drive(paying)
        with run.step("outer"):
            if place == "in a step":
                return log.run("inner").drive(paying)
            try:
                return log.run("inner").drive(paying)
            except Departure:
                return 3  # as if it had paid

    return agent


@pytest.mark.parametrize("place", ["in a step", "outside of any step", "in a step that catches it"])
def test_a_run_within_is_recorded_live_and_never_done_again(log: AgentLog, place: str) -> None:
    agent = begun_in(log, place)
    assert log.run("outer", id="r1").drive(agent) == 3
    assert done == [3]
    assert {each.agent for each in log.runs()} == {"inner", "outer"}
    begun = len(log.runs())
    with pytest.raises(WithinRun, match="run r1 begins a run of inner within itself"):
        log.replay("r1", agent)
    with pytest.raises(WithinRun):
        log.fork("r1", at=0, policy="live").drive(agent)
    with pytest.raises(WithinRun):
        log.fork("r1", at=0, policy="recorded").drive(agent)
    golden = golden_of_run(log.recording("r1"), log._fields, entry="agents:agent")
    assert not judged_run(golden, agent, "agent", Path()).passed
    assert done == [3]
    assert len(log.runs()) == begun + 2  # the forks


def test_a_resume_begins_none_again(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"):
            log.run("inner").drive(paying)
        with run.step("fails"):
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        log.run("outer", id="r1").drive(agent)
    with pytest.raises(WithinRun):
        log.run("outer", resume="r1").drive(agent)
    assert done == [3]


def test_a_run_that_begins_in_a_tool_is_part_of_the_tools_answer(log: AgentLog) -> None:
    @refold.tool(effect="read", name="ask")
    def ask() -> int:
        return int(log.run("inner").drive(paying))

    def agent(run: Run) -> Any:
        with run.step("outer"):
            return ask()

    assert log.run("outer", id="r1").drive(agent) == 3
    assert log.replay("r1", agent).is_same
    assert log.fork("r1", at=0, policy="recorded").drive(agent) == 3
    assert done == [3]


def test_a_thread_from_before_begins_none_while_a_replay_is_open(log: AgentLog) -> None:
    with older_thread() as through:

        def agent(run: Run) -> Any:
            with run.step("outer"), contextlib.suppress(Departure):
                through(lambda: log.run("inner").drive(paying))

        log.run("outer", id="r1").drive(agent)
        assert done == [3]
        with pytest.raises(Departure, match="begin a run of inner"):
            log.replay("r1", agent)
    assert done == [3]
