"""The services that a run uses outside its own code: log, ledger of effects, clock and randomness.

A live run has the log. A replay has none: requests are answered from the recording, and any other request is refused.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from refold.agents.journal.record import Plain
from refold.agents.recorder.tools import Tool
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import InputError


@dataclass(frozen=True, slots=True)
class ReadView:
    """A read of an entity: its fields as JSON trees, and the version and hash of its state."""

    entity: str
    fields: Mapping[str, Any]
    version: int
    state_hash: str
    cut: str


class RunBackend(Protocol):
    """Reads return a tree {version, state_hash, observations (ids of those that hold the values), cut, fields}."""

    def read(self, entity: str, at: Any) -> Plain:
        """Read an entity, now or at a point.

        Raises:
            NotAnswerable: Nothing is known of it.
        """

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the values of a recorded read.

        Raises:
            NotAnswerable: They are gone.
        """

    def observe(self, entity: str, patch: Mapping[str, Any], step: int, causes: tuple[str, ...],
                given: Mapping[str, Any]) -> str:  # fmt: skip
        """Record an observation with the run as its source; return its id.

        Args:
            entity: The entity.
            patch: Its fields.
            step: The number of the step.
            causes: The ids of its causes.
            given: More arguments of Log.observe.
        """

    def perform(self, tool: Tool, key: str, arguments: Plain, step: int, send: Callable[[str], Any],
                redact: Redact) -> Plain:  # fmt: skip
        """Make a write tool take effect once; return its first result.

        Args:
            tool: The tool.
            key: The idempotency key of the effect.
            arguments: The tool's arguments.
            step: The number of the step.
            send: Carries the effect out; called with the key.
            redact: The redactor of its output.
        """

    async def perform_async(self, tool: Tool, key: str, arguments: Plain, step: int,
                            send: Callable[[str], Awaitable[Any]], redact: Redact) -> Plain:  # fmt: skip
        """As `perform`, where sending is awaited."""


class ReplayBackend:
    """Allows no access to the outside: for replays. Reads return their recorded values."""

    def read(self, entity: str, at: Any) -> Plain:
        """Refuse."""
        raise self._refusal(f"read {entity}")

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the recorded values."""
        if "fields" not in answer:
            raise self._refusal(f"look up a read of {entity}")
        found: Mapping[str, Any] = answer["fields"]
        return found

    def observe(self, entity: str, patch: Mapping[str, Any], step: int, causes: tuple[str, ...],
                given: Mapping[str, Any]) -> str:  # fmt: skip
        """Refuse."""
        raise self._refusal(f"observe {entity}")

    def perform(self, tool: Tool, key: str, arguments: Plain, step: int, send: Callable[[str], Any],
                redact: Redact) -> Plain:  # fmt: skip
        """Refuse."""
        raise self._refusal(f"run the write tool {tool.name}")

    async def perform_async(self, tool: Tool, key: str, arguments: Plain, step: int,
                            send: Callable[[str], Awaitable[Any]], redact: Redact) -> Plain:  # fmt: skip
        """Refuse."""
        raise self._refusal(f"run the write tool {tool.name}")

    @staticmethod
    def _refusal(what: str) -> InputError:
        return InputError(f"there is no log at hand to {what}")


@dataclass(frozen=True, slots=True)
class Nondeterminism:
    """Clock and random numbers of a run. Their values are recorded."""

    now_micros: Callable[[], int]
    new_id: Callable[[], str]
    monotonic_s: Callable[[], float] = time.perf_counter
    sleep_s: Callable[[float], None] = time.sleep
    sleep_async: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: random.Random = field(default_factory=random.Random)
