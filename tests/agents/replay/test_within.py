"""A nested run: recorded as a child of the outer run, answered from its own recording, and never done again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import golden_of, text_of
from refold.agents.golden.runner import judged_run
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure, WithinRun
from refold.agents.recorder.run import Run
from refold.agents.redaction.redactor import Redactor
from refold.agents.replay.forked import NotAllowed
from refold.avro.errors import InputError
from refold_tests.older_thread import older_thread

done: list[int] = []


@refold.tool(effect="write")
def pay(amount: int, *, idempotency_key: str = "") -> int:
    done.append(amount)
    return amount


@refold.tool(effect="read")
def price(of: str) -> int:
    return len(of)


def paying(run: Run) -> int:
    with run.step("look"):
        amount = price(of=run.input)
        run.state["amount"] = amount
    return run.step("pay", pay, amount)


@pytest.fixture
def log(tmp_path: Path) -> Any:
    done.clear()
    with refold.open(f"file:{tmp_path}/log") as found:
        yield found


def begun_in(log: AgentLog, place: str) -> Callable[[Run], Any]:
    def agent(run: Run) -> Any:
        if place == "outside of any step":
            return log.run("inner", input="abc").drive(paying)
        if place == "in a function":
            return run.step("outer", lambda: log.run("inner", input="abc").drive(paying))
        with run.step("outer"):
            return log.run("inner", input="abc").drive(paying)

    return agent


PLACES = pytest.mark.parametrize("place", ["in a step", "in a function", "outside of any step"])


@PLACES
def test_nested_run_is_a_child_and_never_repeated(log: AgentLog, place: str) -> None:
    agent = begun_in(log, place)
    assert log.run("outer", id="r1").drive(agent) == 3
    recording = log.recording("r1")
    (call,) = recording.steps[0].calls
    (child,) = recording.children.values()
    assert (call.asked.kind, call.asked.name) == ("run", "inner")
    assert call.answer == {"run": child.run, "outcome": "succeeded", "hash": child.hash}
    assert (child.agent, child.caller, child.caller_step) == ("inner", "r1", 1)
    assert child == log.recording(child.run)
    begun = len(log.runs())
    replayed = log.replay("r1", agent)
    assert replayed.is_same
    assert replayed.now.children[child.run].hash == child.hash
    assert log.fork("r1", at=1, policy="live").drive(agent) == 3
    golden = golden_of(text_of(golden_of_run(recording, log._fields, entry="agents:agent")), "golden")
    assert judged_run(golden, agent, "agent", Path()).passed
    assert done == [3]
    assert len(log.runs()) == begun + 1  # the fork


@PLACES
@pytest.mark.parametrize("policy", ["live", "recorded"])
def test_fork_handles_a_child_by_its_policy(log: AgentLog, place: str, policy: Any) -> None:
    agent = begun_in(log, place)
    log.run("outer", id="r1").drive(agent)
    fork = log.fork("r1", at=0, policy=policy)
    assert fork.drive(agent) == 3  # the answer in the child's own recording
    child = log.recording(fork.id).children.popitem()[1]
    assert (child.caller, child.kind) == (fork.id, "fork")
    assert done == [3]
    assert log.replay(fork.id, agent).is_same

    def other(run: Run) -> Any:
        with run.step("outer"):
            return log.run("inner", input="abcd").drive(paying)

    with pytest.raises(Departure) as left:
        log.fork("r1", at=0, policy=policy).drive(other)
    assert isinstance(left.value, NotAllowed) == (policy == "live")
    assert done == [3]
    if policy == "live":
        assert log.fork("r1", at=0, policy=policy, allow=["pay"]).drive(other) == 4
        assert done == [3, 4]


def test_diverging_child_makes_the_replay_not_the_same(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"):
            return log.run("inner", input="abc").drive(child)

    child: Callable[[Run], Any] = paying
    log.run("outer", id="r1").drive(agent)

    def paying_other(run: Run) -> int:
        with run.step("look"):
            amount = price(of=run.input)
        return run.step("pay", pay, amount)

    child = paying_other
    replayed = log.replay("r1", agent)
    assert not replayed.is_same
    assert replayed.parting is not None
    assert replayed.parting.step == 1

    def paying_twice(run: Run) -> int:
        paying(run)
        return run.step("pay again", pay, 9)

    child = paying_twice
    with pytest.raises(Departure):
        log.replay("r1", agent)
    golden = golden_of_run(log.recording("r1"), log._fields, entry="agents:agent")
    assert not judged_run(golden, agent, "agent", Path()).passed
    assert done == [3]


def test_departure_caught_in_the_parent_still_ends_the_replay(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"), contextlib.suppress(Exception):
            log.run("inner", input=given).drive(paying)
        with run.step("pay"):
            pay(5)

    given = "abc"
    log.run("outer", id="r1").drive(agent)
    given = "other"
    with pytest.raises(Departure):
        log.replay("r1", agent)
    assert done == [3, 5]


@pytest.mark.parametrize("in_block", [True, False], ids=["block", "function"])
def test_resume_does_not_repeat_an_ended_child(log: AgentLog, in_block: bool) -> None:
    lives = 0

    def agent(run: Run) -> Any:
        if in_block:
            with run.step("outer"):
                found = log.run("inner", input="abc").drive(paying)
        else:
            found = run.step("outer", lambda: log.run("inner", input="abc").drive(paying))
        with run.step("fails"):
            if lives == 0:
                raise RuntimeError("no more")
        return found

    with pytest.raises(RuntimeError):
        log.run("outer", id="r1").drive(agent)
    lives = 1
    assert log.run("outer", resume="r1").drive(agent) == 3
    assert done == [3]
    assert {each.agent for each in log.runs()} == {"inner", "outer"}
    assert len(log.runs()) == 2
    assert log.replay("r1", agent).is_same


def test_resume_refuses_a_child_that_diverges(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"):
            log.run("inner", input="abc").drive(child)
        with run.step("fails"):
            raise RuntimeError("no more")

    child: Callable[[Run], Any] = paying
    with pytest.raises(RuntimeError):
        log.run("outer", id="r1").drive(agent)

    def ending_otherwise(run: Run) -> int:
        return paying(run) + 1

    def going_on(run: Run) -> int:
        paying(run)
        return run.step("pay again", pay, 9)

    for child in (ending_otherwise, going_on):  # noqa: B007  # the agent's own
        with pytest.raises(WithinRun, match="inner"):
            log.run("outer", resume="r1").drive(agent)
    assert done == [3]


def test_retried_step_starts_a_new_child_with_the_same_effects(log: AgentLog) -> None:
    tries: list[str] = []

    def begins() -> int:
        inner = log.run("inner", input="abc")
        tries.append(inner.id)
        found = int(inner.drive(paying))
        if len(tries) == 1:
            raise TimeoutError("once")
        return found

    def agent(run: Run) -> int:
        return run.step("outer", begins, attempts_max=3)

    assert log.run("outer", id="r1").drive(agent) == 3
    assert len(tries) == len(set(tries)) == 2
    assert set(log.recording("r1").children) == set(tries)
    assert done == [3]
    tries.clear()
    assert log.replay("r1", agent).is_same
    assert done == [3]


def test_failed_child_fails_again_in_a_replay(log: AgentLog) -> None:
    def failing(run: Run) -> int:
        paying(run)
        raise ValueError("no good")

    def agent(run: Run) -> str:
        with run.step("outer"):
            try:
                log.run("inner", input="abc").drive(failing)
            except ValueError as error:
                return str(error)
        return ""

    assert log.run("outer", id="r1").drive(agent) == "no good"
    (call,) = log.recording("r1").steps[0].calls
    assert call.answer["outcome"] == "failed"
    assert log.replay("r1", agent).is_same
    assert done == [3]


def test_child_is_not_resumed_on_its_own(log: AgentLog) -> None:
    def failing(run: Run) -> int:
        raise ValueError("no good")

    def agent(run: Run) -> Any:
        with run.step("outer"):
            log.run("inner", input="abc", id="mine").drive(failing)

    with pytest.raises(ValueError, match="no good"):
        log.run("outer", id="r1").drive(agent)
    with pytest.raises(InputError, match="began in step 1 of run r1"):
        log.run("inner", resume="mine")


def test_unfinished_child_fails_its_step(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"):
            log.run("inner", input="abc")

    with pytest.raises(InputError, match="inner"):
        log.run("outer", id="r1").drive(agent)
    assert log.recording("r1").outcome == "failed"


def test_three_levels_of_runs_replay(log: AgentLog) -> None:
    def middle(run: Run) -> int:
        with run.step("middle"):
            return int(log.run("inner", input=run.input).drive(paying)) + pay(10)

    def agent(run: Run) -> int:
        with run.step("outer"):
            return int(log.run("middle", input="abc").drive(middle)) + pay(20)

    assert log.run("outer", id="r1").drive(agent) == 33
    recording = log.recording("r1")
    assert [each.agent for each in recording.family] == ["outer", "middle", "inner"]
    assert log.replay("r1", agent).is_same
    golden = golden_of(text_of(golden_of_run(recording, log._fields, entry="agents:agent")), "golden")
    assert judged_run(golden, agent, "agent", Path()).passed
    assert log.fork("r1", at=0, policy="recorded").drive(agent) == 33
    with pytest.raises(Departure):
        log.fork("r1", at=0, policy="recorded", arguments={"price": {"of": "other"}}).drive(agent)
    assert done == [3, 10, 20]


def test_run_started_in_a_tool_is_part_of_the_tools_answer(log: AgentLog) -> None:
    @refold.tool(effect="read", name="ask")
    def ask() -> int:
        return int(log.run("inner", input="abc").drive(paying))

    def agent(run: Run) -> Any:
        with run.step("outer"):
            return ask()

    assert log.run("outer", id="r1").drive(agent) == 3
    assert log.recording("r1").children == {}
    assert log.replay("r1", agent).is_same
    assert log.fork("r1", at=0, policy="recorded").drive(agent) == 3
    assert done == [3]


def test_run_nested_in_a_run_started_in_a_tool_is_its_child(log: AgentLog) -> None:
    def middle(run: Run) -> int:
        with run.step("middle"):
            return int(log.run("inner", input="abc").drive(paying))

    @refold.tool(effect="read", name="ask")
    def ask() -> int:
        return int(log.run("middle").drive(middle))

    def agent(run: Run) -> Any:
        with run.step("outer"):
            return ask()

    log.run("outer", id="r1").drive(agent)
    (found,) = log.runs(agent="inner")
    assert log.recording(log.recording(found.run).caller).agent == "middle"


def test_run_resumed_within_a_replay_is_refused(log: AgentLog) -> None:
    def failing(run: Run) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        log.run("other", id="r0").drive(failing)

    def agent(run: Run) -> Any:
        with run.step("outer"):
            return log.run("other", resume="r0").drive(paying_later)

    def paying_later(run: Run) -> int:
        return run.step("pay", pay, 3)

    log.run("outer", id="r1").drive(agent)
    with pytest.raises(WithinRun):
        log.replay("r1", agent)
    assert done == [3]


def test_existing_thread_starts_no_run_during_a_replay(log: AgentLog) -> None:
    with older_thread() as through:

        def agent(run: Run) -> Any:
            with run.step("outer"), contextlib.suppress(Departure):
                through(lambda: log.run("inner", input="abc").drive(paying))

        log.run("outer", id="r1").drive(agent)
        assert done == [3]
        with pytest.raises(Departure, match="begin a run of inner"):
            log.replay("r1", agent)
    assert done == [3]


def test_log_of_another_url_starts_no_nested_run(log: AgentLog, tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path}/other") as other:

        def agent(run: Run) -> Any:
            with run.step("outer"):
                return other.run("inner", input="abc").drive(paying)

        with pytest.raises(InputError, match="so are its nested runs"):
            log.run("outer", id="r1").drive(agent)
    assert done == []


def test_child_is_recorded_through_its_parents_redactor(log: AgentLog) -> None:
    def inner(run: Run) -> str:
        with run.step("look"):
            run.state["password"] = run.input["password"]
        return str(run.input["password"])

    def agent(run: Run) -> bool:
        with run.step("outer"):
            return bool(run.child("inner", input={"password": "xyzzy-42"}).drive(inner))

    redactor = Redactor()
    assert log.run("outer", id="r1", redact=redactor).drive(agent) is True
    recording = log.recording("r1")
    assert all(each.redacted for each in recording.family)
    assert b"xyzzy-42" not in msgspec.json.encode(recording)
    assert log.replay("r1", agent, redact=redactor).is_same

    def redacting(run: Run) -> None:
        with run.step("outer"):
            log.run("inner", redact=redactor)

    with pytest.raises(InputError, match="give redact= to the outer run"):
        log.run("outer").drive(redacting)


def test_child_run_starts_in_the_runs_code_and_not_in_a_tool(log: AgentLog) -> None:
    @refold.tool(effect="read", name="ask")
    def ask() -> int:
        return int(outer[0].child("inner", input="abc").drive(paying))

    def agent(run: Run) -> Any:
        outer.append(run)
        with run.step("outer"):
            return ask()

    outer: list[Run] = []
    with pytest.raises(InputError, match="must begin in the run's own code, not in a tool"):
        log.run("outer").drive(agent)
    assert done == []


def test_given_id_is_the_childs_and_unique(log: AgentLog) -> None:
    def agent(run: Run) -> Any:
        with run.step("outer"):
            return log.run("inner", id="mine", input="abc").drive(paying)

    assert log.run("outer", id="r1").drive(agent) == 3
    assert list(log.recording("r1").children) == ["mine"]
    assert log.replay("r1", agent).is_same
    with pytest.raises(InputError, match="run mine is recorded already"):
        log.run("outer", id="r2").drive(agent)
    with pytest.raises(InputError, match="run mine is recorded already"):
        log.run("outer", resume="r2").drive(agent)
    assert log.replay("r2", agent).is_same
    assert done == [3]


def test_redactor_that_removes_everything_still_keeps_children_distinct(log: AgentLog) -> None:
    def agent(run: Run) -> None:
        with run.step("outer"):
            for _ in range(2):
                run.child("inner").drive(lambda child: child.step("pay", pay, 3))

    log.run("outer", id="r1", redact=lambda tree: "-" if isinstance(tree, str) else tree).drive(agent)
    assert done == [3, 3]


def test_given_task_id_is_one_task_across_runs(log: AgentLog) -> None:
    def agent(run: Run) -> None:
        with run.step("outer"):
            run.child("inner", input="abc", task="pay order 7").drive(paying)

    for run in ("r1", "r2"):
        log.run("outer", id=run).drive(agent)
    assert done == [3]
