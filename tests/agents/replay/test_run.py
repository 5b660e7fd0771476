"""Today's code against a recording: the same in every replay, and different if one line of the code changed."""

from __future__ import annotations

import asyncio
import inspect
import socket
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import refold
from refold.agents.journal.record import Attempt, Recording
from refold.agents.recorder.answers import Departure
from refold.agents.recorder.run import Run
from refold.agents.replay.edges import counted, edges
from refold.agents.replay.run import replayed, replayed_async, stepped
from refold.agents.replay.unrecorded import Unrecorded
from refold.agents.replay.watch import NetworkDenied
from refold.avro.errors import InputError
from refold_tests.handmade_runs import run_of, step, tool
from refold_tests.live_runs import World, recorded

POLICY = {"limit": 100}
calls: list[str] = []


class Flaky(Exception):
    """A transient error of a provider."""


@refold.tool(effect="read")
def find_order(order: str) -> dict[str, Any]:
    calls.append("find_order")
    return {"order": order, "amount": 40.0, "items": ["a", "b"]}


@refold.tool(effect="write")
def send_mail(to: str, body: str) -> str:
    calls.append("send_mail")
    return "sent-1"


def chat(messages: list[dict[str, str]], model: str = "m") -> dict[str, Any]:
    calls.append("chat")
    if len(calls) == 2:
        raise Flaky("overloaded")
    return {"content": "refund", "usage": {"input_tokens": len(messages)}}


def refund(run: Run) -> Any:
    order = find_order(order=run.input["order"])
    messages = [{"role": "user", "content": f"refund {order['order']}?"}]
    answer = run.step("ask", lambda: run.model(chat, messages=messages), attempts_max=3, backoff_ms=10)
    with run.step("decide"):
        limit = run.read("document/policy").fields["limit"]
        run.state["amount"] = order["amount"]
        run.decide(answer["content"], why=f"{order['amount']} is below {limit}", options=["refund", "deny"])
        run.state["at"] = run.now().isoformat()
    with run.step("pay"):
        run.observe("document/ticket-7", {"paid": order["amount"]})
        run.state["mail"] = send_mail(to="ann", body=f"{run.uuid()} {run.random() < 1}")
    return {"amount": order["amount"]}


@pytest.fixture
def recording() -> Recording:
    calls.clear()
    world = World({"document/policy": POLICY})
    found = recorded(refund, world=world, input={"order": "o-7"}, seed=7)
    assert found.outcome == "succeeded"
    assert calls == ["find_order", "chat", "chat", "send_mail"]
    assert world.sent == ["send_mail"]
    calls.clear()
    return found


def policy(entity: str, answer: Any) -> dict[str, Any]:
    assert entity == "document/policy"
    return POLICY


def test_hundred_replays_give_one_hash_without_calls(recording: Recording) -> None:
    hashes = {replayed(refund, recording, fields=policy).hash for _ in range(100)}
    assert hashes == {recording.hash}
    assert calls == []


def test_replay_reproduces_states_and_failed_attempts(recording: Recording) -> None:
    found = replayed(refund, recording, fields=policy)
    assert found.is_same
    assert found.parting is None
    assert found.unused == ()
    assert [step.state_after for step in found.now.steps] == [step.state_after for step in recording.steps]
    first = found.now.steps[1].attempts[0].failure
    assert first is not None
    assert first.exception.endswith("Flaky")  # an exception of the class itself was raised again
    assert found.now.output == {"amount": 40.0}


SOURCE = textwrap.dedent(inspect.getsource(refund))

CHANGES: list[tuple[str, str, int | None]] = [
    ('order=run.input["order"]', 'order="o-8"', 1),
    ('"role": "user"', '"role": "system"', 2),
    ("messages=messages)", 'messages=messages, model="n")', 2),
    ("attempts_max=3", "attempts_max=1", 2),
    ('"ask"', '"tell"', 2),
    ('run.state["amount"] = order["amount"]', 'run.state["amount"] = order["amount"] + 1', 3),
    ('["limit"]', '["limit"] + 1', 3),
    ('options=["refund", "deny"]', 'options=["refund"]', 3),
    ('run.decide(answer["content"]', 'run.decide("deny"', 3),
    ("run.now().isoformat()", '"today"', 3),
    ('"document/policy"', '"document/rules"', 3),
    ('"document/ticket-7"', '"document/ticket-8"', 4),
    ('{"paid": order["amount"]}', '{"paid": 41}', 4),
    ('to="ann"', 'to="bob"', 4),
    ("{run.uuid()}", "{run.uuid()}{run.uuid()}", 4),
    ("run.random() < 1", "True", 4),
    ('with run.step("pay")', 'with run.step("refund")', 4),
    ('"document/ticket-7", {"paid": order["amount"]}', '"document/ticket-7", {"paid": order["amount"]}, priority=2', 4),
    ('return {"amount": order["amount"]}', 'return {"amount": 40.5}', None),
    ("return {", 'raise ValueError("no")\n    return {', None),
    ("return {", 'run.step("more", lambda: None)\n    return {', 5),
    ("return {", "run.model(chat, messages=[])\n    return {", 5),
]


