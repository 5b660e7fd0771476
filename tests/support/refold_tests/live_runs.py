"""Runs of agents that are recorded into memory."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from refold.agents.journal.chain import start_hash
from refold.agents.journal.record import Plain, Recording
from refold.agents.recorder.answers import WORLD, Answers
from refold.agents.recorder.run import Run
from refold.agents.recorder.run_backend import Nondeterminism, ReplayBackend
from refold.agents.recorder.run_sinks import MemorySink
from refold.agents.recorder.step_assembler import StepAssembler
from refold.agents.recorder.tools import Tool
from refold.agents.redaction.redactor import Redact
from refold.agents.replay.memory_runs import MemoryChildren


class World(ReplayBackend):
    """A world with the given entities. Each observation gets an id, and calls of write tools are sent."""

    def __init__(self, entities: Mapping[str, Plain]) -> None:
        self._entities = entities
        self.observed: list[tuple[str, Any]] = []
        self.sent: list[str] = []

    def read(self, entity: str, at: Any) -> Plain:
        """Return the given entity."""
        return {
            "version": 1,
            "state_hash": "aa",
            "observations": ["bb"],
            "cut": "cut:1.x",
            "fields": self._entities[entity],
        }

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the fields of the given entity."""
        found: Mapping[str, Any] = self._entities[entity]
        return found

    def observe(self, entity: str, patch: Mapping[str, Any], step: int, causes: tuple[str, ...],
                given: Mapping[str, Any]) -> str:  # fmt: skip
        """Remember the observation; return its id."""
        self.observed.append((entity, dict(patch)))
        return f"{len(self.observed):064x}"

    def perform(self, tool: Tool, key: str, arguments: Plain, step: int, send: Callable[[str], Any],
                redact: Redact) -> Plain:  # fmt: skip
        """Send the call."""
        self.sent.append(tool.name)
        return send(key)

    async def perform_async(self, tool: Tool, key: str, arguments: Plain, step: int,
                            send: Callable[[str], Awaitable[Any]], redact: Redact) -> Plain:  # fmt: skip
        """Send the call."""
        self.sent.append(tool.name)
        return await send(key)


class Clock:
    """Times and ids that increase with each reading. Waiting takes no time."""

    def __init__(self) -> None:
        self.looks = 0

    def now_micros(self) -> int:
        """Return a time one second later than the previous one."""
        self.looks += 1
        return self.looks * 1_000_000

    def new_id(self) -> str:
        """Return the next id."""
        return f"id-{self.now_micros()}"

    async def sleep(self, seconds: float) -> None:
        """Return at once."""

    @property
    def chance(self) -> Nondeterminism:
        """The clock in the form that runs use."""
        return Nondeterminism(self.now_micros, self.new_id, lambda: 0.0, lambda seconds: None, self.sleep)


def recorded(
    agent: Callable[[Run], Any], *, world: World | None = None, answers: Answers = WORLD, **given: Any
) -> Recording:
    """Run an agent's function, sync or async; return its recording. The agent's own errors are part of the
    recording.
    """
    head = Recording(**{"run": "run-1", "agent": "agent", "state": {}, "status": "running", **given})
    folder = StepAssembler(lambda tree: tree, start_hash(head.agent, head.input, head.seed, head.state), head.state)
    sink = MemorySink(head, folder, lambda tree: tree)
    world = world or World({})
    run = Run(
        head, answers=answers, sink=sink, backend=world, chance=Clock().chance, redact=lambda tree: tree,
        children=MemoryChildren(head.run, None, None, None),
    )  # fmt: skip
    try:
        if inspect.iscoroutinefunction(agent):
            asyncio.run(run.drive_async(agent))
        else:
            run.drive(agent)
    except Exception:
        if sink.recording.failure is None:
            raise
    return sink.recording
