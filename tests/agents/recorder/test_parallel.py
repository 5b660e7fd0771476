"""Calls that threads and tasks make outside of any step form one step, in an order that does not depend on timing."""

from __future__ import annotations

import asyncio
import contextvars
import multiprocessing.pool
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.replay.unrecorded import Unrecorded
from refold.avro.errors import InputError

paid: list[str] = []


@refold.tool
def look(order: str) -> str:
    return f"{order} is here"


@refold.tool
async def look_async(order: str) -> str:
    await asyncio.sleep(random.random() / 500)
    return f"{order} is here"


@refold.tool(effect="write")
def pay(order: str) -> str:
    paid.append(order)
    return f"{order} is paid"


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('parallel') / 'log'}") as log:
        yield log


@pytest.fixture(autouse=True)
def nothing_paid() -> None:
    paid.clear()


def slowly(order: str) -> None:
    for part in ("a", "b"):
        time.sleep(random.random() / 500)
        look(f"{order}{part}")


def steps_of(log: AgentLog, run: Run) -> list[tuple[str, list[str]]]:
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    return [
        (step.name, [call.asked.request["kwargs"]["order"] for call in step.calls if call.asked.request])
        for step in recording.steps
    ]


def by_submit(work: Callable[[str], None], orders: list[str]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, order) for order in orders]:
            done.result()


def by_copied_contexts(work: Callable[[str], None], orders: list[str]) -> None:
    """As LangChain's pools do it."""
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(contextvars.copy_context().run, work, order) for order in orders]:
            done.result()


def by_map_of_copied_contexts(work: Callable[[str], None], orders: list[str]) -> None:
    contexts = {order: contextvars.copy_context() for order in orders}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda order: contexts[order].run(work, order), orders))


def by_threads(work: Callable[[str], None], orders: list[str]) -> None:
    threads = [threading.Thread(target=work, args=(order,)) for order in orders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def by_thread_pool(work: Callable[[str], None], orders: list[str]) -> None:
    with multiprocessing.pool.ThreadPool(4) as pool:
        for done in [pool.apply_async(work, (order,)) for order in orders]:
            done.get()


def by_to_thread(work: Callable[[str], None], orders: list[str]) -> None:
    async def start() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, order) for order in orders))

    asyncio.run(start())


def by_executor_of_copied_contexts(work: Callable[[str], None], orders: list[str]) -> None:
    async def start() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(
            *(loop.run_in_executor(None, contextvars.copy_context().run, work, order) for order in orders)
        )

    asyncio.run(start())


