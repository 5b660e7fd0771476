"""Threads and tasks that request one effect concurrently, on an embedded log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.agents.effects.ledger import Ledger
from refold.agents.effects.log_entries import OwnEntry
from refold.agents.effects.order import Done, Terms
from refold_tests.ledger_world import Service, World, ordered


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "log")
    yield found
    found.log.close()


def test_concurrent_threads_with_one_effect_send_it_once(world: World) -> None:
    started, go = threading.Event(), threading.Event()
    results: list[Any] = []

    def slow() -> str:
        started.set()
        assert go.wait(300)
        return "paid"

    service = Service(slow)
    clock = iter(range(10**12))
    ledgers = [Ledger(world.log, lambda: next(clock), lambda: str(next(world.tokens))) for _ in range(2)]
    threads = [
        threading.Thread(target=lambda each=each, run=run: results.append(each.perform(ordered(run), service)))
        for each, run in zip([*ledgers, ledgers[0]], ("r-1", "r-2", "r-1"), strict=True)
    ]
    threads[0].start()
    assert started.wait(300)
    for each in threads[1:]:
        each.start()
    go.set()
    for each in threads:
        each.join()
    assert (results, len(service.keys)) == (["paid"] * 3, 1)


def run_async(main: Callable[[], Any]) -> Any:
    return asyncio.run(main())


def test_concurrent_tasks_with_one_effect_send_it_once_without_blocking_the_loop(world: World) -> None:
    calls: list[str] = []

    async def send(key: str) -> str:
        calls.append(key)
        mine = len(calls)
        await asyncio.sleep(0.05)
        return f"paid {mine}"

    async def main() -> list[Any]:
        ledger = Ledger(world.log, lambda: world.now, lambda: str(next(world.tokens)))
        return await asyncio.gather(*(ledger.perform_async(ordered(step=step), send) for step in (1, 1, 2)))

    results = run_async(main)
    assert results[0] == results[1] != results[2]
    assert len(calls) == 2


def test_coroutine_functions_are_accepted_as_functions(world: World) -> None:
    async def send(key: str) -> str:
        raise TimeoutError

    async def probe(key: str, arguments: Any) -> Done:
        return Done(key[:4])

    terms = Terms(probe=probe)
    assert world.ledger().perform(ordered(), send, terms) == "task"

    async def main() -> Any:
        return world.ledger().perform(ordered(step=2), send, terms)

    assert run_async(main) == "task"


def test_task_cancelled_while_sending_leaves_the_effect_unknown(world: World) -> None:
    async def main() -> None:
        ledger, sent = world.ledger(), asyncio.Event()

        async def send(key: str) -> str:
            sent.set()
            await asyncio.sleep(3600)
            return "never"

        task = asyncio.create_task(ledger.perform_async(ordered(), send))
        await sent.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(main)
    assert world.status(ordered()) == "unknown"


def test_task_cancelled_while_claiming_releases_the_claim(world: World) -> None:
    async def main() -> None:
        ledger, claiming, go = world.ledger(), threading.Event(), threading.Event()
        say = ledger._book.say

        def slow(*given: Any, **more: Any) -> OwnEntry:
            claiming.set()
            assert go.wait(300)
            return say(*given, **more)

        ledger._book.say = slow  # type: ignore[method-assign]
        task = asyncio.create_task(ledger.perform_async(ordered(), Service("never")))
        await asyncio.to_thread(claiming.wait)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    run_async(main)
    world.log.flush()
    assert world.status(ordered()) == "released"
    assert world.ledger().perform(ordered("r-2"), Service("paid")) == "paid"
