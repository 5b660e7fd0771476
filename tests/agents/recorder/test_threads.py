"""No call escapes: any call that a run's code starts belongs to the run; a call that it did not start is refused."""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.pool
import os
import random
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.context import SCOPE, StrayCall
from refold.agents.recorder.failures import Unfinished
from refold.agents.recorder.log_backend import LogBackend
from refold.agents.recorder.run import Run
from refold.agents.recorder.writer import RecordingFailed
from refold.agents.replay.forked import NotAllowed
from refold.agents.replay.unrecorded import OutsideOfRun
from refold.avro.errors import InputError
from refold_tests.older_thread import older_thread

done: list[str] = []


@refold.tool
def look(order: str) -> int:
    done.append(f"look {order}")
    return 50


@refold.tool(effect="write")
def pay(order: str, amount: int, *, idempotency_key: str = "") -> str:
    done.append(f"pay {order}")
    return f"paid {amount}"


def work(order: str = "o-7") -> str:
    return pay(order, look(order))


# Ways to start work in a step, and to wait for it.


def run_into(found: Future[Any] | asyncio.Future[Any], work: Callable[[], Any]) -> None:
    try:
        found.set_result(work())
    except BaseException as error:
        found.set_exception(error)


def by_thread(work: Callable[[], Any]) -> Any:
    found: Future[Any] = Future()
    thread = threading.Thread(target=run_into, args=(found, work))
    thread.start()
    thread.join()
    return found.result()


