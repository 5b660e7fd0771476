"""The agents of a log as anybody sees them, from the folded state.

What an owner recorded is true while its lease lasts. Once that is over, nobody knows what its process does: an agent
whose process may exist is then shown as unknown. The reader's clock decides that, so it should agree with the owner's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.agents.supervise.entries import TYPE
from refold.agents.supervise.lease import ACTIVE
from refold.avro.errors import InputError
from refold.streams.client import Log
from refold.streams.entity_index import views
from refold.streams.point import When

UNKNOWN = "unknown"


class AgentRow(NamedTuple):
    """One agent. Times are microseconds, 0 if there is none; texts are empty if there is none.

    Attributes:
        status: The status as it is known now.
        recorded_status: The status as its owner recorded it.
        has_owner: Whether a supervisor's lease lasts.
        request: The number of the request that holds.
        handled: The number of the one that its owner followed last.
        exit_status: The exit status of its last process; None if none has ended.
        heals: How often a process that heals its run was to be started; 0: it is not being healed.
    """

    name: str
    status: str
    why: str
    desired: str
    desired_by: str
    desired_why: str
    request: int
    handled: int
    recorded_status: str
    status_at: int
    has_owner: bool
    owner: str
    term: int
    renewed_at: int
    lease_ms: int
    host: str
    pid: int
    run: str
    attempt: int
    failures: int
    exit_status: int | None
    heals: int
    restart_at: int
    mode: str
    restart: str
    isolation: str
    contained: Mapping[str, Any]
    policy: str
    budget: Mapping[str, float]
    command: tuple[str, ...]
    transitions: tuple[Mapping[str, Any], ...]

    @property
    def is_over(self) -> bool:
        """Whether it ended as it should, and nobody requested anything since."""
        return self.status == "ended" and self.desired == "running" and self.handled >= self.request


def agents(log: Log, now: int, at: When = None) -> list[AgentRow]:
    """Return every agent, by name.

    Args:
        log: The log.
        now: The time, microseconds; an owner whose lease is over by then is gone.
        at: The point; None is now. As of another point, agents are as their owners recorded them.
    """
    found = views(log, TYPE, log.point(at).cut)
    judged_at = now if at is None else 0
    return [agent_row(entity.removeprefix(f"{TYPE}/"), found[entity].fields, judged_at) for entity in sorted(found)]


def agent_row(name: str, fields: Mapping[str, Any], now: int) -> AgentRow:
    """Return an agent from the fields of its entity.

    Args:
        name: The agent's name.
        fields: The fields of its entity.
        now: The time, microseconds. An owner whose lease is over by then is gone; at 0 no lease is over.
    """

    def text(field: str) -> str:
        return str(fields.get(field) or "")

    def number(field: str) -> int:
        value = fields.get(field)
        return value if isinstance(value, int) else 0

    renewed_at, lease_ms = number("renewed_at"), number("lease_ms")
    has_owner = bool(renewed_at) and not fields.get("released") and now < renewed_at + lease_ms * 1000
    recorded, why = text("status"), text("why")
    status = recorded
    if recorded in ACTIVE and not has_owner:
        status, why = UNKNOWN, f"its owner {text('owner')} renewed nothing since; it was {recorded}"
    return AgentRow(
        name, status, why, text("desired"), text("desired_by"), text("desired_why"),
        number("request"), number("handled"), recorded, number("status_at"),
        has_owner, text("owner"), number("term"), renewed_at, lease_ms, text("host"), number("pid"), text("run"),
        number("attempt"), number("failures"), fields.get("exit_status"), number("heals"), number("restart_at"),
        text("mode"), text("restart"), text("isolation"), fields.get("contained") or {}, text("policy"),
        fields.get("budget") or {},
        tuple(fields.get("command") or ()), tuple(fields.get("transitions") or ()),
    )  # fmt: skip


def known_agent(log: Log, name: str, now: int) -> AgentRow:
    """Return one agent.

    Raises:
        InputError: No supervisor ever owned one of that name.
    """
    every = agents(log, now)
    for each in every:
        if each.name == name:
            return each
    known = f"; there are {', '.join(each.name for each in every)}" if every else ""
    raise InputError(f"there is no agent {name} in this log{known}; `refold up` starts those of refold.toml")
