"""Changes as they are recorded: the answer of `refold tail`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from refold.agents.log import AgentLog
from refold.avro.observation import type_of
from refold.avro.registry import TypeVersion
from refold.explorer.queries.query import options_of
from refold.explorer.queries.shapes import change_json
from refold.streams.changes import Change, MutationFormatter
from refold.streams.client import Log
from refold.streams.cut import Cut

RECORDS_LISTED = 200
RECORDS_OF_A_PARTITION_MIN = 10


class ShownChanges:
    """Formats the values of changes by the type definition that each change was made under.

    `found` is called whenever a definition occurs for the first time.
    """

    def __init__(self, log: Log, found: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._found = found
        self._known: dict[bytes, MutationFormatter] = {}

    def of(self, change: Change) -> MutationFormatter:
        """Return the formatter for the values of a change."""
        if change.definition not in self._known:
            self._known[change.definition] = MutationFormatter(self._version(change).definition, python=False)
            self._found()
        return self._known[change.definition]

    def _version(self, change: Change) -> TypeVersion:
        versions = self._log.port.registry.versions(type_of(change.entity))
        return next((each for each in versions if each.definition.fingerprint == change.definition), versions[-1])


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The changes after a point.

    Attributes:
        since: The point, as WHEN.
    """

    since: str

    @property
    def arguments(self) -> list[str]:
        """The arguments of `refold tail`."""
        return ["tail", *options_of({"from": self.since})]

    def changes(self, log: AgentLog) -> Iterator[dict[str, Any]]:
        """Yield each change as the command prints it on a line. Changes of one partition are in order."""
        shown = ShownChanges(log)
        for change in log.changes(self.since):
            yield change_json(change, shown.of(change), log.port.partition_of(change.entity))

    def answer(self, log: AgentLog) -> list[dict[str, Any]]:
        """Return all changes."""
        return list(self.changes(log))


def cut_before(cut: Cut, records: int = RECORDS_LISTED, of_each_min: int = RECORDS_OF_A_PARTITION_MIN) -> Cut:
    """Return a cut about so many records before this one, the same number in each partition, at least of_each_min."""
    of_each = max(of_each_min, records // max(1, len(cut.offsets)))
    return replace(cut, offsets={partition: max(0, end - of_each) for partition, end in cut.offsets.items()})


def by_observation(change: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a change into one row for each observation, with its mutations.

    A change that a new type definition caused starts with a row that has no mutations.
    """
    if change["redefined"]:
        through = change["through"]
        yield {
            "entity": change["entity"], "version": change["to_version"], "recorded_at": None, "source": None,
            "position": {"partition": through["partition"], "offset": through["offset"] - 1}, "mutations": [],
        }  # fmt: skip
    for _, group in groupby(change["mutations"], key=lambda row: row["by"]):
        mutations = list(group)
        yield {**mutations[0], "mutations": mutations}
