"""The page of changes: the newest changes of all entities. It updates live while it shows the present."""

from __future__ import annotations

from refold.explorer.queries.tail import TailQuery, by_observation, cut_before
from refold.explorer.web.view import PageView


def changes_page(view: PageView) -> bytes:
    """Return the changes in the newest records before a cut, newest first.

    `from` in the address: the cut after which the changes begin.
    """
    cut = view.cut()
    since = view.cut(name="from") if view.get("from") else cut_before(cut)
    query = TailQuery(str(since))
    rows = [
        row
        for change in query.changes(view.log)
        for row in by_observation(change)
        if row["position"]["offset"] < cut.offsets[row["position"]["partition"]]
    ]
    rows.sort(key=lambda row: (row["recorded_at"] or "", row["position"]["offset"]), reverse=True)
    before = cut_before(since)
    return view.render(
        "changes.html", "Changes", cut, [("these changes, and those that come", query)], is_live=not view.get("from"),
        rows=rows, is_first=since.records == 0, before=view.address(**{"from": str(before)}),
    )  # fmt: skip
