"""The recorded runs: the answer of `refold runs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.find import RunList, RunRow
from refold.explorer.queries.query import options_of
from refold.explorer.queries.run_shapes import row_json


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """A search for runs. A run must meet every condition that is given; see AgentLog.runs."""

    since: str | None = None
    until: str | None = None
    text: str = ""
    tool: str = ""
    error: str = ""
    outcome: str = ""
    agent: str = ""
    user: str = ""
    tag: str = ""
    parent: str = ""
    flagged: bool = False
    model: str = ""
    usage: bool = False
    further: bool = False
    limit: int | None = None
    at: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether any condition besides the point and the limit is given."""
        return any(value for name, value in asdict(self).items() if name not in {"at", "limit", "usage", "further"})

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold runs`."""
        return ["runs", *options_of(asdict(self))]

    def find(self, log: AgentLog) -> RunList:
        """Return the matching runs, newest first, and what could not be read."""
        return log.runs(**asdict(self))

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each run."""
        return [row_json(row) for row in self.find(log).rows]


def as_tree(rows: Sequence[RunRow], *, with_forks: bool = False) -> Iterator[tuple[RunRow, int]]:
    """Yield each row with its depth. A run that began within another listed run follows that run.

    Args:
        rows: The rows, newest first.
        with_forks: Whether a fork likewise follows the run that it was forked from.
    """
    listed = {row.run for row in rows}
    within: dict[str, list[RunRow]] = {}
    for row in rows:
        above = row.caller or (row.parent if with_forks else "")
        within.setdefault(above if above in listed and above != row.run else "", []).append(row)
    left = [(row, 0) for row in reversed(within.get("", ()))]
    while left:
        row, depth = left.pop()
        yield row, depth
        left += [(each, depth + 1) for each in within.get(row.run, ())]  # the newest comes last
