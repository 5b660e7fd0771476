"""Running the protocol's steps: in this thread, or on an event loop, where the log is left to a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from refold.agents.effects.protocol import Asked, Command, Logged, Steps, Wait


def run(steps: Steps, sleep: Callable[[float], None] = time.sleep) -> Any:
    """Run to the end; coroutines that tools give are run on a loop of their own."""

    def done(command: Command) -> Any:
        if isinstance(command, Logged):
            return command.work()
        if isinstance(command, Wait):
            return sleep(command.seconds)
        answer = command.function(*command.arguments)
        return _waited_for(answer) if inspect.isawaitable(answer) else answer

    try:
        command = next(steps)
        while True:
            try:
                answer = done(command)
            except BaseException as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as ended:
        return ended.value


async def run_async(steps: Steps) -> Any:
    """Run to the end, without holding up the loop; tools may be coroutine functions, or not."""

    async def done(command: Command) -> Any:
        if isinstance(command, Logged):
            return await _finished(command.work)
        if isinstance(command, Wait):
            return await asyncio.sleep(command.seconds)
        assert isinstance(command, Asked)
        answer = command.function(*command.arguments)
        return await answer if inspect.isawaitable(answer) else answer

    try:
        command = next(steps)
        while True:
            try:
                answer = await done(command)
            except BaseException as error:
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as ended:
        return ended.value


async def _finished(work: Callable[[], Any]) -> Any:
    """What it returns. A task that is cancelled meanwhile ends when the work has: what is said stays in order."""
    task = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _waited_for(answer: Awaitable[Any]) -> Any:
    """What it comes to, on a loop of its own; in another thread where this one has a loop that runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_awaited(answer))
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, _awaited(answer)).result()


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer
