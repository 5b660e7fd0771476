"""Agents of a refund desk, and their runs, recorded and read back, for tests of golden traces."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import Golden
from refold.agents.journal.record import Recording
from refold.agents.recorder.log_backend import read_again

SENT: list[str] = []
"""The messages that were really sent."""


@refold.tool(effect="read")
def price(order: str) -> int:
    """A read tool."""
    SENT.append(f"price {order}")
    return 50


@refold.tool(effect="write")
def refund(order: str, amount: int) -> dict[str, int]:
    """A write tool."""
    SENT.append(f"refund {order} {amount}")
    return {"refunded": amount}


def chat(messages: list[str]) -> str:
    """A model's client."""
    SENT.append("chat")
    return "refund" if messages else "refuse"


def without_mail(tree: Any) -> Any:
    """Redact mail addresses."""
    return json.loads(json.dumps(tree).replace("ann@example.com", "[mail]"))


def agent(run: refold.Run) -> dict[str, Any]:
    """Look up an order, decide, and refund it."""
    with run.step("look"):
        known = run.read("document/order-7").fields
        amount = price(run.input["order"])
        run.state["seen"] = {"amount": amount, "kind": known["fields"]["kind"], "at": run.now().isoformat()}
    with run.step("act"):
        run.decide(run.model(chat, messages=["refund?"]), why="asked")
        refunded = refund(run.input["order"], amount)["refunded"]
        run.observe("document/order-7", {"fields": {"refunded": refunded}})
        run.state["seen"]["done"] = True
    return {"refund": refunded, "chance": run.random(), "name": run.uuid()}


def recorded(folder: Path, agent: Callable[[refold.Run], Any], run_id: str = "r-1", **given: Any) -> Recording:
    """Record a run of the agent in a log in the folder, and read it back. The agent may raise."""
    with refold.open(f"file:{folder / 'log'}") as log:
        log.observe("document/order-7", {"fields": {"kind": "gift", "mail": "ann@example.com"}}, source="shop")
        run = log.run("desk", id=run_id, input={"order": "7"}, seed=7, **given)
        with contextlib.suppress(ZeroDivisionError):
            run.drive(agent)
        return log.recording(run_id)


def golden_run(folder: Path, agent: Callable[[refold.Run], Any], **given: Any) -> Golden:
    """Record a run, and return its golden trace. given: arguments of golden_of_run."""
    run = recorded(folder, agent)
    with refold.open(f"file:{folder / 'log'}") as log:
        return golden_of_run(
            run, lambda entity, answer: read_again(log, entity, answer).shown(), **{"entry": "desk:agent", **given}
        )
