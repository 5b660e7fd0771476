"""The log as the backend of a live run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from refold.agents.effects.ledger import Ledger
from refold.agents.effects.order import Order
from refold.agents.journal.record import Plain
from refold.agents.recorder.tools import Tool
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import NotAnswerable
from refold.avro.observation import Source
from refold.streams.client import Log
from refold.streams.view import EntityView


class LogBackend:
    """Gives one run access to its log.

    Args:
        ledger: The ledger of its effects.
        seq: The next sequence numbers of the run's source.
    """

    def __init__(self, log: Log, ledger: Ledger, agent: str, run: str, seq: Iterator[int]) -> None:
        self._log = log
        self._ledger = ledger
        self._agent = agent
        self._run = run
        self._seq = seq

    def read(self, entity: str, at: Any) -> Plain:
        """As RunBackend."""
        view = self._log.state(entity, at)
        return {**read_of(view), "fields": view.shown()}

    def fields(self, entity: str, answer: Plain) -> Mapping[str, Any]:
        """Return the entity's fields at the recorded cut, verified against the recorded hash."""
        return read_again(self._log, entity, answer).shown()

    def observe(self, entity: str, patch: Mapping[str, Any], step: int, causes: tuple[str, ...],
                given: Mapping[str, Any]) -> str:  # fmt: skip
        """As RunBackend."""
        source = Source(self._agent, self._run, str(step), "", next(self._seq))
        more = {"causes": causes, **given}
        return self._log.observe(entity, patch, source=source, **more)

    def perform(self, tool: Tool, key: str, arguments: Plain, step: int, send: Callable[[str], Any],
                redact: Redact) -> Plain:  # fmt: skip
        """As RunBackend."""
        return self._ledger.perform(self._order(tool, key, arguments, step, redact), send, tool.terms)

    async def perform_async(self, tool: Tool, key: str, arguments: Plain, step: int,
                            send: Callable[[str], Awaitable[Any]], redact: Redact) -> Plain:  # fmt: skip
        """As RunBackend."""
        return await self._ledger.perform_async(self._order(tool, key, arguments, step, redact), send, tool.terms)

    def _order(self, tool: Tool, key: str, arguments: Plain, step: int, redact: Redact) -> Order:
        return Order(key, tool.name, arguments, self._run, self._agent, f"{self._run}#{step}", tool.undo, redact=redact)


def read_of(view: EntityView) -> dict[str, Plain]:
    """Return the record of a read: which state it was, and the observations that hold its values; no values."""
    held: dict[str, None] = {}
    for holder in view.tree["by"].values():
        found = holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else [holder]
        held.update((each.hex(), None) for each in found if isinstance(each, bytes))
    return {
        "version": view.version,
        "state_hash": view.state_hash,
        "observations": list(held),
        "cut": str(view.cut),
    }


def read_again(log: Log, entity: str, answer: Plain) -> EntityView:
    """Return the entity as it was read.

    Args:
        log: The log.
        entity: The entity.
        answer: The record of the read.

    Raises:
        NotAnswerable: The log can no longer rebuild that state.
    """
    view = log.state(entity, answer["cut"])
    if view.state_hash != answer["state_hash"]:
        raise NotAnswerable(
            f"{entity}: at the point where it was read the log now has another state than the one that was read "
            f"({view.state_hash}, read {answer['state_hash']}); run refold verify"
        )
    return view
