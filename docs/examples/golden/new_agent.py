"""The refund desk, mended: the first payment is kept, and the policy is read once."""

from __future__ import annotations

from typing import Any

from shop import chat, lookup_order, refund, search_docs, send_mail

import refold


def answer(run: refold.Run) -> dict[str, Any]:
    """Answer a customer who paid more than once."""
    with run.step("look up"):
        order = lookup_order(run.input["order"])
        policy = search_docs("refunded")
        run.state["case"] = {"payments": len(order["payments"]), "status": "open"}
    with run.step("decide"):
        system = {"role": "system", "content": " ".join(policy)}
        said = run.model(chat, messages=[system, {"role": "user", "content": run.input["text"]}])["say"]
        run.decide(said, why="what the model reads in the policy", options=["refund", "refuse"])
    with run.step("act"):
        given = [refund(payment, order["price"])["refunded"] for payment in order["payments"][1:]]
        run.state["case"]["status"] = "refunded"
    with run.step("tell"):
        send_mail(run.input["customer"], "Your money is on its way.")
    return {"refund": sum(given)}
