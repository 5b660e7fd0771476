"""Steps that threads and tasks open concurrently: parts of one step, in the order in which they were started."""

from __future__ import annotations

import asyncio
import operator
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder import context
from refold.agents.recorder.run import Run
from refold.avro.errors import InputError

TOPICS = ["policy", "stock", "weather"]
sent: list[str] = []


@refold.tool
def look_up(topic: str) -> float:
    dawdle()
    return random.random()


@refold.tool(effect="write")
def send(topic: str, *, idempotency_key: str = "") -> str:
    sent.append(topic)
    return f"sent {topic}"


def dawdle() -> None:
    time.sleep(random.random() / 500)


class State(TypedDict):
    facts: Annotated[list[Any], operator.add]


def graph_of(run: Run, *, is_async: bool) -> Any:
    """Run three nodes concurrently, then one; each of them opens a step."""

    def work(topic: str) -> list[Any]:
        dawdle()
        return [look_up(topic), look_up(topic), run.random()]

    def node(name: str) -> Any:
        def of_block(state: State) -> Any:
            with run.step(f"look at {name}"):
                found = work(name)
            return {"facts": [found, run.step(f"send {name}", send, name)]}

        async def of_block_async(state: State) -> Any:
            async with run.step(f"look at {name}"):
                await asyncio.sleep(random.random() / 500)
                found = await asyncio.to_thread(work, name)
            return {"facts": [found, run.step(f"send {name}", send, name)]}

        return of_block_async if is_async else of_block

    graph = StateGraph(State)
    for name in [*TOPICS, "end"]:
        graph.add_node(name, node(name))
    for name in TOPICS:
        graph.add_edge(START, name)
        graph.add_edge(name, "end")
    graph.add_edge("end", END)
    return graph.compile()


def by_invoke(run: Run) -> Any:
    return graph_of(run, is_async=False).invoke({"facts": []})["facts"]


async def by_ainvoke(run: Run) -> Any:
    return (await graph_of(run, is_async=True).ainvoke({"facts": []}))["facts"]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('parts') / 'log'}") as log:
        yield log


def driven(run: Run, agent: Callable[[Run], Any]) -> Any:
    return asyncio.run(run.drive_async(agent))


@pytest.mark.parametrize("agent", [by_invoke, by_ainvoke], ids=lambda agent: agent.__name__)
def test_concurrent_graph_nodes_open_steps(log: AgentLog, agent: Callable[[Run], Any]) -> None:
    sent.clear()
    run = log.run("graph")
    output = driven(run, agent)
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    assert [step.name for step in recording.steps] == ["parallel", "look at end", "send end"]
    of_topic = ["look_up", "look_up", "", "send"]
    assert [call.asked.name for call in recording.steps[0].calls] == of_topic * 3
    parts = [call.part for call in recording.steps[0].calls]
    assert parts == [f"{what} {topic}" for topic in TOPICS for what in ["look at"] * 3 + ["send"]]
    assert sorted(sent) == sorted([*TOPICS, "end"])

    hashes = set()
    for _ in range(8):
        found = asyncio.run(log.replay_async(run.id, agent))
        assert found.is_same, found.parting
        assert found.now.output == output
        hashes.add(found.hash)
    assert len(hashes) == 1
    golden = golden_of_run(recording, log._fields, entry="agents:agent")
    assert judged_run(golden, agent, "agent", Path()).passed
    assert driven(log.fork(run.id, at=1), agent)[:6] == output[:6]  # the last node makes its call, and sends nothing
    assert driven(log.fork(run.id, at=0, policy="recorded"), agent) == output
    assert len(sent) == 4


def test_sequential_tasks_open_steps_of_the_run(log: AgentLog) -> None:
    async def node(run: Run, name: str) -> None:
        async with run.step(name):
            await asyncio.to_thread(look_up, name)

    async def agent(run: Run) -> None:
        for name in TOPICS:
            await asyncio.create_task(node(run, name))
        await asyncio.gather(*(node(run, name) for name in TOPICS))

    run = log.run("a")
    driven(run, agent)
    assert [step.name for step in log.recording(run.id).steps] == [*TOPICS, "parallel"]
    assert asyncio.run(log.replay_async(run.id, agent)).is_same


def test_failed_branch_is_retried(log: AgentLog) -> None:
    tries: list[str] = []

    @refold.tool
    def shaky(name: str) -> str:
        tries.append(name)
        if tries.count(name) < 3:
            raise ConnectionError("down")
        return name

    def agent(run: Run) -> Any:
        def work(name: str) -> Any:
            return run.step(name, shaky, name, attempts_max=3, backoff_ms=1)

        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(work, TOPICS))

    run = log.run("a")
    assert run.drive(agent) == TOPICS
    (step,) = log.recording(run.id).steps
    assert [(call.part, call.failure is None) for call in step.calls] == [
        (topic, is_last) for topic in TOPICS for is_last in (False, False, True)
    ]
    replayed = log.replay(run.id, agent)
    assert (replayed.is_same, replayed.now.output, len(tries)) == (True, TOPICS, 9)


def test_indistinguishable_branches_are_refused(log: AgentLog) -> None:
    def nested(run: Run) -> None:
        def work() -> None:
            with run.step("outer"), run.step("inner"):
                pass

        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()

    with pytest.raises(InputError, match=r"step outer is still open in this thread or task; end it before inner"):
        log.run("a").drive(nested)

    def beside(run: Run) -> None:
        go = threading.Event()

        def work() -> None:
            assert go.wait(300)
            run.step("beside", look_up, "x")

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(work)
            with run.step("own"):
                go.set()
                late.result()

    with pytest.raises(InputError, match=r"beside begins while step 1 \(own\), which other code opened.*concurrent"):
        log.run("a").drive(beside)


def test_code_that_continues_while_a_branch_is_open_is_refused(log: AgentLog) -> None:
    begun, go = threading.Event(), threading.Event()

    def agent(run: Run) -> None:
        def work() -> None:
            with run.step("part"):
                begun.set()
                assert go.wait(300)

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(work)
            assert begun.wait(300)
            try:
                with pytest.raises(InputError, match="under way: wait for them"):
                    look_up("x")
            finally:
                go.set()
            late.result()
        look_up("then")

    run = log.run("a")
    run.drive(agent)
    assert [step.name for step in log.recording(run.id).steps] == ["parallel", "tool: look_up"]


def test_task_may_start_while_its_thread_records_another() -> None:
    """A garbage collection may start one at that moment: an SDK's client that nobody closed closes itself in a task."""
    with context._lock:
        assert context._lock.acquire(blocking=False)
        context._lock.release()


def test_step_belongs_to_the_run_when_a_library_restores_a_tasks_context(log: AgentLog) -> None:
    """PydanticAI does this: what its hooks set in a task is also set in the code that iterates over its graph."""

    async def context() -> Context:
        await asyncio.sleep(0)
        return copy_context()

    async def agent(run: Run) -> None:
        found, _ = await asyncio.gather(context(), context())
        for variable, value in found.items():
            variable.set(value)
        async with run.step("look"):
            run.decide("left")
        async with run.step("go"):
            run.decide("on")

    run = log.run("carried")
    driven(run, agent)
    assert [step.name for step in log.recording(run.id).steps] == ["look", "go"]
    assert log.replay(run.id, agent).is_same
