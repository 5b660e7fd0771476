"""The page of changes: the newest changes of all entities; it is live while it is open as of now."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any

from refold.explorer.queries.tail import TailQuery
from refold.explorer.web.view import PageView
from refold.streams.cut import Cut

RECORDS_LISTED = 200
RECORDS_OF_A_PARTITION_MIN = 10


def changes_page(view: PageView) -> bytes:
    """The changes by the newest records below a cut, the newest first. `from` in the address: after which cut."""
    cut = view.cut()
    since = view.cut(name="from") if view.get("from") else _some_before(cut)
    query = TailQuery(str(since))
    rows = [
        row
        for change in query.changes(view.log)
        for row in _by_observation(change)
        if row["position"]["offset"] < cut.offsets[row["position"]["partition"]]
    ]
    rows.sort(key=lambda row: (row["recorded_at"] or "", row["position"]["offset"]), reverse=True)
    before = _some_before(since)
    return view.render(
        "changes.html", "Changes", cut, [("these changes, and those that come", query)], is_live=not view.get("from"),
        rows=rows, is_first=since.records == 0, before=view.address(**{"from": str(before)}),
    )  # fmt: skip


def _some_before(cut: Cut) -> Cut:
    """A cut before this one by about RECORDS_LISTED records, the same number in each partition."""
    of_each = max(RECORDS_OF_A_PARTITION_MIN, RECORDS_LISTED // max(1, len(cut.offsets)))
    return replace(cut, offsets={partition: max(0, end - of_each) for partition, end in cut.offsets.items()})


def _by_observation(change: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A change as one row for each observation, with its mutations; one without where a new definition made it."""
    if change["redefined"]:
        through = change["through"]
        yield {
            "entity": change["entity"], "version": change["to_version"], "recorded_at": None, "source": None,
            "position": {"partition": through["partition"], "offset": through["offset"] - 1}, "mutations": [],
        }  # fmt: skip
    for _, group in groupby(change["mutations"], key=lambda row: row["by"]):
        mutations = list(group)
        yield {**mutations[0], "mutations": mutations}
