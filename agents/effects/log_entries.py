"""The ledger's records in the log: reading the state of an effect, and recording about it.

Arguments and results keep the type of each number (journal/json_fidelity.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from refold.agents.effects.claims import EffectState
from refold.agents.effects.errors import ResultNotKept
from refold.agents.effects.keys import entity_of
from refold.agents.effects.order import Order
from refold.agents.journal import json_fidelity
from refold.agents.journal.record import Plain
from refold.agents.vault import ClearVault, ValueCipher, run_key
from refold.avro.blob import option_of
from refold.avro.canonical import json_text, json_tree
from refold.avro.observation import Source
from refold.streams.client import Log
from refold.streams.log.port import observation_in

DONE_PRIORITY = 1
"""The priority of `done`: it keeps later claims from hiding it in the folded state."""

NewSource: TypeAlias = Callable[[Order], Source]
Redact: TypeAlias = Callable[[Plain], Plain]
StartOf: TypeAlias = Callable[[int], int]


class OwnEntry(NamedTuple):
    """An observation of an effect, by its id."""

    id: bytes
    patch: Mapping[str, Any]
    cleared: tuple[str, ...]


class EffectLog:
    """Reads and writes effects in a log that several threads may use in turn.

    Args:
        keeper: Seals private values under the key of the effect's run, and decrypts them; without it they are in clear.
        new_source: Returns the source of an observation; without it, the order's agent and run, counted here.
        start_of: Returns the offset in a partition before which nothing was recorded of any requested effect; this
            saves reading from the log's beginning if it has no index.

    Attributes:
        redact: Returns the parts of a JSON tree that may be written.
    """

    def __init__(
        self, log: Log, *, keeper: ValueCipher | None = None, redact: Redact = lambda tree: tree,
        new_source: NewSource | None = None, start_of: StartOf = lambda partition: 0,
    ) -> None:  # fmt: skip
        self.log = log
        self.redact = redact
        self._keeper = keeper or ClearVault(log)
        self._new_source = new_source or _counted_sources()
        self._start_of = start_of

    def read(self, key: str, known: EffectState | None = None, own: OwnEntry | None = None) -> EffectState:
        """Return the current state of an effect.

        Args:
            key: The effect's key.
            known: Its state at the last read, which is updated.
            own: The last observation of the effect by this process; its record is not decoded.
        """
        entity = entity_of(key)
        state = known or EffectState()
        with self.log.lock:
            port = self.log.port
            port.publish()  # the process that records something about an effect flushes it
            port.refresh()
            partition = port.partition_of(entity)
            start = state.offset or (0 if port.is_indexed else self._start_of(partition))
            end = port.ends()[partition]
            for record in port.entity_records(entity, end, start):
                if own is not None and record.id == own.id:
                    state.apply(own.patch, own.cleared)
                else:
                    observation = observation_in(port.registry, record)
                    state.apply(observation.patch, observation.cleared)
            state.offset = max(start, end)
        return state

    def say(
        self, order: Order, patch: Mapping[str, Any], *, by: str = "", priority: int = 0, cleared: tuple[str, ...] = (),
        is_durable: bool = True,
    ) -> OwnEntry:  # fmt: skip
        """Record something about an effect.

        Args:
            order: The effect.
            patch: The fields.
            by: Who records it, if not the run that requests the effect.
            priority: The priority of the observation.
            cleared: Fields to clear.
            is_durable: Whether it is durable on return; otherwise it is durable with the next flush.
        """
        source = by or self._new_source(order)
        observation = self.log.observe(entity_of(order.key), patch, source=source, priority=priority, cleared=cleared)
        if is_durable:
            self.log.flush()
        return OwnEntry(bytes.fromhex(observation), patch, cleared)

    def redacted(self, order: Order, tree: Plain) -> Plain:
        """Return the parts of a tree that may be written about the effect."""
        return (order.redact or self.redact)(tree)

    def sealed(self, order: Order, field: str, value: Plain) -> Any:
        """Return the form of a value for a patch of the effect. It is redacted first, if needed.

        Args:
            order: The effect.
            field: The field of the patch.
            value: The value, in the clear.
        """
        with self.log.lock:
            return self._keeper.seal(run_key(order.run), entity_of(order.key), field, value)

    def opened(self, key: str, field: str, stored: Any) -> Plain:
        """Return a stored value of the effect, decrypted.

        Raises:
            NotAnswerable: It can no longer be read.
        """
        with self.log.lock:
            return self._keeper.open(entity_of(key), field, option_of(stored) or stored)

    def inputs(self, order: Order) -> Any:
        """Return an order's arguments for a patch."""
        return self.sealed(order, "inputs", json_fidelity.written(order.arguments))

    def arguments(self, key: str, stored: Any) -> Plain:
        """Return the arguments of an effect."""
        return json_fidelity.read(self.opened(key, "inputs", stored))

    def sealed_result(self, order: Order, result: object) -> tuple[Any, Plain]:
        """Return a tool's result for a patch, and in the form in which its caller gets it: exactly what is recorded."""
        kept = self.redacted(order, json_fidelity.read(json_tree(json_fidelity.written(result), "result")))
        return self.sealed(order, "result", json_text(json_fidelity.written(kept), "result")), kept

    def result(self, key: str, stored: Any) -> Plain:
        """Return the first result of an effect that is done.

        Raises:
            ResultNotKept: None is stored.
        """
        if stored is None:
            raise ResultNotKept(key, "it could not be recorded when it was done")
        return json_fidelity.read(json.loads(self.opened(key, "result", stored)))


def _counted_sources() -> NewSource:
    """Return sources that are counted per agent and run, for a ledger without a recorder."""
    counts: Counter[tuple[str, str]] = Counter()

    def source(order: Order) -> Source:
        seq = counts[order.agent, order.run]
        counts[order.agent, order.run] += 1
        return Source(order.agent, order.run, order.step, order.tool, seq)

    return source
