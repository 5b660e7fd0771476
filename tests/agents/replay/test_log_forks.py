"""Replays and forks of runs that are stored in a log."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.delta import edits
from refold.agents.journal.record import Call, Failure, Recording
from refold.agents.log import AgentLog
from refold.agents.recorder import step_assembler
from refold.agents.recorder.run import Run
from refold.agents.replay.forked import NotAllowed
from refold.agents.replay.player import Differs
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError
from refold_tests import brokers

done: list[str] = []


@refold.tool(effect="read")
def find_order(order: str) -> dict[str, Any]:
    done.append(f"find {order}")
    return {"id": order, "amount": 50}


@refold.tool(effect="write")
def refund(order: str, amount: int, *, idempotency_key: str = "") -> str:
    done.append(f"refund {order} {amount}")
    return idempotency_key


def chat(prompt: str, model: str = "small") -> str:
    done.append(f"{model}: {prompt}")
    return "yes"


def look(run: Run) -> dict[str, Any]:
    order: dict[str, Any] = find_order(order=run.input["order"])
    run.state["order"] = order
    return order


def agent(run: Run) -> Any:
    order = run.step("look", look, run)
    with run.step("decide"):
        limit = run.read("document/policy").fields["fields"]["limit"]
        answer = run.model(chat, prompt=f"{run.state['order']['amount']} of {limit}?")
        run.state["answer"] = run.decide(answer, why="the model says so")
    if run.state["answer"] == "yes":
        with run.step("refund"):
            run.state["by"] = refund(order=order["id"], amount=run.state["order"]["amount"])
            run.observe("document/ticket-7", {"fields": {"refunded": True}})
    return run.state["answer"]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    done.clear()
    with refold.open(f"file:{tmp_path}/log") as log:
        log.observe("document/policy", {"fields": {"limit": 100}}, source="tests")
        log.flush()
        log.run("refund-agent", input={"order": "o-7"}, seed=7, id="r1").drive(agent)
        assert done == ["find o-7", "small: 50 of 100?", "refund o-7 50"]
        done.clear()
        yield log


def test_recorded_run_replays_to_its_hash_without_calls(log: AgentLog) -> None:
    before = log.rebuild().root
    log.observe("document/policy", {"fields": {"limit": 10}}, source="tests")  # a replay reads the recorded state
    for _ in range(3):
        found = log.replay("r1", agent)
        assert found.is_same
        assert found.hash == log.recording("r1").hash
        assert found.now.output == "yes"
    assert done == []
    assert asyncio.run(log.replay_async("r1", agent)).is_same
    assert {str(name) for name in log.rebuild()} == {
        "document/policy", "document/ticket-7", "run/r1", "step/r1#1", "step/r1#2", "step/r1#3",
    } | {name for name in log.rebuild() if name.startswith("effect/")}  # fmt: skip
    assert before


def test_unchanged_states_are_not_computed_again(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def comparing(before: Any, after: Any) -> Any:
        compared.append(after)
        return edits(before, after)

    monkeypatch.setattr(step_assembler, "edits", comparing)
    assert log.replay("r1", agent).is_same
    assert compared == []

    def other(run: Run) -> Any:
        run.state["more"] = 1
        return agent(run)

    assert not log.replay("r1", other).is_same
    assert len(compared) == 3


def test_run_on_kafka_replays_and_forks_as_on_disk(log: AgentLog, kafka: brokers.SharedKafka, prefix: str) -> None:
    there = log.recording("r1")
    with refold.open(f"kafka://{kafka.bootstrap}/{prefix}?partitions=2") as other:
        other.observe("document/policy", {"fields": {"limit": 100}}, source="tests")
        other.flush()
        other.run("refund-agent", input={"order": "o-7"}, seed=7, id="r1").drive(agent)
        done.clear()
        found = other.replay("r1", agent)
        assert found.is_same
        assert [step.delta for step in found.now.steps[:2]] == [step.delta for step in there.steps[:2]]
        run = other.fork("r1", at=1, state={"order.amount": 70}, allow=["refund", "observe"])
        run.drive(agent)
        assert done == ["small: 70 of 100?", "refund o-7 70"]
        assert other.recording("r1") == found.recorded
        assert list(broken(other.recording(run.id))) == []
        assert other.replay(run.id, agent).is_same


def test_replay_from_the_log_has_no_network(log: AgentLog) -> None:
    def reaching(run: Run) -> None:
        socket.create_connection(("127.0.0.1", 9))

    with pytest.raises(refold.RefoldError, match="under replay"):
        log.replay("r1", reaching)


def test_agent_is_found_by_its_recorded_name(log: AgentLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "small_agent.py").write_text("def agent(run):\n    return run.uuid() and 1\n")
    monkeypatch.chdir(tmp_path)
    run = log.run("small", entry="small_agent.py:agent", id="r2")
    run.drive(log.agent_of("r2"))
    assert log.replay("r2").is_same
    (tmp_path / "small_agent.py").write_text("def agent(run):\n    return run.uuid() and 2\n")
    assert not log.replay("r2").is_same
    with pytest.raises(InputError, match="entry=module:function"):
        log.replay("r1")


def parent(log: AgentLog) -> tuple[Recording, dict[str, str]]:
    """Return the parent's recording, and the hash of each of its entities."""
    view = log.rebuild(types=["run", "step"])
    names = [name for name in view if name == "run/r1" or name.startswith("step/r1#")]
    assert len(names) == 4
    return log.recording("r1"), {name: view[name].state_hash for name in names}


