"""The supervised agents of a log: the answer of `refold agents list`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.supervise.listing import AgentRow, agents
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import time_json


@dataclass(frozen=True, slots=True)
class AgentsQuery:
    """Lists the supervised agents.

    Attributes:
        at: The point to answer for, as WHEN; None: now.
    """

    at: str | None = None

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold agents list`."""
        return ["agents", "list", *options_of({"at": self.at})]

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return each agent, by name."""
        return [agent_json(each) for each in agents(log, time.time_ns() // 1000, self.at)]


def agent_json(row: AgentRow) -> dict[str, Any]:
    """Return an agent in JSON. Times are RFC 3339 UTC; a missing value is null. Keys may be added, never renamed."""
    tree: dict[str, Any] = {name: value if value != "" else None for name, value in row._asdict().items()}
    for name in ("status_at", "renewed_at", "restart_at"):
        tree[name] = time_json(tree[name] or None)
    tree |= {"pid": row.pid or None, "command": list(row.command), "contained": dict(row.contained)}
    tree |= {"budget": dict(row.budget), "is_over": row.is_over}
    tree["transitions"] = [{**each, "at": time_json(each["at"])} for each in row.transitions]
    return tree
