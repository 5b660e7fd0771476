"""A run, or two compared, as one file that any browser opens: without refold, without a script, without a request.

With a redactor every recorded tree passes it before it is drawn, so names and places of secrets are known to it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

from markupsafe import Markup

import refold
from refold.agents.journal.self_replay import begun_with, states
from refold.agents.log import AgentLog
from refold.agents.redaction.redactor import Redact
from refold.explorer.queries.compare import CompareQuery
from refold.explorer.queries.query import Query
from refold.explorer.queries.run import RunQuery
from refold.explorer.queries.run_names import known_run
from refold.explorer.queries.run_shapes import run_json
from refold.explorer.views.comparison import comparison
from refold.explorer.views.recorded_text import cell
from refold.explorer.views.step_view import opening_step, step_shown
from refold.explorer.web.rendering import Renderer, assets
from refold.explorer.web.run_page import NOT_WITHIN
from refold.explorer.web.timeline import timeline
from refold.streams.cut import Cut

SHOWN_MAX = 2_000_000
"""Characters of one value: a file has no page to link to for the rest."""


def run_file(log: AgentLog, run: str, at: str | None, redact: Redact | None, log_url: str | None) -> bytes:
    """A run with all its steps. UnknownEntity or NotAnswerable where there is none, or its content is gone."""
    cut = log.point(at).cut
    run_id = known_run(log, run, cut)
    found = log.recording(run_id, cut)
    hide = redact or _as_it_is
    shown = [
        step_shown(log, found, step, begun_with(found, step.number, before), after, cut, hide)[0]
        for step, (before, after) in zip(found.steps, pairwise(states(found)), strict=False)
    ]
    told = cast("dict[str, Any]", hide(run_json(found)))
    return _file(
        "export_run.html", f"{told['title'] or f'Run {run_id}'}", cut, redact, log_url,
        [("the run", RunQuery(run_id, str(cut)))], run={**NOT_WITHIN, **told}, shown=shown, number=opening_step(found),
        timeline=timeline(found)._replace(scales=()), here=lambda step, **_: f"#step-{step}",
    )  # fmt: skip


def comparison_file(
    log: AgentLog, a: str, b: str, at: str | None, redact: Redact | None, log_url: str | None
) -> bytes:  # fmt: skip
    """Two runs side by side, from where they part. Errors as run_file."""
    cut = log.point(at).cut
    query = CompareQuery(known_run(log, a, cut), known_run(log, b, cut), str(cut))
    shown = comparison(log, query, redact)
    return _file("export_compare.html", cell(shown["lines"][0], 200), cut, redact, log_url,
                 [("where they part", query)], shown=shown)  # fmt: skip


def _as_it_is(tree: Any) -> Any:
    return tree


def _file(
    template: str, title: str, cut: Cut, redact: Redact | None, log_url: str | None, queries: list[tuple[str, Query]],
    **given: Any,
) -> bytes:  # fmt: skip
    renderer = Renderer(log_url, SHOWN_MAX)
    styles = assets()["explorer.css"][0].decode()
    return renderer.page(template, {
        "title": title, "at": str(cut), "cut_short": cut.short, "version": refold.__version__,
        "is_redacted": redact is not None, "styles": Markup(styles),
        "commands": [(what, renderer.command(query)) for what, query in queries], **given,
    })  # fmt: skip
