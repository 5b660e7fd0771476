"""The agent of `refold demo --heal`: it reads a supplier's price list, page by page, and publishes it.

The last page names itself as its next page. The stand-in for a model follows it for ever, unless its instructions say
what to do with a page that was read before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import refold
from refold.policy import PolicyDenied

PUBLISHED = Path(__file__).with_name("published.jsonl")
PAGES = {1: {"kettle": 20, "next": 2}, 2: {"toaster": 35, "next": 3}, 3: {"mixer": 60, "next": 3}}
SYSTEM = "Read the price list page by page. Publish it when there is no next page."


@refold.tool
def fetch(page: int) -> dict[str, int]:
    """Return a page of the list, and the number of its next page."""
    return PAGES[page]


@refold.tool(effect="write")
def publish(prices: dict[str, int]) -> dict[str, int]:
    """Publish the list."""
    with PUBLISHED.open("a") as file:
        file.write(json.dumps(prices) + "\n")
    return {"published": len(prices)}


def model(*, system: str, pages: list[Any], following: int) -> dict[str, Any]:
    """Stand in for a model: return the next call, as the instructions say."""
    was_read = following in [page for page, _ in pages]
    call = {"tool": "publish"} if was_read and "twice" in system else {"tool": "fetch", "page": following}
    usage = {"prompt_tokens": 40 + 10 * len(pages), "completion_tokens": 12}
    return {"model": "gpt-4o-mini", "usage": usage, "call": call}


def watch(run: refold.Run) -> dict[str, int]:
    """Ask the model for the next call, and make it, until the list is published."""
    run.state.setdefault("pages", [])
    run.state.setdefault("next", 1)
    while True:
        with run.step("decide"):
            answer = run.model(model, system=SYSTEM, pages=run.state["pages"], following=run.state["next"])
            run.state["call"] = answer["call"]
        call = run.state["call"]
        if call["tool"] == "publish":
            with run.step("publish"):
                prices = {name: price for _, page in run.state["pages"] for name, price in page.items()}
                return publish(prices=prices)
        with run.step("fetch"):
            page = dict(fetch(page=call["page"]))
            run.state["next"] = page.pop("next")
            run.state["pages"].append([call["page"], page])


if __name__ == "__main__":
    with refold.open() as log:
        try:
            log.run("price-watch", entry="agent.py:watch").drive(watch)
        except PolicyDenied as denied:
            raise SystemExit(f"stopped: {denied}") from None
