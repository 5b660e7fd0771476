"""The page for operators: the condition of the log, unsettled effects, and refused records."""

from __future__ import annotations

from typing import Any

from refold.avro.errors import RefoldError
from refold.explorer.queries.deadletters import DeadLettersQuery
from refold.explorer.queries.effects import EffectsQuery
from refold.explorer.queries.operate import (
    ApprovalsQuery,
    DoctorQuery,
    MarkersQuery,
    RetentionQuery,
    SnapshotsQuery,
    VerifyQuery,
)
from refold.explorer.queries.query import Query
from refold.explorer.web.view import PageView


def operate_page(view: PageView) -> bytes:
    """Return the condition of the log now. In the address, `verify=1` also verifies the whole log, and `plan=1` plans
    retention, which reads every run.
    """
    queries: dict[str, Query] = {
        "doctor": DoctorQuery(view.place),
        "effects": EffectsQuery("unknown"),
        "questions": ApprovalsQuery(),
        "letters": DeadLettersQuery(),
        "snapshots": SnapshotsQuery(),
        "markers": MarkersQuery(),
    }
    on_request: dict[str, Query] = {"plan": RetentionQuery(), "verify": VerifyQuery()}
    queries |= {name: query for name, query in on_request.items() if view.get(name)}
    answers: dict[str, Any] = dict.fromkeys(on_request)
    problems: dict[str, str] = {}
    for name, query in queries.items():
        try:
            answers[name] = query.answer(view.log)
        except RefoldError as error:  # the other answers are still useful
            answers[name], problems[name] = None, str(error)
    names = {
        "doctor": "the examination", "effects": "unsettled effects", "questions": "calls that wait for a person",
        "letters": "dead letters", "snapshots": "snapshots", "markers": "markers", "plan": "the retention plan",
        "verify": "the full check",
    }  # fmt: skip
    shown = [(names[name], query) for name, query in {**queries, **on_request}.items()]
    is_live = not any(map(view.get, on_request))
    return view.render("operate.html", "Operate", None, shown, is_live=is_live, problems=problems, **answers)
