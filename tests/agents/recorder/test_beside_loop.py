"""What the recorder does in parallel with an agent's event loop: ends of runs, large answers, effects."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest

import refold
from refold.agents.capture.exchange import Response
from refold.agents.log import AgentLog
from refold.agents.recorder.plain import LARGE_BYTES

WAIT_S = 60


@refold.tool(effect="write")
async def send(text: str) -> str:
    return text


@contextmanager
def held(log: AgentLog) -> Iterator[Callable[[], None]]:
    """Hold back all writes to the log until the yielded function is called, which must happen within WAIT_S."""
    is_held, let_go, was_let_go = threading.Event(), threading.Event(), list[bool]()

    def hold() -> None:
        with log.lock:
            is_held.set()
            was_let_go.append(let_go.wait(WAIT_S))

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield let_go.set
    finally:
        let_go.set()
        thread.join()
    assert was_let_go == [True], "the loop had no turn while something was to be written"


def test_event_loop_is_not_blocked_while_the_end_of_a_run_is_written(log: AgentLog) -> None:
    async def main() -> str:
        with ExitStack() as stack:
            async with log.run("a") as run:
                run.output = await run.step("send", send, "x")
                let_go = stack.enter_context(held(log))
                asyncio.get_running_loop().call_soon(let_go)
        return run.id

    recording = log.recording(asyncio.run(main()))
    assert (recording.outcome, recording.output) == ("succeeded", "x")


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
def test_task_cancelled_during_the_end_of_its_run_has_ended_it(log: AgentLog, times: int) -> None:
    """So has the outer run, whose call is answered."""

    async def within(stack: ExitStack) -> str:
        async with log.run("inner") as run:
            let_go, task = stack.enter_context(held(log)), asyncio.current_task()
            assert task is not None
            others.append(asyncio.create_task(disturb(task, let_go)))  # it starts when this task waits
        return run.id

    async def disturb(task: asyncio.Task[object], let_go: Callable[[], None]) -> None:
        for _ in range(times):
            task.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
        let_go()

    others: list[asyncio.Task[None]] = []

    async def main() -> str:
        async with log.run("outer") as run:
            with ExitStack() as stack, pytest.raises(asyncio.CancelledError):
                await asyncio.create_task(within(stack))
        return run.id

    outer = log.recording(asyncio.run(main()))
    (call,) = [call for step in outer.steps for call in step.calls]
    assert (outer.outcome, call.asked.kind, call.answer["outcome"]) == ("succeeded", "run", "succeeded")
    assert log.recording(call.answer["run"]).outcome == "succeeded"


def test_closed_coroutine_ends_its_run_at_once(log: AgentLog) -> None:
    async def agent() -> None:
        async with log.run("a") as run:
            runs.append(run.id)
            await asyncio.Event().wait()

    async def main() -> None:
        left = agent()
        left.send(None)
        left.close()

    runs: list[str] = []
    asyncio.run(main())
    assert log.recording(runs[0]).outcome == "cancelled"


def test_writes_need_no_thread_of_the_loops_pool(log: AgentLog) -> None:
    """All of the pool's threads may be waiting for what the agent does next."""

    async def main() -> bool:
        loop, is_sent = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, is_sent.wait, WAIT_S)
        async with log.run("a"):
            await send("x")
        is_sent.set()
        return await waiting

    assert asyncio.run(main())


def large(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, json={"text": "x" * 2 * LARGE_BYTES, "url": str(request.url)})


def test_large_answers_of_clients_are_encoded_off_the_loop(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> str:
        async with httpx.AsyncClient(transport=httpx.MockTransport(large)) as bare, log.run("a") as run:
            run.output = (await run.client(bare).get("http://model/v1")).json()["url"]
        return run.id

    threads: list[int] = []
    answer = Response.answer

    def noting(self: Response, *args: object) -> object:
        threads.append(threading.get_ident())
        return answer(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Response, "answer", noting)
    found = asyncio.run(main())
    assert threads
    assert threading.get_ident() not in threads
    (call,) = log.recording(found).steps[0].calls
    assert (call.answer["end"], len(call.answer["chunks"][0][1]) > LARGE_BYTES) == ("whole", True)
