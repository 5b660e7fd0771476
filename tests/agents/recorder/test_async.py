"""Concurrent calls: tasks and threads within a step, cancelled ones, and those that nobody awaited."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.failures import Unfinished
from refold.agents.recorder.run import Run
from refold.avro.errors import InputError


def loaded(log: AgentLog, run: Run) -> Recording:
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    return recording


@refold.tool
async def echo(text: str, wait_s: float = 0) -> str:
    await asyncio.sleep(wait_s)
    return text


@refold.tool
def shout(text: str) -> str:
    return text.upper()


class Client:
    """A model's client that is a callable object."""

    async def __call__(self, *, prompt: str) -> str:
        await asyncio.sleep(0)
        return prompt[::-1]


def test_concurrent_tool_calls_are_recorded_in_their_start_order(log: AgentLog) -> None:
    async def agent(run: Run) -> list[Any]:
        async with run.step("s"):
            found = await asyncio.gather(echo("a", 0.02), echo("b", 0.01), run.model(Client(), prompt="xy"))
        return [*found, await run.step("t", echo, "c")]

    run = log.run("a")
    assert asyncio.run(run.drive_async(agent)) == ["a", "b", "yx", "c"]
    first, second = loaded(log, run).steps
    assert [call.answer for call in first.calls] == ["a", "b", "yx"]
    assert (second.result, [call.asked.name for call in second.calls]) == ("c", ["echo"])
    assert inspect.iscoroutinefunction(echo)


def test_async_function_is_a_retried_step(log: AgentLog) -> None:
    left = [TimeoutError("1"), TimeoutError("2")]

    async def fails() -> int:
        await asyncio.sleep(0)
        if left:
            raise left.pop()
        return 5

    async def agent(run: Run) -> int:
        return int(await run.step("s", fails, attempts_max=3, backoff_ms=1))

    run = log.run("a")
    assert asyncio.run(run.drive_async(agent)) == 5
    (step,) = loaded(log, run).steps
    assert [each.failure is None for each in step.attempts] == [False, False, True]


