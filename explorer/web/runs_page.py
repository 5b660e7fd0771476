"""The page of runs. It has the filters of `refold runs`."""

from __future__ import annotations

from dataclasses import replace

from refold.agents.recordings.find import OUTCOMES, usage_of_rows
from refold.explorer.queries.run import RunQuery
from refold.explorer.queries.run_shapes import usage_cost
from refold.explorer.queries.runs import MORE_SEARCHED, RunsQuery, as_tree
from refold.explorer.queries.shapes import time_json
from refold.explorer.web.view import PageView

TEXTS = ("text", "tool", "error", "agent", "user", "tag", "parent", "since", "until", "model")


def runs_page(view: PageView) -> bytes:
    """Return the runs at a cut, newest first. A fork, or a run within another, follows the run that it belongs to."""
    cut = view.cut()
    limit = view.number("limit") or view.limits.runs_listed
    query = RunsQuery(
        view.get("since") or None, view.get("until") or None, view.get("text"), view.get("tool"), view.get("error"),
        view.get("outcome"), view.get("agent"), view.get("user"), view.get("tag"), view.get("parent"),
        model=view.get("model"), flagged=bool(view.get("flagged")), limit=limit, at=str(cut),
    )  # fmt: skip
    if query.is_in_steps:
        query = replace(query, search_steps=view.number("search_steps") or view.limits.steps_searched)
    found = query.find(view.log)
    is_cut_short = query.is_in_steps and len(found) < limit
    more, more_listed = "", min(found.older, view.limits.runs_more)
    if found.older:
        further = {"search_steps": (query.search_steps or 0) * MORE_SEARCHED}
        more = view.address(**(further if is_cut_short else {"limit": limit + more_listed}))
    known = query.open_runs(view.log, found)
    costed = view.number("costed") or view.limits.steps_costed
    usage = usage_of_rows(view.log, view.log.vault, found.rows, cut, costed)
    rows = [
        {"row": row, "depth": depth, "started": time_json(row.started_at), "ended": time_json(row.ended_at),
         "known": known.get(row.run), "usage": usage.get(row.run), "is_costed": row.run in usage}
        for row, depth in as_tree(found.rows, with_forks=True)
    ]  # fmt: skip
    return view.render(
        "runs.html", "Runs", cut, [("these runs", replace(query, usage=True))], is_live=True, rows=rows, found=found,
        query=query, outcomes=OUTCOMES, names=TEXTS, cost=usage_cost, costed=costed, uncosted=len(found) - len(usage),
        more_costed=view.address(costed=costed * MORE_SEARCHED), more=more,
        is_cut_short=is_cut_short, more_listed=more_listed,
        show=lambda run: view.renderer.command(RunQuery(run, str(cut))),
    )  # fmt: skip
