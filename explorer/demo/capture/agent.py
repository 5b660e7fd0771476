"""A small agent that does not use refold: it asks a model, runs the tools that the model calls, and repeats.

OPENAI_BASE_URL=... python agent.py ORDER
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from typing import Any

ORDERS = {"o-7": {"paid": True, "eur": 42}, "o-8": {"paid": False, "eur": 17}}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("find_order", "refund")
]


def find_order(order: str) -> Any:
    """Return what is known about an order."""
    return ORDERS.get(order, {})


def refund(order: str, eur: int) -> Any:
    """Pay the money back."""
    return {"refunded": order, "eur": eur}


def ask(messages: list[Any]) -> Any:
    """Ask the model; return its next message."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "stand-in", "messages": messages, "tools": TOOLS}).encode(),
        {"Content-Type": "application/json", "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]


def main(order: str) -> None:
    """Handle one refund request."""
    messages: list[Any] = [{"role": "user", "content": f"Refund order {order} if it was paid."}]
    while True:
        reply = ask(messages)
        messages.append(reply)
        if not reply.get("tool_calls"):
            print(reply["content"])
            return
        for call in reply["tool_calls"]:
            given = json.loads(call["function"]["arguments"])
            result = refund(**given) if call["function"]["name"] == "refund" else find_order(**given)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})


if __name__ == "__main__":
    main(sys.argv[1])