@pytest.mark.parametrize(("line", "other", "number"), CHANGES)
def test_changed_line_is_detected_at_its_step(recording: Recording, line: str, other: str, number: int | None) -> None:
    assert line in SOURCE
    names = {**globals()}
    exec(SOURCE.replace(line, other, 1), names)
    assert parted(names["refund"], recording) == number
    assert calls == []


def parted(agent: Callable[[Run], Any], recording: Recording) -> int | None:
    """Return the step in which a replay reports a difference; None: after the last step."""
    try:
        found = replayed(agent, recording, fields=policy)
    except Unrecorded as error:
        return error.site.step
    assert not found.is_same
    assert found.hash != recording.hash
    assert found.parting is not None
    assert found.parting.differences
    return found.parting.step


def test_equivalent_line_changes_nothing(recording: Recording) -> None:
    names = {**globals()}
    exec(SOURCE.replace('order["amount"]}', 'order.get("amount")}'), names)
    assert replayed(names["refund"], recording, fields=policy).is_same


def test_omitted_call_is_named_as_a_difference(recording: Recording) -> None:
    names = {**globals()}
    exec(SOURCE.replace('run.state["mail"] = send_mail', 'run.state["mail"] = "sent-1" or send_mail'), names)
    found = replayed(names["refund"], recording, fields=policy)
    assert not found.is_same
    assert [at.call.asked.name for at in found.unused if at.call.asked.kind == "tool"] == ["send_mail"]


def test_unrecorded_call_fails_the_replay_even_if_the_code_catches_it(recording: Recording) -> None:
    def careless(run: Run) -> None:
        try:
            find_order(order="o-8")
        except Exception:
            run.state["gave_up"] = True

    with pytest.raises(Unrecorded, match=r'kwargs.order: "o-8" asked, "o-7" recorded'):
        replayed(careless, recording)


def test_network_is_closed_even_to_code_that_catches_the_error(recording: Recording) -> None:
    def reaching(run: Run) -> None:
        find_order(order="o-7")
        try:
            socket.create_connection(("127.0.0.1", 9))
        except Exception:
            run.state["offline"] = True

    with pytest.raises(NetworkDenied, match=r"look up the name 127.0.0.1, at .*test_run.py:\d+ in reaching"):
        replayed(reaching, recording)


def test_async_agent_replays() -> None:
    async def answer(prompt: str) -> str:
        await asyncio.sleep(0)
        return prompt.upper()

    async def agent(run: Run) -> str:
        async with run.step("ask"):
            first = await run.model(answer, prompt="a")
        return f"{first}{await run.step('again', again, run)}"

    async def again(run: Run) -> str:
        return str(await run.model(answer, prompt="b"))

    recording = recorded(agent)
    assert recording.output == "AB"
    assert replayed(agent, recording).is_same

    async def inside() -> bool:
        return (await replayed_async(agent, recording)).is_same

    assert asyncio.run(inside())


def test_failure_of_a_run_is_replayed() -> None:
    def failing(run: Run) -> None:
        with run.step("look"):
            raise KeyError(run.input)

    recording = recorded(failing, input="x")
    assert recording.outcome == "failed"
    assert replayed(failing, recording).is_same

    def other(run: Run) -> None:
        with run.step("look"):
            raise KeyError("y")

    found = replayed(other, recording)
    assert found.parting is not None
    assert found.parting.step == 1


