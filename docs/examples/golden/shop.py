"""What the refund desk works with: tools and a model, made up. In earnest they would be an API and a client."""

from __future__ import annotations

from typing import Any

import refold

ORDERS = {"7": {"price": 50, "payments": ["p-1", "p-2", "p-3", "p-4"]}}
POLICY = ["What was paid twice is refunded.", "Gifts are not refunded."]


@refold.tool(effect="read")
def lookup_order(order: str) -> dict[str, Any]:
    """An order, by its number."""
    return ORDERS[order]


@refold.tool(effect="read")
def search_docs(word: str) -> list[str]:
    """The lines of the policy with a word in them."""
    return [line for line in POLICY if word in line]


@refold.tool(effect="write")
def refund(payment: str, amount: int) -> dict[str, Any]:
    """Give a payment back."""
    return {"refunded": amount}


@refold.tool(effect="write")
def send_mail(to: str, text: str) -> None:
    """Write to a customer."""


def chat(messages: list[dict[str, str]]) -> dict[str, str]:
    """A model's client: with the policy before it, it says what to do."""
    return {"say": "refund" if "twice" in messages[0]["content"] else "refuse"}