def test_fork_continues_with_another_state_and_leaves_its_parent_unchanged(log: AgentLog) -> None:
    before = parent(log)
    run = log.fork("r1", at=1, state={"order.amount": 70}, allow=["refund", "observe"])
    assert run.drive(agent) == "yes"
    assert done == ["small: 70 of 100?", "refund o-7 70"]  # the first step was not run again
    assert parent(log) == before
    child = log.recording(run.id)
    assert (child.parent, child.forked_at, child.patch) == ("r1", 1, {"state": [["set", ["order", "amount"], 70]]})
    assert child.steps[0] == before[0].steps[0]
    assert [step.number for step in child.steps] == [1, 2, 3]
    assert list(broken(child)) == []
    assert child.hash != before[0].hash
    keys = [call.key for run in (before[0], child) for call in run.steps[2].calls if call.key]
    assert len(set(keys)) == 2  # a fork's effects have keys of their own
    done.clear()
    assert log.replay(run.id, agent).is_same
    assert done == []


def test_fork_of_a_fork_has_both_patches(log: AgentLog) -> None:
    first = log.fork("r1", at=1, state={"order.amount": 70, "tags": ["a"]}, allow=["refund", "observe"])
    first.drive(agent)
    second = log.fork(first.id, at=2, state={"answer": "no", "tags[1]": "b"})
    assert second.drive(agent) == "no"
    child = log.recording(second.id)
    assert child.parent == first.id
    assert [each.at for each in child.parted] == [1, 2]
    assert len(child.steps) == 2
    assert list(broken(child)) == []
    assert second.state["tags"] == ["a", "b"]
    third = log.fork(second.id, at=1, arguments={"model": {"model": "large"}}, allow=["refund", "observe"])
    done.clear()
    third.drive(agent)
    assert done[0] == "large: 70 of 100?"
    for each in (first, second, third):
        assert log.replay(each.id, agent).is_same
        assert list(broken(log.recording(each.id))) == []


