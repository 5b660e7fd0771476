"""The page of runs. It has the filters of `refold runs`."""

from __future__ import annotations

from refold.agents.recordings.find import OUTCOMES
from refold.explorer.queries.run import RunQuery
from refold.explorer.queries.runs import RunsQuery, as_tree
from refold.explorer.queries.shapes import time_json
from refold.explorer.web.view import PageView

LISTED = 50
TEXTS = ("text", "tool", "error", "agent", "user", "tag", "parent", "since", "until")


def runs_page(view: PageView) -> bytes:
    """Return the runs at a cut, newest first. A fork, or a run within another, follows the run that it belongs to."""
    cut = view.cut()
    limit = view.number("limit") or LISTED
    query = RunsQuery(
        view.get("since") or None, view.get("until") or None, view.get("text"), view.get("tool"), view.get("error"),
        view.get("outcome"), view.get("agent"), view.get("user"), view.get("tag"), view.get("parent"),
        flagged=bool(view.get("flagged")), limit=limit, at=str(cut),
    )  # fmt: skip
    found = query.find(view.log)
    rows = [
        {"row": row, "depth": depth, "started": time_json(row.started_at), "ended": time_json(row.ended_at)}
        for row, depth in as_tree(found.rows, with_forks=True)
    ]
    return view.render(
        "runs.html", "Runs", cut, [("these runs", query)], is_live=True, rows=rows, found=found, query=query,
        outcomes=OUTCOMES,
        names=TEXTS, more=view.address(limit=limit + found.older) if found.older else "",
        show=lambda run: view.renderer.command(RunQuery(run, str(cut))),
    )  # fmt: skip