class Worker(threading.Thread):
    """A thread with its own `run` method."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work
        self.found: Future[Any] = Future()

    def run(self) -> None:
        run_into(self.found, self.work)


def by_own_thread(work: Callable[[], Any]) -> Any:
    thread = Worker(work)
    thread.start()
    thread.join()
    return thread.found.result()


def by_timer(work: Callable[[], Any]) -> Any:
    found: Future[Any] = Future()
    threading.Timer(0, run_into, (found, work)).start()
    return found.result()


def by_thread_of_thread(work: Callable[[], Any]) -> Any:
    return by_thread(lambda: by_thread(work))


def by_executor(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def by_map(work: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(2) as pool:
        return next(iter(pool.map(lambda _: work(), [1])))


OLDER = ThreadPoolExecutor(2)
OLDER.submit(int).result()


def by_older_executor(work: Callable[[], Any]) -> Any:
    return OLDER.submit(work).result()


def by_callback(work: Callable[[], Any]) -> Any:
    found: Future[Any] = Future()
    go = threading.Event()
    OLDER.submit(go.wait).add_done_callback(lambda _: run_into(found, work))
    go.set()
    return found.result()


def by_thread_pool(work: Callable[[], Any]) -> Any:
    with multiprocessing.pool.ThreadPool(1) as pool:
        return pool.apply(work)


def by_thread_pool_map(work: Callable[[], Any]) -> Any:
    with multiprocessing.pool.ThreadPool(1) as pool:
        return pool.map(lambda _: work(), [1])[0]


def by_thread_pool_imap(work: Callable[[], Any]) -> Any:
    with multiprocessing.pool.ThreadPool(1) as pool:
        return next(pool.imap(lambda _: work(), [1]))


def by_thread_pool_callback(work: Callable[[], Any]) -> Any:
    found: Future[Any] = Future()
    with multiprocessing.pool.ThreadPool(1) as pool:
        pool.apply_async(int, (), {}, lambda _: run_into(found, work))
        return found.result()


def by_run_in_executor(work: Callable[[], Any]) -> Any:
    async def start() -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work)

    return asyncio.run(start())


def by_to_thread(work: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.to_thread(work))


async def soon(work: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return work()


def by_gather(work: Callable[[], Any]) -> Any:
    async def start() -> Any:
        return (await asyncio.gather(soon(work)))[0]

    return asyncio.run(start())


def by_task_group(work: Callable[[], Any]) -> Any:
    async def start() -> Any:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(soon(work))
        return task.result()

    return asyncio.run(start())


def by_call_soon(work: Callable[[], Any]) -> Any:
    async def start() -> Any:
        loop = asyncio.get_running_loop()
        found = loop.create_future()
        loop.call_soon(run_into, found, work)
        return await found

    return asyncio.run(start())


WAYS = [
    by_thread, by_own_thread, by_timer, by_thread_of_thread, by_executor, by_map, by_older_executor, by_callback,
    by_thread_pool, by_thread_pool_map, by_thread_pool_imap, by_thread_pool_callback, by_run_in_executor, by_to_thread,
    by_gather, by_task_group, by_call_soon,
]  # fmt: skip


@pytest.fixture(params=WAYS, ids=lambda way: way.__name__)
def agent(request: pytest.FixtureRequest) -> Callable[[Run], Any]:
    way = request.param

    def agent(run: Run) -> Any:
        done.clear()
        with run.step("block"):
            first = way(work)
        return [first, run.step("function", lambda: way(lambda: work("o-8")))]

    return agent


def test_calls_of_threads_and_tasks_belong_to_their_step(log: AgentLog, agent: Callable[[Run], Any]) -> None:
    run = log.run("a")
    assert run.drive(agent) == ["paid 50", "paid 50"]
    assert done == ["look o-7", "pay o-7", "look o-8", "pay o-8"]
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    assert [[call.asked.name for call in step.calls] for step in recording.steps] == [["look", "pay"]] * 2

    done.clear()
    replayed = log.replay(run.id, agent)
    assert (replayed.is_same, done) == (True, [])

    with pytest.raises(NotAllowed, match="pay"):
        log.fork(run.id, at=0, results={"1/look": 51}).drive(agent)
    assert [each for each in done if each.startswith("pay")] == []

    done.clear()
    forked = log.fork(run.id, at=0, policy="recorded")
    assert (forked.drive(agent), done) == (["paid 50", "paid 50"], [])

    golden = golden_of_run(recording, log._fields, entry="agents:agent")
    assert judged_run(golden, agent, "agent", Path()).passed
    assert done == []
    assert SCOPE.get().run is None


# Strays


def test_stray_call_is_refused_while_a_run_is_open(log: AgentLog) -> None:
    done.clear()
    with older_thread() as through, log.run("a") as run:
        with run.step("s"), pytest.raises(StrayCall, match=f"outside any run, while run {run.id} is open"):
            through(work)
        assert done == []
    with older_thread() as through:
        assert through(work) == "paid 50"  # no run is open


def test_adopting_run_records_a_stray_call(log: AgentLog) -> None:
    done.clear()
    with older_thread() as through, log.run("a", strays="adopt") as run, run.step("s"):
        assert through(work) == "paid 50"
    (step,) = log.recording(run.id).steps
    assert [call.asked.name for call in step.calls] == ["look", "pay"]
    one, other = log.run("a", strays="adopt"), log.run("a", strays="adopt")
    with older_thread() as through, other, one, one.step("s"), pytest.raises(StrayCall):
        through(work)


def test_code_may_opt_out_of_the_run(log: AgentLog) -> None:
    def plain() -> Any:
        with refold.unrecorded():
            return work()

    done.clear()
    with older_thread() as through, log.run("a") as run, run.step("s"):
        assert through(plain) == "paid 50"
        with pytest.raises(InputError, match="this code belongs to run"):
            plain()
    assert log.recording(run.id).steps[0].calls == ()


@pytest.mark.parametrize("is_plain", [False, True])
def test_replay_ends_at_a_stray_call(log: AgentLog, is_plain: bool) -> None:
    def plain() -> Any:
        with refold.unrecorded():
            return work()

    def asked(run: Run) -> Any:
        with run.step("s"):
            try:
                return through(plain if is_plain else work)
            except Exception:
                return "caught"

    done.clear()
    with older_thread() as through:
        run = log.run("a", strays="adopt")
        assert run.drive(asked) == "paid 50"
        done.clear()
        with pytest.raises(OutsideOfRun, match=r"call the tool look outside of the run, at .*test_threads\.py"):
            log.replay(run.id, asked)
    assert done == []


def test_thread_that_outlives_its_step_or_run_is_refused(log: AgentLog) -> None:
    done.clear()
    for waits_for_run in (False, True):
        go = threading.Event()
        found: Future[Any] = Future()

        def late(go: threading.Event = go, found: Future[Any] = found) -> None:
            go.wait()
            try:
                found.set_result(work())
            except BaseException as error:
                found.set_exception(error)

        with log.run("a") as run:
            with run.step("s"):
                thread = threading.Thread(target=late)
                thread.start()
            if not waits_for_run:
                with run.step("t"):
                    go.set()
                    with pytest.raises(Unfinished, match="look was called in a step that has ended"):
                        found.result()
        go.set()
        if waits_for_run:
            with pytest.raises(RecordingFailed, match="has ended"):
                found.result()
        thread.join()
    assert done == []


def test_process_forked_from_a_run_records_and_does_nothing(log: AgentLog) -> None:
    with log.run("a") as run, run.step("s"):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # the child ends without running anything of its parent
            try:
                work()
                said = "did it"
            except RecordingFailed as error:
                said = str(error)
            os.write(writing, said.encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            assert "forked from the one that records" in pipe.read()
    assert log.recording(run.id).steps[0].calls == ()


def test_observation_is_recorded_while_another_thread_reads(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    read = LogBackend.read

    def slowly(self: LogBackend, entity: str, at: Any) -> Any:
        begun.set()
        assert go.wait(300)
        return read(self, entity, at)

    monkeypatch.setattr(LogBackend, "read", slowly)
    log.observe("document/a", {"fields": {"text": "one"}}, source="tests")
    with log.run("a") as run, run.step("s"), ThreadPoolExecutor(1) as pool:
        reading = pool.submit(run.read, "document/a")
        try:
            assert begun.wait(300)
            run.observe("document/b", {"fields": {"text": "two"}})
        finally:
            go.set()
        assert reading.result().version == 1
    (step,) = log.recording(run.id).steps
    assert sorted(call.asked.kind for call in step.calls) == ["observe", "read"]


# Order


@pytest.mark.parametrize("seed", range(8))
def test_order_of_concurrent_calls_does_not_depend_on_timing(log: AgentLog, seed: int) -> None:
    chance = random.Random(seed)

    def slowly(order: str) -> str:
        time.sleep(chance.random() / 200)
        return work(order)

    async def slowly_async(order: str) -> str:
        await asyncio.sleep(chance.random() / 200)
        inner = await asyncio.gather(*(asyncio.to_thread(slowly, f"{order}.{each}") for each in range(2)))
        return work(order) + inner[0]

    async def tasks() -> None:
        async with asyncio.TaskGroup() as group:
            for each in range(3):
                group.create_task(slowly_async(f"task {each}"))

    def agent(run: Run) -> None:
        with run.step("s"):
            with ThreadPoolExecutor(4) as pool:
                wait([pool.submit(slowly, f"pool {each}") for each in range(4)])
                work("between")
            threads = [threading.Thread(target=slowly, args=(f"thread {each}",)) for each in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            asyncio.run(tasks())

    run = log.run("a")
    run.drive(agent)
    recording = log.recording(run.id)
    asked = [(call.asked.name, call.asked.request["kwargs"]["order"]) for call in recording.steps[0].calls]
    orders = [f"pool {each}" for each in range(4)] + ["between"] + [f"thread {each}" for each in range(3)]
    for each in range(3):
        orders += [f"task {each}.0", f"task {each}.1", f"task {each}"]
    assert asked == [(name, order) for order in orders for name in ("look", "pay")]
    replayed = log.replay(run.id, agent)
    assert replayed.is_same


def test_what_loads_at_its_first_use_is_left_alone(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that modules keep are replaced when a run begins. Whoever asks OpenAI's SDK for a class loads it."""

    class Lazy:
        @property
        def __class__(self) -> Any:
            raise AssertionError("it was loaded")

        @__class__.setter
        def __class__(self, kind: Any) -> None:
            raise AssertionError("it was changed")

    module = types.ModuleType("loads_at_its_first_use")
    module.thing = Lazy()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with log.run("a"):
        pass
