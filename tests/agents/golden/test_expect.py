"""Expectations: valid ones are parsed and checked; the error of an invalid one says how to write it."""

from __future__ import annotations

from typing import Any

import pytest

from refold.agents.golden.check import unmet
from refold.agents.golden.expect import Expectation, expectation
from refold.agents.golden.run_summary import RunSummary
from refold.avro.errors import InputError
from refold_tests.refunds import LOST, refund_run

MET = [
    "exact",
    "outcome=succeeded",
    "outcome != failed",
    "tools=lookup,refund,refund,send_mail",
    "tools=lookup,...,send_mail",
    "tools=...",
    "tools=...,refund,...,...",
    "tools=4",
    "tools<=7",
    "steps=plan,act,tell",
    "steps>2",
    "decisions=refund",
    "decisions=1",
    "model_calls=1",
    "reads=1",
    "refund=2",
    "lookup<=3",
    "search_docs=0",
    "tool.search_docs<1",
    "state[0].ticket.status=new",
    "state[3].ticket.status=open",
    "state.ticket.status==open",
    'state["ticket"].status="open"',
    "state.notes[0]~twice",
    "state.notes[-1]=asked twice",
    "state.notes~asked twice",
    "state~ticket",
    'state.ticket={"status": "open"}',
    "state.absent!=1",
    "output.refund=50",
    "output.refund=50.0",
    "output.refund<=50",
    "output.note>=done",
    "error=null",
]
UNMET = {
    "outcome=failed": "outcome is",
    "tools=lookup,refund,send_mail": ">",
    "tools=...,lookup": "expected",
    "tools=": "made",
    "refund<=1": "made 2 calls of refund",
    "search_docs=1": "it called lookup, refund, send_mail",
    "steps=2": "made 3 steps",
    "decisions=refuse": "refund",
    "state[3].ticket.status=closed": 'state[3].ticket.status is "open"',
    "state[4].ticket=1": "the run has 3",
    "state.ticket.owner=ann": 'state.ticket.owner is not there; state.ticket is {"status": "open"}',
    "state.notes[1]=x": "state.notes[1] is not there",
    'output.refund="50"': "output.refund is 50 (a number, where a text is expected)",
    "output.refund<50": "output.refund is 50",
    "output.note<50": "output.note is",
    "output~fee": "output is",
    "error=TimeoutError": "it did not fail",
    "error~30 s": "it did not fail",
    "error!=null": "it did not fail",
}
REFUSED = {
    "outcome": "has no comparison",
    "=3": "what to compare",
    "outcome=ok": "succeeded, failed",
    "outcome.x=failed": "outcome=succeeded",
    "lookup~3": "lookup<=3",
    "lookup=many": "a number",
    "order.status=open": "state.ticket.status=open",
    "tools<=a,b": "names in their order",
    "tools=a,,b": "between two commas",
    "state[-1].x=1": "counted from 1",
    "state.items[x]=1": "'[x]'",
    "output.a<=true": "numbers, or texts",
    "error<=3": "error=TimeoutError",
    "lookup<=-1": "a number",
}


@pytest.mark.parametrize("text", MET)
def test_satisfied_expectations_pass(text: str) -> None:
    run = refund_run()
    assert unmet(expectation(text), RunSummary(run), run.hash) == ""


@pytest.mark.parametrize(("text", "said"), UNMET.items())
def test_failed_expectations_are_reported(text: str, said: str) -> None:
    run = refund_run()
    assert said in unmet(expectation(text), RunSummary(run), run.hash)


@pytest.mark.parametrize(("text", "said"), REFUSED.items())
def test_unusable_expectation_explains_the_usage(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        expectation(text)
    assert said in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("state[3].ticket.status=open",
         {"subject": "value", "name": "state", "step": 3, "path": ("ticket", "status"), "value": "open"}),
        ('state["a=b"][0] != "x"',
         {"subject": "value", "name": "state", "path": ("a=b", 0), "operator": "!=", "value": "x"}),
        ("tool.state.load<=3",
         {"subject": "count", "name": "state.load", "is_tool": True, "operator": "<=", "value": 3}),
        ("mcp.docs-search=2", {"subject": "count", "name": "mcp.docs-search", "is_tool": True, "value": 2}),
        ("tools=a, b ,...", {"subject": "sequence", "name": "tools", "value": ["a", "b", "..."]}),
        ('output.total=="50"', {"subject": "value", "name": "output", "path": ("total",), "value": "50"}),
    ],
)  # fmt: skip
def test_text_expectations(text: str, given: dict[str, Any]) -> None:
    assert expectation(text) == Expectation(text=text, **given)


def test_sequences_are_shown_side_by_side() -> None:
    run = refund_run()
    assert unmet(expectation("tools=lookup,refund,send_mail,close"), RunSummary(run), run.hash).splitlines() == [
        "       expected   made",
        "     1 lookup     lookup",
        "     2 refund     refund",
        ">    3 -          refund",
        "     4 send_mail  send_mail",
        ">      close      -",
    ]
    assert unmet(expectation("tools=lookup,...,close"), RunSummary(run), run.hash).splitlines() == [
        "       expected  made",
        "     ...",
        "     2 ...       refund",
        "     3 ...       refund",
        "     4 ...       send_mail",
        ">      close     -",
    ]


def test_failure_outcome_is_reported() -> None:
    did = RunSummary(refund_run(outcome="failed", failure=LOST, output=None))
    for text in ("error=TimeoutError", "error=builtins.TimeoutError", "error~30 s", "error!=KeyError", "error!=null"):
        assert unmet(expectation(text), did, "") == ""
    for text in ("error=KeyError", "error=null", "error~found"):
        assert "TimeoutError" in unmet(expectation(text), did, "")
    assert "no answer after 30 s" in unmet(expectation("outcome=succeeded"), did, "")


def test_actions_are_accessible() -> None:
    did = RunSummary(refund_run())
    assert did.tools == ["lookup", "refund", "refund", "send_mail"]
    assert did.steps == ["plan", "act", "tell"]
    assert did.decisions == ["refund"]
    assert did.calls("refund")[1].answer == {"ok": True}
    assert did.state_at(0)["ticket"]["status"] == "new"
    assert did.state_at(1) == did.state
    with pytest.raises(InputError, match="no step 4"):
        did.state_at(4)
