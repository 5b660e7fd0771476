"""A run under a policy: a denied call is not made, its denial is recorded, and a replay gets the same result."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.policy.guard import is_denial
from refold.agents.recorder.run import Run
from refold.avro.errors import InputError
from refold.policy import ApprovalNeeded, Policy, PolicyDenied, check
from refold.streams.view import EntityView
from refold_tests.model_server import ModelServer, model_server

POLICY = """
name = "desk"

[[rule]]
name = "large refunds"
tool = "refund*"
args.eur.over = 100

[budget]
tool_calls = 6

[loop]
repeats = 3
"""

done: list[Any] = []


@refold.tool(effect="write")
def refund(eur: int) -> str:
    done.append(eur)
    return f"refunded {eur}"


@refold.tool
def look(order: int) -> str:
    done.append(f"look {order}")
    return "paid"


@refold.tool(effect="write")
async def refund_later(eur: int) -> str:
    done.append(eur)
    return f"refunded {eur}"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('policy') / 'log'}") as log:
        yield log


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


def agent(run: Run) -> list[str]:
    """Try, be denied, and continue."""
    said = []
    for eur in (50, 500):
        with run.step(f"refund {eur}"):
            try:
                said.append(refund(eur=eur))
            except PolicyDenied as denied:
                said.append(f"denied by {denied.policy}: {denied.rule}: {denied.why}")
    try:
        refund(eur=500)  # outside of a step
    except PolicyDenied as denied:
        said.append(denied.rule)
    return said


SAID = ["refunded 50", "denied by desk: large refunds: eur over 100.0", "large refunds"]


def test_denied_call_is_not_made_and_its_replay_is_the_same(log: AgentLog) -> None:
    run = log.run("desk", guard=Policy.parse(POLICY))
    assert run.drive(agent) == SAID
    assert done == [50]
    recording = log.recording(run.id)
    assert recording.tags == ("policy:desk",)
    for _ in range(20):
        replayed = log.replay(run.id, agent)
        assert replayed.is_same
        assert replayed.now.output == SAID
    assert done == [50]


def denials(log: AgentLog, run: str) -> list[EntityView]:
    """Return the audit events of a run's denied calls, in order."""
    return [
        log.state(f"audit_event/{run}#{step.number}.{call.asked.hash[:12]}")
        for step in log.recording(run).steps for call in step.calls if is_denial(call)
    ]  # fmt: skip


def test_each_denial_is_an_observation_with_rule_and_cause(log: AgentLog) -> None:
    run = log.run("desk", guard=Policy.parse(POLICY))
    run.drive(agent)
    found = denials(log, run.id)
    assert [(each.fields["verb"], each.fields["object"], each.fields["outcome"]) for each in found] == [
        ("deny", f"step/{run.id}#2", "denied"), ("deny", f"step/{run.id}#3", "denied"),
    ]  # fmt: skip
    for each in found:
        assert each.fields["authority"] == "policy desk, rule large refunds"
        [link, *_] = each.why("outcome")
        assert link.causes, "what was recorded of the run before"


def test_loop_is_broken_and_the_denial_names_its_steps(log: AgentLog) -> None:
    def loops(run: Run) -> list[str]:
        said: list[str] = []
        while "loop" not in said:
            try:
                said.append(look(order=7))
            except PolicyDenied as denied:
                said.append(denied.rule)
        return said

    run = log.run("desk", guard=Policy.parse(POLICY))
    assert run.drive(loops) == ["paid", "paid", "paid", "loop"]
    assert done == ["look 7"] * 3
    [denial] = denials(log, run.id)
    assert denial.fields["details"]["evidence"] == [f"{run.id}#1", f"{run.id}#2", f"{run.id}#3"]
    assert log.replay(run.id, loops).is_same


def test_child_runs_share_the_budget(log: AgentLog) -> None:
    def child(run: Run) -> None:
        for eur in range(4):
            refund(eur=eur)

    def parent(run: Run) -> str:
        for _ in range(2):
            with run.step("child"):
                try:
                    run.child("inner").drive(child)
                except PolicyDenied as denied:
                    return denied.rule
        return "nothing was denied"

    run = log.run("outer", guard=Policy.parse(POLICY))
    assert run.drive(parent) == "budget.tool_calls"
    assert len(done) == 6
    assert log.replay(run.id, parent).is_same
    assert len(done) == 6


