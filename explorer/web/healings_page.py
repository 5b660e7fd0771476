"""The page of healings: how each kind of failure fared, and every attempt with its proof."""

from __future__ import annotations

from refold.explorer.queries.healings import HealingsQuery
from refold.explorer.web.view import PageView


def healings_page(view: PageView) -> bytes:
    """Return the attempts to heal runs, the newest first. `run` in the address: only those for this run."""
    run = view.get("run")
    query = HealingsQuery(run)
    found = query.answer(view.log)
    return view.render(
        "healings.html", "Healings", None, [("the attempts, and how each failure fared", query)], is_live=True,
        failures=found["failures"], healings=found["healings"][::-1], run=run,
    )  # fmt: skip
