"""Comparing runs includes their nested runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.compare.compare import against_itself, compare
from refold.agents.compare.divergence import divergence_json
from refold.agents.compare.provenance import RunInLog, provenance
from refold.agents.compare.render import describe
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


def test_clocks_and_ids_of_child_runs_are_ignored(log: AgentLog) -> None:
    for run in ("r1", "r2"):
        log.run("outer", id=run).drive(outer("b"))
    assert log.recording("r1").state != log.recording("r2").steps[0].delta
    assert log.compare("r1", "r2") is None
    found = log.compare("r1", "r2", exact=True)
    assert found is not None
    assert found.within is not None


def test_first_divergence_in_child_runs_is_named(log: AgentLog) -> None:
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
    lines = list(describe(found))
    assert lines[0] == "first divergence at step 1: a run within does otherwise"
    assert "  first divergence at step 1: other arguments" in lines
    assert divergence_json(found)["within"]["differences"][0]["path"] == "kwargs.at"
    behind = provenance(found, RunInLog(log.recording("r1"), log), RunInLog(log.recording("r2"), log))
    assert {each.entity for each in behind} == {
        f"step/{found.within.a.run}#1", f"step/{found.within.b.run}#1"
    }  # fmt: skip
    assert compare(log.recording("r1"), log.recording("r1"), exact=True) is None


def test_child_started_with_another_input_is_a_difference_of_the_parent(log: AgentLog) -> None:
    log.run("outer", id="r1").drive(outer("b"))
    log.run("outer", id="r2").drive(outer("c"))
    found = log.compare("r1", "r2")
    assert found is not None
    assert (found.what, found.within) == ("arguments", None)


def test_run_with_children_compares_by_its_own_steps(log: AgentLog) -> None:
    log.run("outer", id="r1").drive(outer("b"))
    assert against_itself(log.recording("r1")).is_equal


@refold.tool(effect="write")
def send(to: str, *, idempotency_key: str = "") -> str:
    return f"sent to {to}"


def clerk(run: refold.Run) -> str:
    return run.step("send", send, run.input)


def tried(first: str, second: str, *, depth: int) -> Callable[[refold.Run], Any]:
    """Send to the first, fail, and send to the second: in a nested run, or in a nested run of that."""

    def sent(run: refold.Run, to: str, levels: int) -> Any:
        if levels == 1:
            return run.child("clerk", input=to).drive(clerk)
        return run.child("worker", input=to).drive(lambda worker: sent(worker, to, levels - 1))

    def agent(run: refold.Run) -> Any:
        addressees = iter([first, second])

        def step() -> Any:
            to = next(addressees)
            found = sent(run, to, depth)
            if to == first and first:
                raise ConnectionError
            return found

        if not first:
            next(addressees)
        return run.step("deliver", step, attempts_max=2)

    return agent


@pytest.mark.parametrize("depth", [1, 2])
def test_write_of_a_child_in_a_failed_attempt_counts(log: AgentLog, depth: int) -> None:
    log.run("a", id="once").drive(tried("", "b", depth=depth))
    log.run("a", id="twice").drive(tried("elsewhere", "b", depth=depth))
    for pair, only in ((("once", "twice"), "b"), (("twice", "once"), "a")):
        found = log.compare(*pair)
        assert found is not None
        assert (found.step, found.what, found.only) == (1, "call", only)
        value = found.b.value if only == "b" else found.a.value
        assert (value["name"], value["request"]) == ("send", {"kwargs": {"to": "elsewhere"}})


def test_write_of_a_child_that_was_requested_again_is_ignored(log: AgentLog) -> None:
    def retried(run: refold.Run) -> Any:
        failures = iter([True, False])

        def step() -> Any:
            found = run.child("clerk", input="b").drive(clerk)
            if next(failures):
                raise ConnectionError
            return found

        return run.step("deliver", step, attempts_max=2)

    log.run("a", id="once").drive(tried("", "b", depth=1))
    log.run("a", id="again").drive(retried)
    assert len(log.recording("again").steps[0].attempts) == 2
    assert log.compare("once", "again") is None
