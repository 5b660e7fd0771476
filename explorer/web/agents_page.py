"""The page of supervised agents: what each should do, what it does, and who owns it."""

from __future__ import annotations

from refold.explorer.queries.agents import AgentsQuery
from refold.explorer.web.view import PageView


def agents_page(view: PageView) -> bytes:
    """Return the agents as they are now: whether an owner's lease lasts depends on the time, and not on a cut."""
    query = AgentsQuery()
    return view.render(
        "agents.html", "Agents", None, [("these agents", query)], is_live=True, agents=query.answer(view.log)
    )
