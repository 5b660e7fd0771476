"""The page of a run: its timeline, and one of its steps in full. It opens at the failure."""

from __future__ import annotations

from typing import Any

from refold.agents.usage.of_runs import summed, usage_of_run
from refold.avro.errors import InputError, NotAnswerable
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import RunQuery, StepsQuery, clear_json
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.run_shapes import cost_text, run_json
from refold.explorer.views.step_view import opening_step, step_at, step_rows
from refold.explorer.web.timeline import timeline
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.cut import Cut

LISTED_AROUND = 60
# Keys that run_json leaves out if they do not apply.
NOT_WITHIN = {"caller": "", "caller_step": 0, "children": (), "synthetic_time": False}


def run_page(view: PageView) -> bytes:
    """Return one run at a cut, opened at a step."""
    cut = view.cut()
    (given,) = view.path
    run_id = known_run(view.log, given, cut)
    if run_id != given:
        raise PageMoved(view_of(view, run_id).address())
    query = RunQuery(run_id, str(cut))
    try:
        run = view.log.recording(run_id, cut)
    except NotAnswerable as error:
        found = clear_json(view.log, run_id, cut, error)
        return view.render("run_clear.html", f"Run {run_id}", cut, [("this run", query)], run=found)
    title = run.title or f"Run {run_id}"
    number = view.number("step")
    if number is None:
        number = opening_step(run)
    shown: list[tuple[str, Query]] = [("the run", query)]
    shown_step: dict[str, Any] | None = None
    if run.steps:
        if not 1 <= number <= len(run.steps):
            raise InputError(f"run {run_id} has no step {number} at this cut: it has {len(run.steps)}")
        shown.append((f"step {number}", StepsQuery(run_id, str(cut), number)))
        shown_step, knew = step_at(view.log, run, number, cut)
        shown.append((f"what it knew by step {number}", knew))
    usage = summed(usage_of_run(run))
    drawn = timeline(run, view.get("scale"))
    fields = view.log.state(f"run/{run_id}", cut).fields
    return view.render(
        "run.html", title, cut, shown, is_live=not run.outcome, run={**NOT_WITHIN, **run_json(run)}, number=number,
        timeline=drawn, listed=list(step_rows(view.log, run, number, LISTED_AROUND, cut)),
        forks=_forks(view, run_id, cut),
        is_raw=bool(view.get("raw")),
        cost="" if usage is None else cost_text(usage),
        is_pinned=run.pinned,
        tokens={name: fields.get(f"{name}_tokens") for name in ("input", "output")}, shown=shown_step,
    )  # fmt: skip


def view_of(view: PageView, run_id: str) -> PageView:
    """Return the same page for another run."""
    return PageView(view.log, view.place, view.renderer, view.name, (run_id,), view.query)


def _forks(view: PageView, run_id: str, cut: Cut) -> list[dict[str, Any]]:
    """Return the forks of a run at the cut."""
    return [
        {"run": row.run, "outcome": row.outcome, "title": row.title}
        for row in view.log.runs(parent=run_id, at=cut, limit=LISTED_AROUND)
    ]
