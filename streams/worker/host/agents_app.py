"""Users' agents under Faust: an app whose one agent receives changes from a channel.

Faust's Kafka consumer is not used: it has no public setting to read only committed changes, and no public way to skip a
batch that cannot be read. The app starts without Kafka. A service of the app reads `.changes` with confluent-kafka
(change_consumer.py); it is started after the agent and stopped before it.

1. The consumer sends one change to the channel, and waits.
2. The Faust agent receives it, and runs the users' agents in their thread; then their log is flushed.
3. The agent acknowledges the change, and the consumer commits its offset.

An agent that raises crashes the app, because its supervisor is a CrashingSupervisor. The process ends, and the change
is delivered again at its next start.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import faust
from faust.app.base import BootStrategy
from faust.types import StreamT
from mode.supervisors import CrashingSupervisor

from refold.avro.errors import RefoldError
from refold.streams.changes import Change
from refold.streams.client import Log
from refold.streams.worker.agents import ChangesAgent
from refold.streams.worker.host.change_consumer import ChangeConsumer, Deliver
from refold.streams.worker.host.thread_host import ThreadHost


class AgentFailed(RefoldError):
    """An agent raised; the change it was given is not acknowledged."""


class AgentThread:
    """The one thread in which agents run, and their log."""

    def __init__(self, agents: Sequence[ChangesAgent], open_log: Callable[[], Log]) -> None:
        self._agents = agents
        self._open_log = open_log
        self._log: Log | None = None
        self._pool = ThreadPoolExecutor(1, "refold-agents")

    async def run(self, change: Change, place: str) -> None:
        """Pass a change to every agent, and make their observations durable.

        Args:
            change: The change.
            place: Its topic, partition and offset, for the error's text.

        Raises:
            AgentFailed: An agent raised, or their log could not be flushed.
            RefoldError: Their log could not be opened.
        """
        await asyncio.get_running_loop().run_in_executor(self._pool, self._act, change, place)

    def close(self) -> None:
        """Let go of the log; waits for an agent that is at work."""
        self._pool.submit(self._close).result()
        self._pool.shutdown()

    def _act(self, change: Change, place: str) -> None:
        if self._log is None:
            self._log = self._open_log()
        name = ""
        try:
            for agent in self._agents:
                name = agent.name
                agent(change, self._log)
            self._log.flush()
        except Exception as error:  # the user's agent may raise anything
            raise AgentFailed(f"the agent {name} failed at the change of {change.entity} to v{change.to_version} "
                              f"({place}): {type(error).__name__}: {error}; it is delivered again at the next start"
                              ) from error  # fmt: skip

    def _close(self) -> None:
        if self._log is not None:
            with contextlib.suppress(RefoldError):
                self._log.close()


class _Delivery(NamedTuple):
    """A change in the channel.

    Attributes:
        done: The event to set when the agents are done with it.
    """

    change: Change
    place: str
    done: asyncio.Future[None]


class _WithoutKafka(BootStrategy):
    """Makes Faust start neither its Kafka clients nor its web server; refold's own is streams/web/."""

    enable_kafka = False
    enable_web = False


class _App(faust.App):
    BootStrategy = _WithoutKafka


class AgentsApp:
    """The app, and the thread that reads changes for it. Belongs to the event loop in which it is created."""

    def __init__(self, name: str, folder: Path, thread: AgentThread,
                 make_consumer: Callable[[Deliver], ChangeConsumer]) -> None:  # fmt: skip
        """
        Args:
            name: The app's id.
            folder: Where Faust keeps its own; made with those above it.
            thread: Runs the agents.
            make_consumer: Makes the consumer, given what hands a change to the agents.
        """
        self._thread = thread
        self._loop = asyncio.get_event_loop()
        folder.mkdir(parents=True, exist_ok=True)  # Faust makes the last part alone
        self.app = _App(name, datadir=str(folder), store="memory://", agent_supervisor=CrashingSupervisor)
        self._channel = self.app.channel(maxsize=1)
        self.app.agent(self._channel, name="changes", supervisor_strategy=CrashingSupervisor)(self._follow)
        self.reading = ThreadHost(make_consumer(self.deliver), "agents' consumer")
        # Faust takes an instance as well as a class, and starts it after the agents.
        self.app.service(cast("Any", self.reading))

    def deliver(self, change: Change, place: str) -> Future[None]:
        """Hand a change to the agents, from any thread; the future is done when they are."""
        return asyncio.run_coroutine_threadsafe(self._send(change, place), self._loop)

    async def _send(self, change: Change, place: str) -> None:
        done: asyncio.Future[None] = self._loop.create_future()
        await self._channel.send(value=_Delivery(change, place, done))
        await done

    async def _follow(self, deliveries: StreamT[Any]) -> None:
        self.app.flow_control.resume()  # Faust's own consumer would, when it is given partitions
        async for each in deliveries:
            try:
                await self._thread.run(each.change, each.place)
            except BaseException as error:
                if isinstance(error, Exception):
                    each.done.set_exception(error)
                else:
                    each.done.cancel()
                raise
            each.done.set_result(None)
