"""The page for operators: the condition of the log, unsettled effects, and refused records."""

from __future__ import annotations

from typing import Any

from refold.avro.errors import RefoldError
from refold.explorer.queries.deadletters import DeadLettersQuery
from refold.explorer.queries.effects import EffectsQuery
from refold.explorer.queries.operate import ApprovalsQuery, DoctorQuery, MarkersQuery, VerifyQuery
from refold.explorer.queries.query import Query
from refold.explorer.web.view import PageView


def operate_page(view: PageView) -> bytes:
    """Return the condition of the log now. `verify=1` in the address also verifies the whole log."""
    queries: dict[str, Query] = {
        "doctor": DoctorQuery(view.place),
        "effects": EffectsQuery("unknown"),
        "questions": ApprovalsQuery(),
        "letters": DeadLettersQuery(),
        "markers": MarkersQuery(),
    }
    if view.get("verify"):
        queries["verify"] = VerifyQuery()
    answers: dict[str, Any] = {"verify": None}
    problems: dict[str, str] = {}
    for name, query in queries.items():
        try:
            answers[name] = query.answer(view.log)
        except RefoldError as error:  # the other answers are still useful
            answers[name], problems[name] = None, str(error)
    names = {
        "doctor": "the examination", "effects": "unsettled effects", "questions": "calls that wait for a person",
        "letters": "dead letters", "markers": "markers", "verify": "the full check",
    }  # fmt: skip
    shown = [(names[name], query) for name, query in queries.items()]
    if not view.get("verify"):
        shown.append((names["verify"], VerifyQuery()))
    return view.render(
        "operate.html", "Operate", None, shown, is_live=not view.get("verify"), problems=problems, **answers
    )
