"""Hand-made recordings with valid chains of hashes."""

from __future__ import annotations

from typing import Any

from refold.agents.journal.delta import edits
from refold.agents.journal.record import Attempt, Call, Failure, Kind, RecordedRequest, Recording, Step
from refold.agents.journal.self_replay import chained

Plain = Any
BEFORE = {"notes": [], "ticket": {"status": "new"}}
AFTER = {"ticket": {"status": "open"}, "notes": ["asked twice"]}
LOST = Failure(exception="builtins.TimeoutError", message="no answer after 30 s", traceback="File shop.py", at=5)


def tool(name: str, *args: Plain, answer: Plain = None, failure: Failure | None = None, **kwargs: Plain) -> Call:
    """Return a call of a tool."""
    request = {"args": list(args), "kwargs": kwargs}
    return Call(
        asked=RecordedRequest(kind="tool", name=name, request=request), answer=answer, failure=failure, started_at=10,
        duration_ms=2.5, key=f"t:1:{name}",
    )  # fmt: skip


def call(kind: Kind, name: str = "", request: Plain = None, answer: Plain = None) -> Call:
    """Return a call of another kind."""
    return Call(asked=RecordedRequest(kind=kind, name=name, request=request), answer=answer)


def refund_run(**changed: Any) -> Recording:
    """Return a run of three steps. It looks up an order, fails to refund once, refunds, and writes a mail."""
    read = {"version": 3, "state_hash": "aa", "observations": ["bb"], "cut": "cut:1.xyz", "fields": {"kind": "gift"}}
    steps = (
        Step(
            number=1, name="plan", outcome="succeeded", delta=edits(BEFORE, AFTER), result="refund",
            attempts=(Attempt(calls=(
                call("now", answer=1_790_000_000_000_000),
                call("read", "document/order-7", answer=read),
                tool("lookup", "7", answer={"price": 50.0, "paid_by": "ann@example.com"}),
                call("model", "chat", {"args": [], "kwargs": {"messages": ["refund?"]}}, {"text": "yes"}),
                call("decide", request={"choice": "refund", "why": "paid twice", "options": ["refund", "refuse"]}),
            ), started_at=1, ended_at=2),),
        ),
        Step(
            number=2, name="act", outcome="succeeded",
            attempts=(
                Attempt(number=1, calls=(tool("refund", "7", amount=50, failure=LOST),), failure=LOST, backoff_ms=200),
                Attempt(number=2, calls=(tool("refund", "7", amount=50, answer={"ok": True}),)),
            ),
        ),
        Step(
            number=3, name="tell", outcome="succeeded",
            attempts=(Attempt(calls=(tool("send_mail", "ann@example.com", answer=None),)),),
        ),
    )  # fmt: skip
    whole = {
        "run": "r-17", "agent": "refund-agent", "version": "1.4", "task": "ticket-7", "user": "u-1",
        "input": {"ticket": "7"}, "seed": 7, "state": BEFORE, "steps": steps, "status": "ended",
        "outcome": "succeeded", "output": {"refund": 50, "note": "done"}, "started_at": 1, "ended_at": 9, **changed,
    }  # fmt: skip
    return chained(Recording(**whole))
