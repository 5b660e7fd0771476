"""The records of agents in the log: reading what it says of one, and recording about it.

Everything here is durable on return, because a process is started or ended only after it.

A renewal is recorded every few seconds for as long as the agent is run, so a reader that knows nothing begins with a
checkpoint (lease.py):

1. Take the newest checkpoint from the agent's folded state.
2. Read the agent's records from the one that the checkpoint names. If that record is at the position that it names, the
   checkpoint is of this log: take the records after it.
3. Otherwise the records have other positions, as in a log that was made from an archive. Read all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from refold.agents.supervise.lease import CHECKPOINT_AFTER, AgentRecord, ObservedState
from refold.agents.supervise.settings import AgentSettings
from refold.avro.errors import UnknownEntity
from refold.avro.observation import Source
from refold.streams.client import Log
from refold.streams.log.port import observation_in

TYPE = "agent"
_WHY_MAX = 2_000
_WITHOUT_VALUE = ("pid", "process_start", "boot", "restart_at", "exit_status", "run", "host")


def entity_of(name: str) -> str:
    """Return the entity of an agent."""
    return f"{TYPE}/{name}"


class AgentEntries:
    """Reads and writes the agents of a log. For the log's thread.

    Args:
        now_micros: Returns the time that is recorded, in microseconds since 1970.
    """

    def __init__(self, log: Log, now_micros: Callable[[], int]) -> None:
        self._log = log
        self._now_micros = now_micros

    def read(self, name: str, known: AgentRecord | None = None) -> AgentRecord:
        """Return what the log says of an agent now.

        Args:
            name: The agent.
            known: What it said at the last read, which is updated.
        """
        entity = entity_of(name)
        with self._log.lock:
            record = known if known is not None and known.offset else self._checkpoint(entity)
            port = self._log.port
            port.publish()
            port.refresh()
            end = port.ends()[port.partition_of(entity)]
            for each in port.entity_records(entity, end, record.offset):
                record.apply(observation_in(port.registry, each), each.id, each.offset)
            record.offset = max(record.offset, end)
        return record

    def _checkpoint(self, entity: str) -> AgentRecord:
        """Take steps 1 to 3. The record is empty if there is no checkpoint of this log."""
        port = self._log.port
        try:
            found = self._log.state(entity).fields.get("checkpoint")
        except UnknownEntity:
            return AgentRecord()
        record = AgentRecord.from_checkpoint(found) if isinstance(found, Mapping) else None
        if record is None:
            return AgentRecord()
        at = record.last[0]
        is_there = any((each.offset, each.id) == record.last for each in port.entity_records(entity, at + 1, at))
        return record if is_there else AgentRecord()

    def request(self, name: str, what: str, by: str, why: str) -> int:
        """Record what an agent should do: running, paused or stopped. Return the number of the request."""
        number = self.read(name).desired.number + 1
        now = self._now_micros()
        patch: dict[str, Any] = {"desired": what, "desired_at": now, "desired_by": by, "request": number}
        patch |= {"desired_why": why} if why else {}
        self._log.observe(
            entity_of(name), patch, priority=number, cleared=() if why else ("desired_why",)
        )  # fmt: skip
        self._log.flush()
        return number


class OwnedEntries:
    """Writes the records of one agent, for one supervisor under one claim.

    Args:
        checkpoint_after: A renewal records a checkpoint if there are this many records since the last one, or more.
    """

    def __init__(
        self, log: Log, now_micros: Callable[[], int], name: str, token: str, owner: str, lease_ms: int,
        *, checkpoint_after: int = CHECKPOINT_AFTER,
    ) -> None:  # fmt: skip
        self._log = log
        self._now_micros = now_micros
        self._entity = entity_of(name)
        self.token = token
        self._owner = owner
        self._lease_ms = lease_ms
        self._checkpoint_after = checkpoint_after
        self._seq = 0
        self._last_at = 0

    def claim(self, after: AgentRecord) -> None:
        """Request the agent, after the last claim that was seen. The log's order decides whether it is granted."""
        lease = {"token": self.token, "act": "claimed", "after": after.token or None, "beat": after.beat}
        self._observe({"lease": lease, "lease_ms": self._lease_ms, "owner": self._owner}, priority=0)

    def renew(self, record: AgentRecord) -> None:
        """Renew the claim by its next beat.

        Args:
            record: What the log said when it was read last.
        """
        lease = {"token": self.token, "act": "renewed", "beat": record.beat + 1}
        patch: dict[str, Any] = {"lease": lease, "renewed_at": self._now_micros()}
        if record.since_checkpoint >= self._checkpoint_after:
            patch["checkpoint"] = record.checkpoint()
        self._observe(patch, priority=record.term)

    def release(self, record: AgentRecord) -> None:
        """Give the agent up: another supervisor may have it at once."""
        lease = {"token": self.token, "act": "released", "beat": record.beat + 1}
        self._observe({"lease": lease, "released": True}, priority=record.term)

    def granted(self, record: AgentRecord, settings: AgentSettings, observed: ObservedState | None = None) -> None:
        """Record who owns the agent now, and how it is run.

        Args:
            record: What the log says.
            settings: The agent.
            observed: Its status, if what an earlier owner recorded is true no more. It is recorded together with the
                owner, so that no reader takes the earlier status for one of this owner.
        """
        now = self._now_micros()
        patch = {
            "owner": self._owner, "term": record.term, "lease_ms": self._lease_ms, "renewed_at": now,
            "released": False, "command": list(settings.command), "mode": settings.mode, "restart": settings.restart,
            "isolation": settings.isolation,
        }  # fmt: skip
        bounds = {"policy": settings.policy, "budget": settings.budget.limits}
        patch |= {name: bound for name, bound in bounds.items() if bound}
        cleared = [name for name, bound in bounds.items() if not bound]
        if observed is not None:
            status, without = self._status(record, observed)
            patch |= status
            cleared += without
        self._observe(patch, priority=record.term, cleared=tuple(sorted(cleared)))

    def status(self, record: AgentRecord, observed: ObservedState, **more: Any) -> None:
        """Record what the agent does.

        Args:
            record: What the log said before.
            observed: The new status.
            more: Further fields.
        """
        patch, without = self._status(record, observed)
        self._observe(patch | more, priority=record.term, cleared=tuple(sorted({*without} - more.keys())))

    def _status(self, record: AgentRecord, observed: ObservedState) -> tuple[dict[str, Any], set[str]]:
        """Return the fields that record a status, and those without a value."""
        now = self._now_micros()
        observed = observed._replace(why=observed.why[:_WHY_MAX])
        given = observed._asdict()
        patch = {
            name: value for name, value in given.items() if name not in _WITHOUT_VALUE or value not in (0, "", None)
        }  # fmt: skip
        if observed.exit_status is not None:
            patch["exit_status"] = observed.exit_status
        transition = {
            "at": now, "before": record.observed.status, "after": observed.status, "why": observed.why,
            "term": record.term, "attempt": observed.attempt,
        }  # fmt: skip
        if observed.status != record.observed.status:
            patch |= {"status_at": now, "transitions": [transition]}
        return patch, {*_WITHOUT_VALUE} - patch.keys()

    def _observe(self, patch: Mapping[str, Any], *, priority: int, cleared: tuple[str, ...] = ()) -> None:
        # Of two observations with one priority the later one counts, also if the clock was set back between them.
        self._last_at = max(self._now_micros(), self._last_at + 1)
        source = Source(self._owner, self.token, "", "", self._seq)
        self._seq += 1
        self._log.observe(
            self._entity, patch, source=source, observed_at=self._last_at, priority=priority, cleared=cleared,
            allow_future=True,
        )  # fmt: skip
        self._log.flush()
