"""The recorded runs: the answer of `refold runs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from refold.agents.log import AgentLog
from refold.agents.recordings.find import RunConditions, RunList, RunRow, find, time_of
from refold.explorer.queries.open_runs import UnendedRun, open_runs
from refold.explorer.queries.query import options_of
from refold.explorer.queries.run_shapes import row_json

STEPS_SEARCHED = 2_000
"""How many steps a screen searches at first; about a second's work. It offers to search MORE_SEARCHED times as many."""
MORE_SEARCHED = 4
NO_CONDITIONS = frozenset({"at", "limit", "search_steps", "usage", "further"})


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
    search_steps: int | None = None
    at: str | None = None

    @property
    def is_filtered(self) -> bool:
        """Whether any condition besides the point and the limit is given."""
        return any(value for name, value in asdict(self).items() if name not in NO_CONDITIONS)

    @property
    def is_in_steps(self) -> bool:
        """Whether the search must read the steps of runs."""
        return bool(self.text or self.tool or self.error or self.model)

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold runs`."""
        given = asdict(self)
        return ["runs", *options_of({name.replace("_", "-"): value for name, value in given.items()})]

    def find(self, log: AgentLog) -> RunList:
        """Return the matching runs, newest first, and what could not be read."""
        wanted = RunConditions(
            time_of(self.since, "since"), time_of(self.until, "until"), self.agent, self.outcome, self.user, self.tag,
            self.parent, self.flagged, self.tool, self.error, self.text, self.model, self.usage, self.further,
        )  # fmt: skip
        return find(log, log.vault, wanted, self.limit, self.at, self.search_steps)

    def open_runs(self, log: AgentLog, found: RunList) -> dict[str, UnendedRun]:
        """Return what is known of the listed runs that have not ended, by run."""
        recorded = {row.run: row.recorded_at for row in found if row.recorded_at is not None}
        return open_runs(log, recorded, found.cut, is_now=self.at is None)

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return one object for each run."""
        found = self.find(log)
        known = self.open_runs(log, found)
        return [row_json(row, known.get(row.run)) for row in found]


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