def test_fork_after_a_forks_own_steps_has_the_arguments_of_each(log: AgentLog) -> None:
    """Its code asks in the step `decide` again, and gets the answer that the first fork got with another model."""
    first = log.fork("r1", at=1, arguments={"model": {"model": "large"}}, allow=["refund", "observe"])
    first.drive(agent)
    second = log.fork(first.id, at=2, state={"answer": "no"})
    done.clear()
    assert (second.drive(agent), done) == ("no", [])
    for each in (first, second):
        assert log.replay(each.id, agent).is_same


def test_fork_from_the_start_has_another_input(log: AgentLog) -> None:
    run = log.fork("r1", at=0, input={"order": "o-9"}, allow=["refund", "observe"])
    run.drive(agent)
    assert done == ["find o-9", "small: 50 of 100?", "refund o-9 50"]
    child = log.recording(run.id)
    assert child.input == {"order": "o-7"}
    assert child.given == {"order": "o-9"}
    assert list(broken(child)) == []
    assert log.replay(run.id, agent).is_same


def test_forks_calls_have_patched_arguments_and_results(log: AgentLog) -> None:
    run = log.fork("r1", at=1, arguments={"model": {"model": "large", "prompt": "refund?"}}, policy="recorded")
    with pytest.raises(Unrecorded, match=r"kwargs\.model"):
        run.drive(agent)
    run = log.fork("r1", at=1, results={"2/chat": "no"})
    assert run.drive(agent) == "no"
    assert done == []
    assert log.replay(run.id, agent).is_same
    run = log.fork("r1", at=1, results={"2/chat": Failure(exception="builtins.TimeoutError", message="too slow")})
    with pytest.raises(TimeoutError, match="too slow"):
        run.drive(agent)
    assert log.recording(run.id).outcome == "failed"


def test_fork_runs_other_code(log: AgentLog) -> None:
    def careful(run: Run) -> str:
        run.step("look", look, run)
        with run.step("ask"):
            run.state["answer"] = run.model(chat, prompt="sure?")
        return "asked"

    run = log.fork("r1", at=1, version="2", code_version="abc")
    assert run.drive(careful) == "asked"
    child = log.recording(run.id)
    assert (child.version, child.code_version, child.kind) == ("2", "abc", "fork")


def test_write_tool_does_not_run_in_a_fork_unless_allowed(log: AgentLog) -> None:
    unchanged = log.fork("r1", at=1, policy="recorded")
    unchanged.drive(agent)
    assert done == []  # every call was recorded
    assert log.recording(unchanged.id).output == "yes"
    run = log.fork("r1", at=1, state={"order.amount": 70})
    before = log.state("document/ticket-7").version
    with pytest.raises(NotAllowed, match="--allow refund"):
        run.drive(agent)
    assert done == ["small: 70 of 100?"]
    assert log.state("document/ticket-7").version == before
    child = log.recording(run.id)
    assert child.outcome == "failed"
    assert child.failure is not None
    assert child.failure.exception.endswith("NotAllowed")
    with pytest.raises(NotAllowed, match="--allow observe"):
        log.fork("r1", at=1, state={"order.amount": 71}, allow=["refund"], results={"3/document/ticket-7": "x"}).drive(
            lambda run: agent(run) and run.observe("document/other", {"fields": {}})
        )


def test_fork_may_prompt(log: AgentLog) -> None:
    asked: list[str] = []

    def ask(site: Any, request: Any, why: Unrecorded) -> Call | None:
        asked.append(f"{site.step} {request.name}")
        return Call(asked=request, answer="no")

    run = log.fork("r1", at=1, state={"order.amount": 70}, policy="asked", ask=ask)
    assert run.drive(agent) == "no"
    assert asked == ["2 chat"]
    assert done == []


def test_fork_whose_code_diverges_before_its_start_is_refused(log: AgentLog) -> None:
    def renamed(run: Run) -> None:
        run.step("seek", look, run)

    with pytest.raises(Differs):
        log.fork("r1", at=1).drive(renamed)
    with pytest.raises(InputError, match="committed steps end at 3"):
        log.fork("r1", at=4)
