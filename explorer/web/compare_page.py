"""The pages that compare: two runs, opened at their first difference, and two moments."""

from __future__ import annotations

from refold.explorer.queries.compare import CompareQuery
from refold.explorer.queries.entity import DiffQuery
from refold.explorer.views.comparison import comparison
from refold.explorer.web.view import PageView

CHOSEN_FROM = 100
ROWS_MAX = 300


def compare_page(view: PageView) -> bytes:
    """Return two runs side by side. If fewer than two are given, return a list to choose from."""
    cut = view.cut()
    a, b = view.get("a"), view.get("b")
    if not (a and b):
        rows = view.log.runs(at=cut, limit=CHOSEN_FROM)
        return view.render("compare_choose.html", "Compare", cut, [], rows=rows, a=a, b=b)
    query = CompareQuery(a, b, str(cut), exact=bool(view.get("exact")))
    shown = comparison(view.log, query)
    return view.render("compare.html", "Compare", cut, [("where they part", query)], is_exact=query.exact, shown=shown)


def diff_page(view: PageView) -> bytes:
    """Return the changes from one moment to another, of one entity or of the whole log."""
    entity = view.get("entity") or None
    clock = view.get("clock") or "recorded"
    before, after = (view.cut(entity, name, clock) for name in ("a", "b"))
    query = DiffQuery(str(before), str(after), entity)
    rows = query.answer(view.log)
    return view.render(
        "diff.html", "What changed", after, [("what changed", query)], rows=rows[:ROWS_MAX], total=len(rows),
        entity=entity, entities=len({row["entity"] for row in rows}), a=str(before), a_short=before.short,
    )  # fmt: skip
