"""A run whose process was killed continues where it was: nothing that was committed is requested again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.recorder.steps import Changed
from refold.agents.replay.player import Differs
from refold_tests.child import Child
from refold_tests.resuming import CODE, PLACES, STEPS, agent_of


@pytest.mark.faults
def test_killed_run_resumes_at_the_interrupted_step(tmp_path: Path, child: Callable[..., Child]) -> None:
    url, calls = f"file:{tmp_path}/log", tmp_path / "calls"
    killed = child(CODE, url, calls)
    assert [killed.line() for _ in range(STEPS)] == [str(step) for step in range(1, STEPS + 1)]
    agent = agent_of(calls)
    with refold.open(url) as log:
        for step in range(1, STEPS + 1):
            run, place = f"run-{step}", PLACES[step % 3]
            committed = [each for each in log.recording(run).steps if each.is_committed]
            assert len(committed) == (step if place == PLACES[2] else step - 1)
            assert log.replay(run, agent).is_same  # as far as it got
            before = Counter(calls.read_text().split("\n"))
            output = log.run("tests", resume=run).drive(agent)
            assert output == [f"answer {number}" for number in range(1, STEPS + 1)]
            made = Counter(calls.read_text().split("\n")) - before
            # If the run was killed after the call, the call of the step that was cut short had been answered.
            asked = len(committed) + (2 if place == PLACES[1] else 1)
            assert made == {f"{run} {number}": 1 for number in range(asked, STEPS + 1)}
            recording = log.recording(run)
            assert recording.outcome == "succeeded"
            assert list(broken(recording)) == []
            assert recording.steps[: len(committed)] == tuple(committed)
            cut_short = [each.number for each in recording.steps if len(each.attempts) == 2]
            assert cut_short == ([] if place == PLACES[2] else [step])
            found = log.replay(run, agent)
            assert found.is_same
            assert found.unused == ()


def test_resume_by_diverging_code_leaves_the_run_unchanged(tmp_path: Path) -> None:
    def stopping(run: refold.Run) -> None:
        with run.step("first"):
            run.state["a"] = run.uuid()
        with run.step("second"):
            raise RuntimeError("no more")

    def renamed(run: refold.Run) -> None:
        with run.step("begin"):
            run.state["a"] = run.uuid()

    def other(run: refold.Run) -> None:
        with run.step("first"):
            run.state["b"] = run.uuid()

    def mended(run: refold.Run) -> str:
        with run.step("first"):
            run.state["a"] = run.uuid()
        with run.step("second"):
            return str(run.state["a"])

    with refold.open(f"file:{tmp_path}/log") as log:
        with pytest.raises(RuntimeError):
            log.run("tests", id="r1").drive(stopping)
        stood = log.recording("r1")
        with pytest.raises(Differs, match='name: "begin" now, "first" recorded'):
            log.run("tests", resume="r1").drive(renamed)
        with pytest.raises(Changed, match="another state"):
            log.run("tests", resume="r1").drive(other)
        assert log.recording("r1").steps[:1] == stood.steps[:1]
        assert log.run("tests", resume="r1").drive(mended) == stood.steps[0].calls[0].answer
        assert log.replay("r1", mended).is_same
