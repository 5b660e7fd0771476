"""Comparing runs goes into the runs within them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import divergence_json
from refold.agents.compare.provenance import RunInLog, provenance
from refold.agents.compare.render import told
from refold.agents.compare.self_check import against_itself
from refold.agents.log import AgentLog


@refold.tool(effect="read")
def look(at: str) -> str:
    return f"seen {at}"


def inner(run: refold.Run) -> str:
    with run.step("look"):
        run.state["seen"] = look(run.input)
        run.state["when"] = run.now().isoformat()
    return str(run.id)


def outer(given: str) -> Callable[[refold.Run], Any]:
    def agent(run: refold.Run) -> Any:
        with run.step("delegate"):
            with run.child("inner", input="a") as child:
                run.state["child"] = inner(child)
            with run.child("inner", input=given) as child:
                inner(child)

    return agent


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path}/log") as found:
        yield found


def test_what_children_hear_anew_and_their_ids_are_no_difference(log: AgentLog) -> None:
    for run in ("r1", "r2"):
        log.run("outer", id=run).drive(outer("b"))
    assert log.recording("r1").state != log.recording("r2").steps[0].delta
    assert log.compare("r1", "r2") is None
    found = log.compare("r1", "r2", exact=True)
    assert found is not None
    assert found.within is not None


def test_the_first_place_where_children_part_is_told(log: AgentLog) -> None:
    def other(run: refold.Run) -> Any:
        with run.step("delegate"):
            with run.child("inner", input="a") as child:
                run.state["child"] = inner(child)
            with run.child("inner", input="b") as child, child.step("look"):
                child.state["seen"] = look("elsewhere")

    log.run("outer", id="r1").drive(outer("b"))
    log.run("outer", id="r2").drive(other)
    found = log.compare("r1", "r2")
    assert found is not None
    assert found.within is not None
    assert (found.step, found.what, found.why, found.a.call) == (1, "run", "asked", 2)
    assert (found.within.step, found.within.what, found.within.why) == (1, "arguments", "asked")
    lines = list(told(found))
    assert lines[0] == "first divergence at step 1: a run within does otherwise"
    assert "  first divergence at step 1: other arguments" in lines
    assert divergence_json(found)["within"]["differences"][0]["path"] == "kwargs.at"
    behind = provenance(found, RunInLog(log.recording("r1"), log), RunInLog(log.recording("r2"), log))
    assert {each.entity for each in behind} == {
        f"step/{found.within.a.run}#1", f"step/{found.within.b.run}#1"
    }  # fmt: skip
    assert compare(log.recording("r1"), log.recording("r1"), exact=True) is None


def test_a_child_that_is_begun_with_something_else_is_a_difference_of_the_parent(log: AgentLog) -> None:
    log.run("outer", id="r1").drive(outer("b"))
    log.run("outer", id="r2").drive(outer("c"))
    found = log.compare("r1", "r2")
    assert found is not None
    assert (found.what, found.within) == ("arguments", None)


def test_a_run_with_children_is_what_its_own_steps_come_to(log: AgentLog) -> None:
    log.run("outer", id="r1").drive(outer("b"))
    assert against_itself(log.recording("r1")).is_equal