def test_calls_of_threads_and_tasks_are_denied(log: AgentLog) -> None:
    def denied_in_thread(run: Run) -> str:
        with run.step("pool"), ThreadPoolExecutor(1) as pool:
            return str(type(pool.submit(refund, eur=500).exception()).__name__)

    async def denied_in_task(run: Run) -> str:
        async with run.step("task"):
            [found] = await asyncio.gather(refund_later(eur=500), return_exceptions=True)
            return type(found).__name__

    run = log.run("desk", guard=Policy.parse(POLICY))
    assert run.drive(denied_in_thread) == "PolicyDenied"

    async def drive() -> Any:
        return await log.run("desk", guard=Policy.parse(POLICY)).drive_async(denied_in_task)

    assert asyncio.run(drive()) == "PolicyDenied"
    assert done == []


def test_resumed_run_counts_earlier_calls_and_needs_its_policy(log: AgentLog) -> None:
    class Stopped(Exception):
        pass

    def part(run: Run, until: int) -> str:
        for number in range(until):
            run.step(f"refund {number}", refund, eur=number)
        if until == 4:
            raise Stopped
        return "done"

    run = log.run("desk", guard=Policy.parse(POLICY))
    with pytest.raises(Stopped):
        run.drive(lambda run: part(run, 4))
    with pytest.raises(InputError, match="under the policy desk"):
        log.run("desk", resume=run.id)
    again = log.run("desk", resume=run.id, guard=Policy.parse(POLICY))
    with pytest.raises(PolicyDenied, match=r"budget\.tool_calls"):
        again.drive(lambda run: part(run, 8))
    assert done == [0, 1, 2, 3, 4, 5]


def test_sdk_gets_a_response_that_it_does_not_retry(log: AgentLog) -> None:
    text = """
    name = "models"
    [[rule]]
    name = "no large models"
    model = "POST 127.0.0.1/*"
    args.model.like = "*-large"
    """

    def asks(run: Run, server: ModelServer) -> list[str]:
        said = []
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as own:
            client = run.client(own)
            for model in ("gpt-small", "gpt-large"):
                with run.step(model):
                    try:
                        answer = client.chat.completions.create(
                            model=model, messages=[{"role": "user", "content": "hi"}]
                        )
                        said.append(str(answer.choices[0].message.content))
                    except openai.PermissionDeniedError as error:
                        said.append(str(error.body["message"]) if isinstance(error.body, dict) else "")
        return said

    with model_server() as server:
        run = log.run("desk", guard=Policy.parse(text))
        said = run.drive(lambda run: asks(run, server))
        assert said[1] == (
            "policy models, rule 'no large models': model POST 127.0.0.1/v1/chat/completions is denied: "
            "model is like *-large"
        )
        assert len(server.requests) == 1
        assert log.replay(run.id, lambda run: asks(run, server)).is_same
        assert len(server.requests) == 1
    [denial] = denials(log, run.id)
    assert denial.fields["reason"] == "model is like *-large"


def test_replay_of_a_recorded_run_under_its_policy_is_the_same(log: AgentLog) -> None:
    policy = Policy.parse(POLICY)
    run = log.run("desk", guard=policy)
    run.drive(agent)
    recording = log.recording(run.id)
    for _ in range(20):
        found = check(policy, recording)
        assert [each.is_denied for each in found] == [each.was_denied for each in found] == [False, True, True]
    stricter = check(Policy.parse("name = 'none'\n[budget]\ntool_calls = 0"), recording)
    assert [each.is_denied for each in stricter] == [True, True, True]


def test_child_run_has_the_policy_of_its_parent(log: AgentLog) -> None:
    with (
        log.run("outer", guard=Policy.parse(POLICY)) as run,
        run.step("child"),
        pytest.raises(InputError, match="its own policy"),
    ):
        log.run("inner", guard=Policy.parse(POLICY))


