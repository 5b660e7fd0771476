"""A refund desk: an agent with a bug, and its failing run, which docs/INCIDENT.md analyses.

It looks up an order, asks a model which item to refund, computes the amount, pays it back, and writes to the customer.
The shop, the payment provider and the model are simulated, and always answer the same. The fix is in desk_fixed.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import refold

AGENT = "refund-desk"
RUN = "incident-1"
INPUT = {"order": "1042", "complaint": "The kettle leaks. I want my money back."}

SHOP = {"1042": {"customer": "c-77", "items": [
    {"name": "mug", "price": "8.50"},
    {"name": "kettle", "price": "19.99"},
]}}  # fmt: skip
CAPTURED_CENTS = {"mug": 850, "kettle": 1999}


class PaymentRefused(Exception):
    """The payment provider refused the refund."""


@refold.tool(effect="read", name="shop.order")
def find_order(order: str) -> dict[str, Any]:
    """Return the order as the shop has it."""
    return SHOP[order]


@refold.tool(effect="write", name="payments.refund", safe=(PaymentRefused,))
def refund(order: str, item: str, cents: int, *, idempotency_key: str = "") -> dict[str, Any]:
    """Refund an item. The provider accepts only the exact price in cents."""
    if cents != CAPTURED_CENTS[item]:
        raise PaymentRefused(f"order {order}: {cents} cents is not what was captured for the {item}")
    return {"refund": f"r-{order}-{item}", "cents": cents}


@refold.tool(effect="write", name="mail.send")
def send_mail(to: str, text: str, *, idempotency_key: str = "") -> dict[str, Any]:
    """Send a mail to a customer."""
    return {"sent": True}


def model(messages: list[dict[str, str]]) -> dict[str, str]:
    """Stand in for a language model."""
    complaint = messages[-1]["content"]
    return {"item": "kettle" if "kettle" in complaint else "mug", "reason": "the customer says that it leaks"}


def agent(run: refold.Run) -> dict[str, Any]:
    """The agent as it was deployed."""
    return work(run, cents_of)


def cents_of(price: str) -> int:
    """Return a price in cents."""
    return int(float(price) * 100)


def work(run: refold.Run, cents: Callable[[str], int]) -> dict[str, Any]:
    """Handle one complaint, from the order to the answer.

    Args:
        run: The run. Its input names the order and holds the complaint.
        cents: Converts a price to cents.
    """
    number, complaint = run.input["order"], run.input["complaint"]
    with run.step("look-up"):
        run.state["order"] = find_order(number)
    with run.step("decide"):
        answer = run.model(model, messages=[{"role": "user", "content": complaint}])
        run.decide(f"refund the {answer['item']}", why=answer["reason"], options=["refund an item", "ask a colleague"])
        run.state["item"] = answer["item"]
    with run.step("price"):
        [item] = [each for each in run.state["order"]["items"] if each["name"] == run.state["item"]]
        run.state["cents"] = cents(item["price"])
    with run.step("pay"):
        paid = refund(number, run.state["item"], run.state["cents"])
        run.state["refund"] = paid["refund"]
    with run.step("answer"):
        send_mail(run.state["order"]["customer"], f"We paid {run.state['cents']} cents back: {paid['refund']}.")
    return {"refunded": run.state["cents"]}


def fail(log: refold.AgentLog) -> None:
    """Record the failing run.

    Raises:
        InputError: The log has this run already.
    """
    if log.states([f"run/{RUN}"]):
        raise refold.InputError(f"{log.port.url}: run {RUN} is in this log already; give another log")
    try:
        log.run(AGENT, version="1.0", input=INPUT, seed=7, id=RUN, user="c-77", title="A leaking kettle",
                entry=f"{__name__}:agent").drive(agent)  # fmt: skip
    except PaymentRefused:
        return
