"""The page of a run: its timeline, and one of its steps in full. It opens at the failure."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.structs import replace

from refold.agents.recordings.window import LongRun
from refold.agents.usage.of_runs import summed, usage_of_run
from refold.avro.errors import InputError, NotAnswerable
from refold.explorer.queries.open_runs import open_run
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import RunQuery, StepsQuery, clear_json, known_of
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.run_shapes import cost_text, run_json
from refold.explorer.views.related import related
from refold.explorer.views.step_view import opening_step, step_at, step_in_window, step_rows, step_with
from refold.explorer.web.timeline import timeline
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.cut import Cut

LISTED_AROUND = 60
# Keys that run_json leaves out if they do not apply.
NOT_WITHIN = {"caller": "", "caller_step": 0, "children": (), "synthetic_time": False}


def run_page(view: PageView) -> bytes:
    """Return one run at a cut, opened at a step. `find` in the address: at the first step that contains this text."""
    cut = view.cut()
    (given,) = view.path
    run_id = known_run(view.log, given, cut)
    if run_id != given:
        raise PageMoved(view_of(view, run_id).address())
    query = RunQuery(run_id, str(cut))
    long = LongRun(view.log, view.log.vault, run_id, cut)
    if long.count > view.limits.steps_loaded and not view.get("whole"):
        return _long_run_page(view, cut, long, query)
    try:
        run = view.log.recording(run_id, cut)
    except NotAnswerable as error:
        found = clear_json(view.log, run_id, cut, error)
        return view.render("run_clear.html", f"Run {run_id}", cut, [("this run", query)], run=found)
    title = run.title or f"Run {run_id}"
    number = view.number("step")
    if number is None and view.get("find"):
        raise PageMoved(view.address(step=step_with(run, view.get("find")), find=None))
    if number is None:
        number = opening_step(run)
    shown: list[tuple[str, Query]] = [("the run", query)]
    shown_step: dict[str, Any] | None = None
    if run.steps:
        if not 1 <= number <= len(run.steps):
            raise InputError(f"run {run_id} has no step {number} at this cut: it has {len(run.steps)}")
        shown.append((f"step {number}", StepsQuery(run_id, str(cut), number)))
        shown_step, knew = step_at(view.log, run, number, cut)
        if shown_step["has_entity"]:
            shown.append((f"what it knew by step {number}", knew))
    usage = summed(usage_of_run(run))
    drawn = timeline(run, view.get("scale"))
    fields = view.log.state(f"run/{run_id}", cut).fields
    return view.render(
        "run.html", title, cut, shown, is_live=not run.outcome, run={**NOT_WITHIN, **run_json(run)}, number=number,
        timeline=drawn, listed=list(step_rows(view.log, run, number, LISTED_AROUND, cut)), is_part=False,
        forks=_forks(view, run_id, cut), known=known_of(view.log, run, cut, is_now=False),
        related=related(view.log, run_id, cut), golden=fields.get("golden"),
        is_raw=bool(view.get("raw")),
        cost="" if usage is None else cost_text(usage),
        is_pinned=run.pinned,
        tokens={name: fields.get(f"{name}_tokens") for name in ("input", "output")}, shown=shown_step,
    )  # fmt: skip


def _long_run_page(view: PageView, cut: Cut, long: LongRun, query: RunQuery) -> bytes:
    """Return a run of many steps, of which only those around the shown one are read. `part=steps` in the address: only
    their list, for the script that continues it.
    """
    number = view.number("step")
    if number is None:
        number = 1 if long.head.outcome == "succeeded" else long.count
    if not 1 <= number <= long.count:
        raise InputError(f"run {long.head.run} has no step {number} at this cut: it has {long.count}")
    around = view.limits.steps_around
    found = long.window(number - around, number + around)
    run = replace(found.head, steps=found.steps)
    listed = list(step_rows(view.log, run, number, around, cut))
    tree = {**NOT_WITHIN, **run_json(run), "steps": found.total, "usage": None}
    given: dict[str, Any] = {"run": tree, "number": number, "listed": listed, "is_part": True}
    shown: list[tuple[str, Query]] = [("the run", query)]
    if view.get("part") == "steps":
        return view.render(
            "steps_list.html", "Steps", cut, shown, **{**given, "number": 0}, here=partial(view.address, part=None)
        )
    shown_step, knew = step_in_window(view.log, run, number, cut)
    shown.append((f"step {number}", StepsQuery(run.run, str(cut), number)))
    if shown_step["has_entity"]:
        shown.append((f"what it knew in step {number}", knew))
    fields = view.log.state(f"run/{run.run}", cut).fields
    return view.render(
        "run.html", run.title or f"Run {run.run}", cut, shown, is_live=not run.outcome, timeline=timeline(run, "step"),
        forks=_forks(view, run.run, cut), is_raw=bool(view.get("raw")), cost="", is_pinned=run.pinned,
        known=None if run.outcome or run.ended_at else open_run(view.log, run.run, long.count, cut, is_now=False),
        related=related(view.log, run.run, cut), golden=fields.get("golden"),
        tokens={name: fields.get(f"{name}_tokens") for name in ("input", "output")}, shown=shown_step, **given,
    )  # fmt: skip


def view_of(view: PageView, run_id: str) -> PageView:
    """Return the same page for another run."""
    return view.with_path(run_id)


def _forks(view: PageView, run_id: str, cut: Cut) -> list[dict[str, Any]]:
    """Return the forks of a run at the cut."""
    return [
        {"run": row.run, "outcome": row.outcome, "title": row.title}
        for row in view.log.runs(parent=run_id, at=cut, limit=LISTED_AROUND)
    ]