def test_abandoned_call_is_recorded_as_cancelled(log: AgentLog) -> None:
    async def agent(run: Run) -> None:
        async with run.step("s"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(echo("slow", 60), 0.01)
            run.decide("without it")

    run = log.run("a")
    asyncio.run(run.drive_async(agent))
    (step,) = loaded(log, run).steps
    assert step.outcome == "succeeded"
    assert step.calls[0].failure is not None
    assert step.calls[0].failure.exception == "asyncio.exceptions.CancelledError"
    assert step.calls[1].asked.request["choice"] == "without it"


def test_cancelled_run_is_recorded_as_cancelled(log: AgentLog) -> None:
    async def main(run: Run) -> None:
        async with run:
            await echo("slow", 60)

    async def cancelled(run: Run) -> None:
        task = asyncio.create_task(main(run))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run = log.run("a")
    asyncio.run(cancelled(run))
    recording = loaded(log, run)
    assert (recording.outcome, recording.steps[0].outcome) == ("cancelled", "cancelled")


def test_step_that_does_not_await_its_calls_fails(log: AgentLog) -> None:
    async def agent(run: Run) -> None:
        with pytest.raises(Unfinished, match=r"\(echo\)"):  # noqa: PT012
            async with run.step("s"):
                task = asyncio.create_task(echo("late", 0.02))
                await asyncio.sleep(0)
        with pytest.raises(Unfinished):  # the code does not get what is not recorded
            await task
        async with run.step("t"):
            await echo("in time")

    run = log.run("a")
    asyncio.run(run.drive_async(agent))
    first, second = loaded(log, run).steps
    assert (first.outcome, second.outcome) == ("failed", "succeeded")
    assert first.calls[0].failure is not None
    assert first.calls[0].failure.exception.endswith(".Unfinished")
    assert first.calls[0].answer is None


def test_sibling_of_a_failed_call_does_not_answer_the_next_attempt(log: AgentLog) -> None:
    begun = 0

    @refold.tool
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ConnectionError("down")

    async def gathers() -> Any:
        nonlocal begun
        begun += 1
        return await asyncio.gather(echo("late", 0.05), fails() if begun == 1 else echo("second"))

    async def agent(run: Run) -> Any:
        found = await run.step("s", gathers, attempts_max=2, backoff_ms=1)
        await asyncio.sleep(0.1)
        return found

    run = log.run("a")
    assert asyncio.run(run.drive_async(agent)) == ["late", "second"]
    (step,) = loaded(log, run).steps
    first, second = step.attempts
    assert [call.failure.exception.rpartition(".")[2] for call in first.calls if call.failure] == [
        "Unfinished", "ConnectionError",
    ]  # fmt: skip
    assert [call.answer for call in second.calls] == ["late", "second"]


def test_code_must_await_its_tasks_before_its_next_call(log: AgentLog) -> None:
    async def agent(run: Run) -> None:
        assert list(await asyncio.gather(echo("a", 0.01), echo("b"))) == ["a", "b"]
        run.now()
        task = asyncio.create_task(echo("c", 0.01))
        await asyncio.sleep(0)
        with pytest.raises(InputError, match="are under way: wait for them first, or open a step around"):
            run.now()
        assert await task == "c"

    run = log.run("a")
    asyncio.run(run.drive_async(agent))
    answers = [[call.answer for call in step.calls] for step in loaded(log, run).steps]
    assert [answers[0], answers[2]] == [["a", "b"], ["c"]]


def test_threads_given_the_context_call_tools_of_the_run(log: AgentLog) -> None:
    async def agent(run: Run) -> list[Any]:
        async with run.step("tasks"):
            return await asyncio.gather(*(asyncio.to_thread(shout, str(each)) for each in "abc"))

    with log.run("a") as run, run.step("pool"), ThreadPoolExecutor(8) as pool:
        texts = [f"t{each}" for each in range(200)]
        found = [pool.submit(contextvars.copy_context().run, shout, text) for text in texts]
        assert [each.result() for each in found] == [text.upper() for text in texts]
    (step,) = loaded(log, run).steps
    assert {call.asked.request["kwargs"]["text"]: call.answer for call in step.calls} == {
        text: text.upper() for text in texts
    }
    other = log.run("a")
    assert asyncio.run(other.drive_async(agent)) == ["A", "B", "C"]
    assert sorted(call.answer for call in loaded(log, other).steps[0].calls) == ["A", "B", "C"]


def test_late_thread_is_refused(log: AgentLog) -> None:
    may_answer, is_in = threading.Event(), threading.Event()

    @refold.tool
    def slow() -> str:
        is_in.set()
        may_answer.wait()
        return "late"

    with log.run("a") as run, ThreadPoolExecutor(1) as pool:
        with pytest.raises(Unfinished, match="slow"), run.step("s"):  # noqa: PT012
            late = pool.submit(contextvars.copy_context().run, slow)
            is_in.wait()
        may_answer.set()
        with pytest.raises(Unfinished):
            late.result()
    (step,) = loaded(log, run).steps
    assert step.outcome == "failed"


def test_concurrent_thread_calls_share_one_step(log: AgentLog) -> None:
    with log.run("a") as run, ThreadPoolExecutor(8) as pool:
        found = [pool.submit(contextvars.copy_context().run, run.now) for _ in range(400)]
        failed = [each.exception() for each in found if each.exception() is not None]
    assert failed == []
    (step,) = loaded(log, run).steps
    assert len(step.calls) == 400
    assert all(call.answer for call in step.calls)


def test_unanswered_calls_stay_unanswered_in_a_replay(log: AgentLog) -> None:
    @refold.tool
    async def fails() -> None:
        await asyncio.sleep(0)
        raise ConnectionError("down")

    async def agent(run: Run) -> str:
        async with run.step("given up"):
            try:
                await asyncio.wait_for(echo("slow", 60), 0.01)
            except TimeoutError:
                run.decide("without it")
        with contextlib.suppress(ConnectionError):
            async with run.step("left behind"):
                await asyncio.gather(echo("late", 60), fails())
        return "done"

    run = log.run("a")
    asyncio.run(run.drive_async(agent))
    replayed = log.replay(run.id, agent)
    assert (replayed.hash, replayed.now.output) == (replayed.recorded_hash, "done")
    assert replayed.hash == loaded(log, run).hash
