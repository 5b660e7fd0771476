"""Concurrent equal requests: in a replay each thread and task gets what it got in the recording."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.runner import judged_run
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold_tests.child import Child

TURNS = itertools.count()


@refold.tool
def draw(deck: str) -> int:
    """Return another card each time."""
    dawdle()
    return next(TURNS)


@refold.tool
async def draw_async(deck: str) -> int:
    await asyncio.sleep(random.random() / 500)
    return next(TURNS)


def dawdle() -> None:
    time.sleep(random.random() / 500)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path_factory.mktemp('equal') / 'log'}") as log:
        yield log


# What is started concurrently, as a tree: each player draws, and then starts others in one of these ways.

WAYS = ("thread", "pool", "tasks", "to_thread")


def players(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(WAYS), st.lists(leaf, min_size=2, max_size=3))


TREES = st.recursive(st.integers(1, 2), players, max_leaves=7)


def play(run: Run, tree: Any) -> Any:
    """Return what one player drew, and the players that it started."""
    if isinstance(tree, int):
        hand: list[Any] = []
        for _ in range(tree):
            dawdle()
            hand += [draw("a"), run.random(), run.model(next, TURNS_OF_A_MODEL, returns=int)]
        return hand
    way, inner = tree
    own = draw("a")
    if way == "thread":
        found: list[Any] = [None] * len(inner)

        def kept(place: int) -> None:
            found[place] = play(run, inner[place])

        threads = [threading.Thread(target=kept, args=(place,)) for place in range(len(inner))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    elif way == "pool":
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda each: play(run, each), inner))
    else:
        found = asyncio.run(play_async(run, way, inner))
    return [own, *found]


class TurnsOfAModel:
    """A request that stays the same, although its answers differ."""

    def __init__(self) -> None:
        self.turns = itertools.count(1000)

    def __next__(self) -> int:
        dawdle()
        return next(self.turns)

    def model_dump(self, **_: Any) -> str:
        return "the model's"


TURNS_OF_A_MODEL: Any = TurnsOfAModel()


async def play_async(run: Run, way: str, inner: list[Any]) -> list[Any]:
    async def player(each: Any) -> Any:
        drawn = await draw_async("a")
        return [drawn, await asyncio.to_thread(play, run, each)]

    if way == "to_thread":
        return list(await asyncio.gather(*(asyncio.to_thread(play, run, each) for each in inner)))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(player(each)) for each in inner]
    return [task.result() for task in tasks]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=players(TREES), is_in_step=st.booleans())
def test_each_equal_request_gets_its_own_answer_in_a_replay(log: AgentLog, tree: Any, is_in_step: bool) -> None:
    def agent(run: Run) -> Any:
        if not is_in_step:
            return ThreadPoolExecutor(1).submit(play, run, tree).result()
        with run.step("all at once"):
            return play(run, tree)

    run = log.run("cards")
    dealt = run.drive(agent)
    for _ in range(4):
        found = log.replay(run.id, agent)
        assert found.is_same, found.parting
    forked = log.fork(run.id, at=0, policy="recorded")
    assert forked.drive(agent) == dealt
    golden = golden_of_run(log.recording(run.id), log._fields, entry="agents:agent")
    assert judged_run(golden, agent, "agent", Path()).passed


def by_two(work: Callable[[str], Any]) -> list[Any]:
    """Run the work twice concurrently; the one that was started first continues last."""
    gate = threading.Event()

    def first() -> Any:
        assert gate.wait(300)
        return work("a")

    def second() -> Any:
        try:
            return work("a")
        finally:
            gate.set()

    with ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(first), pool.submit(second)]]


def test_fork_patches_the_result_of_the_call_started_at_that_place(log: AgentLog) -> None:
    def agent(run: Run) -> list[Any]:
        with run.step("two"):
            return by_two(draw)

    run = log.run("cards")
    first, _ = run.drive(agent)
    fork = log.fork(run.id, at=0, results={"1/draw#2": "joker"}, policy="recorded")
    assert fork.drive(agent) == [first, "joker"]
    fork = log.fork(run.id, at=0, results={"1/draw": "joker"}, policy="recorded")
    assert fork.drive(agent)[0] == "joker"


def test_answers_follow_the_place_of_thread_start_after_a_rename(log: AgentLog) -> None:
    def draws(order: int) -> Any:
        dawdle()
        return draw("a")

    def draws_again(order: int) -> Any:
        return draws(order)

    work: list[Callable[[int], Any]] = [draws]

    def agent(run: Run) -> list[Any]:
        with run.step("many"), ThreadPoolExecutor(4) as pool:
            return [each.result() for each in [pool.submit(work[0], number) for number in range(6)]]

    run = log.run("cards")
    dealt = run.drive(agent)
    work[0] = draws_again
    for _ in range(3):
        replayed = log.replay(run.id, agent)
        assert (replayed.is_same, replayed.now.output) == (True, dealt)


READ = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import refold

dies = len(sys.argv) == 2
begun, go = threading.Event(), threading.Event()

@refold.tool
def weather(town):
    if dies and threading.current_thread().name.startswith("slow"):
        begun.set()
        go.wait(60)
    return "old" if dies else "new"

def agent(run):
    with run.step("two"), ThreadPoolExecutor(1, "slow") as slow, ThreadPoolExecutor(1, "fast") as fast:
        first = slow.submit(lambda: weather("Bonn"))
        begun.wait(60) if dies else first.result()
        second = fast.submit(lambda: weather("Bonn"))
        if dies:
            second.result()
            run._sink.flush()  # what the second was answered stands
            os.kill(os.getpid(), signal.SIGKILL)
        return [first.result(), second.result()]

with refold.open(sys.argv[1]) as log:
    print(*(log.run("a", id="r") if dies else log.run("a", resume="r")).drive(agent))
    print(log.replay("r", agent).is_same)
"""


