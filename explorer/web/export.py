"""A run, or a comparison of two, as one file that any browser opens. It needs no refold, no script and no request.

With a redactor, every recorded tree is redacted as a whole before it is drawn, so secrets are recognized by their names
and positions too.
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
"""The maximum number of characters of one value. It is large, because a file cannot link to a page with the rest."""


def run_file(log: AgentLog, run: str, at: str | None, redact: Redact | None, log_url: str | None) -> bytes:
    """Return a run with all its steps, as HTML.

    Args:
        log: The log to read.
        run: The id of the run, or the beginning of it.
        at: The point, as WHEN; None: now.
        redact: Removes secrets from each recorded tree; None: nothing is removed.
        log_url: The log that the shown commands name; None: REFOLD_LOG names it.

    Raises:
        UnknownEntity: There is no such run.
        NotAnswerable: The content of the run is gone.
    """
    cut = log.point(at).cut
    run_id = known_run(log, run, cut)
    found = log.recording(run_id, cut)
    hide = redact or _unchanged
    shown = [
        step_shown(log, found, step, begun_with(found, step.number, before), after, cut, hide)[0]
        for step, (before, after) in zip(found.steps, pairwise(states(found)), strict=False)
    ]
    tree = cast("dict[str, Any]", hide(run_json(found)))
    return _file(
        "export_run.html", f"{tree['title'] or f'Run {run_id}'}", cut, redact, log_url,
        [("the run", RunQuery(run_id, str(cut)))], run={**NOT_WITHIN, **tree}, shown=shown, number=opening_step(found),
        timeline=timeline(found)._replace(scales=()), here=lambda step, **_: f"#step-{step}",
    )  # fmt: skip


def comparison_file(
    log: AgentLog, a: str, b: str, at: str | None, redact: Redact | None, log_url: str | None
) -> bytes:  # fmt: skip
    """Return two runs side by side, from their first difference, as HTML. Arguments and errors are those of
    run_file.
    """
    cut = log.point(at).cut
    query = CompareQuery(known_run(log, a, cut), known_run(log, b, cut), str(cut))
    shown = comparison(log, query, redact)
    return _file("export_compare.html", cell(shown["lines"][0], 200), cut, redact, log_url,
                 [("where they part", query)], shown=shown)  # fmt: skip


def _unchanged(tree: Any) -> Any:
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
