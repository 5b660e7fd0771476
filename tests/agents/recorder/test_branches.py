"""Which branches of execution were alone: the cost of starting one, and the result compared with a naive check of all
branches."""

from __future__ import annotations

import asyncio
import gc
import random
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.agents.log import AgentLog
from refold.agents.recorder import context
from refold.agents.recorder.context import ExecutionBranch
from refold.agents.recorder.run import Run


class Compared:
    """What a branch met, found by comparing each branch that begins with all live ones."""

    def __init__(self) -> None:
        self.alive: list[ExecutionBranch] = []
        self.met: set[ExecutionBranch] = set()
        self.parents: dict[ExecutionBranch, ExecutionBranch | None] = {}

    def line(self, branch: ExecutionBranch | None) -> list[ExecutionBranch]:
        found = []
        while branch is not None:
            found.append(branch)
            branch = self.parents.get(branch)
        return found

    def begun(self, branch: ExecutionBranch) -> None:
        for other in self.alive:
            if other not in self.line(branch) and branch not in self.line(other):
                self.met |= {branch, other}
        self.alive.append(branch)

    def is_alone(self, branch: ExecutionBranch) -> bool:
        return not self.met & {*self.line(branch)}


@given(st.lists(st.tuples(st.sampled_from(["start", "wait", "end", "forget"]), st.integers(0, 1000)), max_size=60))
def test_branch_is_alone_exactly_when_comparing_all_says_so(moves: list[tuple[str, int]]) -> None:
    root = ExecutionBranch()
    compared = Compared()
    made = [root]
    for move, number in moves:
        if move in {"start", "wait"}:
            parent = made[number % len(made)]
            branch = parent.started("work", is_waited_for=move == "wait")
            compared.parents[branch] = None if parent is root else parent
            made.append(branch)
            if branch.is_concurrent:
                branch.begun()
                compared.begun(branch)
        elif compared.alive:
            branch = compared.alive.pop(number % len(compared.alive))
            if move == "end":
                branch.ended()
            else:  # like a task that is garbage collected: its end is not reported
                root._alone.pop(id(branch), None)
                root._met.pop(id(branch), None)
    for branch in made[1:]:
        assert branch.is_alone() == compared.is_alone(branch)


def test_forgotten_branch_is_not_alive() -> None:
    root = ExecutionBranch()
    one, other = root.started("one"), root.started("other")
    one.begun()
    other.begun()
    del one, other
    gc.collect()
    assert (root._alone, root._met) == ({}, {})
    third = root.started("third")
    third.begun()
    assert third.is_alone()


@pytest.mark.parametrize("seed", range(3))
def test_branch_started_concurrently_overlaps(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection may start a task between any two lines, in the same thread."""
    lines = random.Random(seed)
    for at in range(1, 40):
        root = ExecutionBranch()
        others = [root.started("other") for _ in range(lines.randrange(3))]
        for each in others:
            each.begun()
        one, inner = root.started("one"), root.started("inner")
        left = at

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != context.__file__:
                return None
            left -= event == "line"
            if left == 0:
                left = -1
                sys.settrace(None)
                inner.begun()  # noqa: B023
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            one.begun()
        finally:
            sys.settrace(before)
        if left >= 0:
            break
        assert not one.is_alone()
        assert not inner.is_alone()
        assert not any(each.is_alone() for each in others)
    else:
        pytest.fail("it never came to the end of `begun`")


def lines_of_starting(log: AgentLog, count: int) -> int:
    """Return how many lines refold's bookkeeping executes if this many tasks are alive at once."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != context.__file__:
            return None
        lines += event == "line"
        return trace

    async def agent(run: Run) -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            await asyncio.gather(*(asyncio.sleep(0) for _ in range(count)))
        finally:
            sys.settrace(before)

    asyncio.run(log.run("a").drive_async(agent))
    return lines


def test_task_start_cost_does_not_depend_on_the_number_alive(log: AgentLog) -> None:
    few, many = lines_of_starting(log, 100), lines_of_starting(log, 1000)
    assert few > 100, "what is counted is counted"
    assert many < few * 11