def test_failure_of_an_unavailable_class_is_raised_under_its_name() -> None:
    met: list[BaseException] = []

    def agent(run: Run) -> None:
        try:
            run.model(gone)
        except Exception as error:
            met.append(error)

    def gone() -> None:
        raise type("RateLimited", (Exception,), {"__module__": "provider.errors"})("slow down")

    recording = recorded(agent)
    assert replayed(agent, recording).is_same
    assert type(met[1]).__name__ == "RateLimited"
    assert str(met[1]) == "slow down"
    assert met[1].failure.exception == "provider.errors.RateLimited"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error", [KeyError("x"), UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"), Flaky("a", 2), OSError(2, "no")]
)
def test_failure_is_restored_with_its_class_and_text(error: Exception) -> None:
    met: list[BaseException] = []

    def agent(run: Run) -> None:
        try:
            run.model(fail)
        except Exception as raised:
            met.append(raised)
        run.model(fail)

    def fail() -> None:
        raise error

    assert replayed(agent, recorded(agent)).is_same
    assert isinstance(met[1], type(error))
    assert str(met[1]) == str(error)


def test_unfinished_run_is_replayed_as_far_as_it_goes(recording: Recording) -> None:
    steps = recording.steps[:2]
    pending = msgspec.structs.replace(recording.steps[2], attempts=(Attempt(),), outcome="", hash="")
    cut = msgspec.structs.replace(recording, steps=(*steps, pending), outcome="", output=None, hash="")
    found = replayed(refund, cut)
    assert found.is_same
    assert found.hash == steps[-1].hash
    names = {**globals()}
    exec(SOURCE.replace('"ask"', '"tell"'), names)
    other = replayed(names["refund"], cut)
    assert other.parting is not None
    assert other.parting.step == 2


def test_run_without_code_is_stepped_through(recording: Recording) -> None:
    with pytest.raises(InputError, match="refold run steps"):
        replayed(refund, msgspec.structs.replace(recording, has_code=False))
    went = list(stepped(recording))
    assert [each.step for each in went] == list(recording.steps)
    assert all(each.is_whole for each in went)
    assert went[2].before == {}
    assert went[2].after["amount"] == 40.0
    assert went[3].before == went[2].after
    forged = list(recording.steps)
    forged[1] = msgspec.structs.replace(forged[1], result="deny")
    assert [each.is_whole for each in stepped(msgspec.structs.replace(recording, steps=tuple(forged)))] == [
        True, False, False, False,
    ]  # fmt: skip


def test_agent_that_needs_its_reads_without_a_log_fails_with_a_reason(recording: Recording) -> None:
    found = replayed(refund, recording)
    assert found.now.failure is not None
    assert "document/policy" in found.now.failure.message


def test_each_replay_edge_has_its_determinism(recording: Recording) -> None:
    assert counted(edges(recording)) == {"deterministic": 5, "recorded": 9, "unknown": 0}
    by_kind = {(each.kind, each.attempt): each.determinism for each in edges(recording)}
    assert by_kind["decide", 1] == "deterministic"
    assert by_kind["model", 2] == "recorded"
    assert by_kind["step", 1] == "deterministic"
    imported = msgspec.structs.replace(run_of(step("turn", tool("find"), tool("find", 1))), has_code=False)
    assert [each.determinism for each in edges(imported)] == ["unknown", "recorded", "recorded"]
    crashed = run_of(step("look", tool("find", 1), before=(Attempt(),)), step("next", outcome=""))
    assert [(each.step, each.attempt, each.determinism) for each in edges(crashed) if each.kind == "step"] == [
        (1, 1, "unknown"), (1, 2, "deterministic"), (2, 1, "unknown"),
    ]  # fmt: skip


def test_departures_share_a_base_class() -> None:
    found: list[Callable[..., Any]] = [Unrecorded, NetworkDenied]
    assert all(issubclass(each, Departure) for each in found)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, asyncio.CancelledError, SystemExit], ids=lambda kind: kind.__name__
)
def test_interrupted_run_replays_to_the_same_end(tmp_path: Path, kind: type[BaseException]) -> None:
    def agent(run: Run) -> None:
        with run.step("work"):
            raise kind("enough")

    def other(run: Run) -> None:
        with run.step("work"):
            raise kind("at once")

    with refold.open(f"file:{tmp_path}/log") as log:
        run = log.run("a")
        with pytest.raises(kind):
            run.drive(agent)
        assert log.recording(run.id).outcome == "cancelled"
        assert log.replay(run.id, agent).is_same
        if kind is not SystemExit:
            with pytest.raises(kind, match="at once"):  # the interrupt may be the user's
                log.replay(run.id, other)