def test_policy_may_be_given_as_a_file(log: AgentLog, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(InputError, match="cannot be read"):
        log.run("desk", guard=file)
    file.write_text(POLICY)
    run = log.run("desk", guard=str(file))
    assert run.drive(agent) == SAID


ASKING = """
name = "desk"
[[rule]]
name = "large refunds"
tool = "refund"
args.eur.over = 100
action = "ask"
why = "A person decides on more than 100 EUR."
"""


def large(run: Run) -> str:
    run.step("look", look, order=7)
    with run.step("refund"):
        return refund(eur=500)


def asked_about(log: AgentLog) -> tuple[str, str]:
    """Return a run that waits for an approval, and the question's id."""
    run = log.run("desk", guard=Policy.parse(ASKING))
    with pytest.raises(ApprovalNeeded, match="refold approve") as needed:
        run.drive(large)
    assert done == ["look 7"]
    return run.id, needed.value.question


def resumed(log: AgentLog, run: str, policy: str = ASKING) -> Any:
    return log.run("desk", resume=run, guard=Policy.parse(policy)).drive(large)


def test_approved_call_is_made_once_when_the_run_is_resumed(log: AgentLog) -> None:
    run, question = asked_about(log)
    [waiting] = [each for each in log.questions() if each.run == run]
    assert (waiting.id, waiting.tool, waiting.arguments) == (question, "refund", {"eur": 500})
    assert waiting.approval.by == "policy desk, rule large refunds"
    assert waiting.approval.expires_at - waiting.approval.asked_at == 86_400_000_000
    with pytest.raises(ApprovalNeeded):
        resumed(log, run)  # nobody has answered yet, and there is still only one question
    assert [each.id for each in log.questions() if each.run == run] == [question]
    log.answer(question, is_approved=True, by="ann")
    with pytest.raises(InputError, match="approved by ann"):
        log.answer(question, is_approved=False, by="bob")
    assert resumed(log, run) == "refunded 500"
    assert log.recording(run).failure is None, "it is that of the attempt before"
    assert done == ["look 7", 500]
    assert log.replay(run, large).is_same
    assert done == ["look 7", 500]
    assert [each for each in log.questions() if each.run == run] == []
    assert [each.approval.decision for each in log.questions(all_too=True) if each.run == run] == ["approved"]


def test_rejected_call_is_denied_with_the_reason(log: AgentLog) -> None:
    run, question = asked_about(log)
    log.answer(question, is_approved=False, by="ann", reason="the parcel is lost")
    with pytest.raises(PolicyDenied, match="rejected by ann: the parcel is lost"):
        resumed(log, run)
    assert done == ["look 7"]


def test_approval_request_expires(log: AgentLog) -> None:
    run, question = asked_about(log)
    soon = ASKING.replace('action = "ask"', 'action = "ask"\nexpires_s = 0.000001')
    with pytest.raises(PolicyDenied, match="nobody approved it within"):
        resumed(log, run, soon)
    log.answer(question, is_approved=True, by="ann")  # too late
    with pytest.raises(PolicyDenied, match="nobody approved it within"):
        resumed(log, run, soon)
    assert done == ["look 7"]


def test_each_of_two_equal_calls_in_a_step_needs_its_own_approval(log: AgentLog) -> None:
    def twice(run: Run) -> list[str]:
        with run.step("refunds"):
            return [refund(eur=500), refund(eur=500)]

    run = log.run("desk", guard=Policy.parse(ASKING))
    for place in (1, 2):
        with pytest.raises(ApprovalNeeded) as needed:
            run.drive(twice)
        assert needed.value.question.endswith(f".{place}")
        assert done == [500] * (place - 1)
        log.answer(needed.value.question, is_approved=True, by="ann")
        run = log.run("desk", resume=run.id, guard=Policy.parse(ASKING))
    assert run.drive(twice) == ["refunded 500"] * 2
    assert done == [500, 500]


def test_answer_without_a_request_is_refused(log: AgentLog) -> None:
    with pytest.raises(InputError, match="refold approvals"):
        log.answer("none#1.abc.1", is_approved=True, by="ann")


def test_decisions_are_the_same_in_a_hundred_replays(log: AgentLog) -> None:
    run = log.run("desk", guard=Policy.parse(POLICY))
    run.drive(agent)
    recorded = log.recording(run.id)
    first = check(Policy.parse(POLICY), recorded)
    assert [each.is_denied for each in first].count(True) == 2
    for _ in range(100):
        replayed = log.replay(run.id, agent)
        assert replayed.is_same
        assert check(Policy.parse(POLICY), replayed.now) == first
