"""A session of the OpenAI Agents SDK whose conversation is one entity of a log, `openai_session/<id>`.

    from refold.openai_agents import RefoldSession

    session = RefoldSession("chat-1", "file:.refold")
    await Runner.run(agent, "Hello", session=session)

The entity's state is the conversation, so the state at any past moment is the conversation then.

1. Each change first reads the entity as all processes have written it, and is observed later than the latest change
   that it read. So a change that begins after another one returned comes after it, also if its machine's clock is
   behind. If it is more than five minutes behind, the log refuses the change.
2. `add_items` is one observation: all items or none. Their keys begin with its time, so they follow all earlier items.
   Items that are added at the same time by two writers do not mix.
3. `clear_session` clears the items that were observed before it.
4. `pop_item` removes the item with the last key. If two writers pop the same item, the first in the log has popped it,
   and the other one tries again.
5. Every change is durable when it returns. If the caller is cancelled meanwhile, it is cancelled after that.

A process killed in a change has made it as a whole or not at all.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from agents.items import TResponseInputItem
from agents.memory import SessionSettings

from refold.agents.adapters.log_holder import LogHolder
from refold.agents.adapters.openai_agents.spans import json_of, log_safe
from refold.agents.adapters.quoting import quoted
from refold.agents.journal.json_fidelity import written
from refold.agents.journal.record import Plain
from refold.agents.log import AgentLog
from refold.agents.recorder.context import SCOPE, in_thread, waited_for
from refold.agents.recorder.plain import decoded
from refold.agents.recordings.fields import Fields
from refold.avro.errors import InputError
from refold.streams.log.port import observation_in

T = TypeVar("T")


class RefoldSession(LogHolder):
    """Stores one conversation. Any number of objects, in any processes, may have the same session."""

    def __init__(
        self, session_id: str, log: str | os.PathLike[str] | AgentLog | None = None, *,
        session_settings: SessionSettings | None = None, agent: str = "openai-agents",
    ) -> None:  # fmt: skip
        """Open the session.

        Args:
            session_id: Its id.
            log: The URL of a log, file:PATH or kafka://HOST:PORT/PREFIX, as for `refold.open`; or an open log, which
                `close` leaves open. Sessions of one process share one open log best.
            session_settings: As for the SDK's own sessions: how many items a run gets.
            agent: The source of the observations.
        """
        self.session_id = session_id
        self.session_settings: SessionSettings | None = session_settings or SessionSettings()
        self.entity = f"openai_session/{quoted(session_id)}"
        self._hold(log)
        self._agent = agent

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, oldest item first.

        Args:
            limit: Only so many of the latest items; negative: no limit; None: session_settings.limit.
        """
        most = self.session_settings.limit if limit is None and self.session_settings else limit
        found = await self._run_in_thread(lambda: [*self._read()[0].values()])
        return found if most is None or most < 0 else found[max(len(found) - most, 0) :]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items at the end; durable on return."""
        if items:
            trees = [decoded(log_safe(json_of(each))) for each in items]
            await self._run_in_thread(lambda: self._add(trees))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None if there is none. Durable on return."""
        return await self._run_in_thread(self._pop)

    async def clear_session(self) -> None:
        """Remove all items; durable on return. A log keeps its observations: earlier states still have them."""
        await self._run_in_thread(self._clear)

    async def _run_in_thread(self, work: Callable[[], T]) -> T:
        run = SCOPE.get().run
        if run is not None and run.is_in_memory:
            raise InputError(
                f"session {self.session_id} was used in a replay of run {run.id}: what it held then is not recorded. "
                "Give the run's code its items as input, and use the session outside of the run"
            )
        future: asyncio.Future[T] = in_thread(work)
        await waited_for(future)
        return future.result()

    # In a thread

    def _read(self) -> tuple[dict[str, Any], int]:
        """Return the items by key, in order, and when the session was changed last, microseconds."""
        view = self._log.states([self.entity]).get(self.entity)
        if view is None:
            return {}, 0
        fields = Fields(view, self._log.vault)
        items = fields.exact_map("items")
        return {key: items[key] for key in sorted(items) if items[key] is not None}, fields.plain("changed_at", 0)

    def _add(self, trees: Sequence[Plain]) -> None:
        at = _later_than(self._read()[1])
        writer = secrets.token_hex(4)
        items = {f"{at:017d}.{writer}.{n:06d}": self._seal(each) for n, each in enumerate(trees)}
        self._observe(at, {"session": self.session_id, "items": items, "added": len(items)})

    def _pop(self) -> Any:
        while True:
            items, changed_at = self._read()
            if not items:
                return None
            key = [*items][-1]
            if self._observe(_later_than(changed_at), {"items": {key: None}, "popped": key}) == self._popper_of(key):
                return items[key]

    def _clear(self) -> None:
        items, changed_at = self._read()
        if items:
            self._observe(_later_than(changed_at), {}, cleared=("items",))

    def _popper_of(self, key: str) -> str:
        """Return the id of the first observation in the log that popped an item."""
        with self._log.lock:
            port = self._log.port
            port.publish()
            port.refresh()
            for record in port.entity_records(self.entity, port.ends()[port.partition_of(self.entity)]):
                if observation_in(port.registry, record).patch.get("popped") == key:
                    return record.id.hex()
        return ""

    def _seal(self, tree: Plain) -> Any:
        return self._log.vault.seal(f"session/{self.session_id}", self.entity, "items", written(tree))

    def _observe(self, at: int, patch: dict[str, Any], cleared: tuple[str, ...] = ()) -> str:
        patch["changed_at"] = at
        found = self._log.observe(self.entity, patch, source=self._agent, observed_at=at, cleared=cleared)
        self._log.flush()
        return found


def _later_than(changed_at: int) -> int:
    """Return the time, microseconds; one after the latest change that was read, if the clock is behind it."""
    return max(time.time_ns() // 1000, changed_at + 1)