WAYS = [
    by_submit, by_copied_contexts, by_map_of_copied_contexts, by_threads, by_thread_pool, by_to_thread,
    by_executor_of_copied_contexts,
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_calls_of_threads_are_one_step_in_start_order(log: AgentLog, way: Callable[..., None]) -> None:
    orders = [f"o-{number}" for number in range(4)]

    def agent(run: Run) -> None:
        look("first")
        way(slowly, orders)
        look("between")
        way(slowly, orders)
        with run.step("own"):
            look("last")
        way(pay, orders)

    run = log.run("a")
    run.drive(agent)
    parts = [order + part for order in orders for part in ("a", "b")]
    assert steps_of(log, run) == [
        ("tool: look", ["first"]), ("parallel", parts), ("tool: look", ["between"]), ("parallel", parts),
        ("own", ["last"]), ("parallel", orders),
    ]  # fmt: skip
    assert sorted(paid) == orders
    found = [log.replay(run.id, agent) for _ in range(5)]
    assert [each.is_same for each in found] == [True] * 5
    assert len({each.hash for each in found}) == 1
    assert sorted(paid) == orders


def test_concurrent_tasks_are_one_step_without_the_callers_own_task(log: AgentLog) -> None:
    async def work() -> None:
        await look_async("first")
        await asyncio.gather(look_async("a"), look_async("b"))
        await look_async("between")
        async with asyncio.TaskGroup() as group:
            for order in ("c", "d"):
                group.create_task(look_async(order))

    def agent(run: Run) -> None:
        asyncio.run(work())
        loop = asyncio.new_event_loop()
        loop.run_until_complete(look_async("last"))
        loop.close()

    expected = [
        ("tool: look_async", ["first"]), ("parallel", ["a", "b"]), ("tool: look_async", ["between"]),
        ("parallel", ["c", "d"]), ("tool: look_async", ["last"]),
    ]  # fmt: skip
    run = log.run("a")
    run.drive(agent)
    assert steps_of(log, run) == expected
    assert log.replay(run.id, agent).is_same

    async def agent_async(run: Run) -> None:
        await work()
        await look_async("last")

    run = log.run("a")
    asyncio.run(run.drive_async(agent_async))
    assert steps_of(log, run) == expected
    assert asyncio.run(log.replay_async(run.id, agent_async)).is_same


def test_code_that_does_not_wait_for_its_tasks_is_refused(log: AgentLog) -> None:
    go, begun = threading.Event(), threading.Event()

    def model() -> str:
        begun.set()
        go.wait(60)
        return "late"

    with ThreadPoolExecutor(1) as pool:

        def agent(run: Run) -> None:
            late = pool.submit(run.model, model)
            begun.wait(60)
            with pytest.raises(InputError, match=r"tool: look begins while calls .* under way: wait for them"):
                look("first")
            with pytest.raises(InputError, match="step own begins while calls"), run.step("own"):
                pass
            go.set()
            wait([late])
            look("then")

        run = log.run("a")
        run.drive(agent)
        go.clear()
        begun.clear()
        assert [step.name for step in log.recording(run.id).steps] == ["parallel", "tool: look"]

        def ends(run: Run) -> None:
            pool.submit(run.model, model)
            begun.wait(60)

        run = log.run("a")
        try:
            with pytest.raises(InputError, match=r"a step ended before its calls \(.*model\)"):
                run.drive(ends)
        finally:
            go.set()
    assert log.recording(run.id).outcome == "failed"


def test_failed_run_resumes_in_a_parallel_step_and_pays_once(log: AgentLog) -> None:
    fails = [True]

    @refold.tool
    def shaky(order: str) -> str:
        if fails.pop() if fails else False:
            raise ConnectionError("down")
        return order

    def agent(run: Run) -> None:
        look("first")
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(pay, "o-7"), pool.submit(shaky, "x")]
        for each in done:
            each.result()
        run.output = "done"

    run = log.run("a")
    with pytest.raises(ConnectionError):
        run.drive(agent)
    assert [(step.name, step.outcome) for step in log.recording(run.id).steps] == [
        ("tool: look", "succeeded"), ("parallel", "failed"),
    ]  # fmt: skip
    again = log.run("a", resume=run.id)
    again.drive(agent)
    assert paid == ["o-7"]
    assert again.output == "done"
    assert log.replay(run.id, agent).is_same


def test_fork_starts_after_a_parallel_step(log: AgentLog, tmp_path: Path) -> None:
    def agent(run: Run) -> Any:
        by_submit(slowly, ["o-1", "o-2"])
        return look(run.state["order"])

    run = log.run("a", state={"order": "o-3"})
    run.drive(agent)
    fork = log.fork(run.id, at=1, state={"order": "o-4"})
    assert fork.drive(agent) == "o-4 is here"
    assert [step.name for step in log.recording(fork.id).steps] == ["parallel", "tool: look"]


def test_replay_that_diverges_in_a_parallel_step_fails_even_if_the_code_continues(log: AgentLog) -> None:
    orders = ["o-1", "o-2"]

    def agent(run: Run) -> None:
        with ThreadPoolExecutor(2) as pool:
            wait([pool.submit(look, order) for order in orders])

    run = log.run("a")
    run.drive(agent)
    assert log.replay(run.id, agent).is_same
    orders.append("o-3")
    with pytest.raises(Unrecorded, match="o-3"):
        log.replay(run.id, agent)
    fork = log.fork(run.id, at=0, policy="recorded")
    with pytest.raises(Unrecorded):
        fork.drive(agent)
    assert log.recording(fork.id).outcome == "failed"