def test_resumed_thread_gets_only_its_own_answers(tmp_path: Path, child: Callable[..., Child]) -> None:
    url = f"file:{tmp_path}/log"
    assert child(READ, url).end() == -9
    last = child(READ, url, "resume")
    assert [last.line(), last.line(), last.end()] == ["new old", "True", 0]


KILLED = """
import os, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
import refold

@refold.tool(effect="write")
def pay(to, *, idempotency_key=""):
    with open(sys.argv[2], "a") as paid:
        print(idempotency_key, file=paid)
    return idempotency_key

gate = threading.Event()
dies = len(sys.argv) == 3

def first():
    gate.wait(60)
    if dies:
        run._sink.flush()  # the second is paid, and that is known
        os.kill(os.getpid(), signal.SIGKILL)
    return pay("ada")

def second():
    try:
        return pay("ada")
    finally:
        gate.set()

def agent(run):
    with run.step("two"), ThreadPoolExecutor(2) as pool:
        return [each.result() for each in [pool.submit(first), pool.submit(second)]]

with refold.open(sys.argv[1]) as log:
    run = log.run("a", id="r") if dies else log.run("a", resume="r")
    if not dies:
        gate.set()
    print(*run.drive(agent))
    print(log.replay("r", agent).is_same)
"""


def test_equal_concurrent_writes_are_each_sent_once_across_a_kill(tmp_path: Path, child: Callable[..., Child]) -> None:
    url, paid = f"file:{tmp_path}/log", tmp_path / "paid"
    assert child(KILLED, url, paid).end() == -9
    (of_second,) = paid.read_text().splitlines()
    last = child(KILLED, url, paid, "resume")
    keys = last.line().split()
    assert last.line() == "True"
    assert last.end() == 0
    assert of_second in keys
    assert sorted(keys) == sorted(paid.read_text().splitlines())
    assert len(set(keys)) == 2
