"""Which runs are recorded: what `refold runs` answers."""

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
    """All that is given has to hold; see AgentLog.runs."""

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
    limit: int | None = None
    at: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether anything but the point and the limit is asked for."""
        return any(value for name, value in asdict(self).items() if name not in {"at", "limit", "usage"})

    @property
    def arguments(self) -> list[str]:
        """`refold runs`."""
        return ["runs", *options_of(asdict(self))]

    def find(self, log: AgentLog) -> RunList:
        """The runs, newest first, with what could not be read."""
        return log.runs(**asdict(self))

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """One object a run."""
        return [row_json(row) for row in self.find(log).rows]


def as_tree(rows: Sequence[RunRow], *, with_forks: bool = False) -> Iterator[tuple[RunRow, int]]:
    """The rows, each run within another after that one, if it is among them, and how deep it is.

    with_forks: forks likewise come after the run that they are forks of.
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
