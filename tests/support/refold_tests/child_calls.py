"""Tool calls that other processes make. The functions can be imported there by name."""

from __future__ import annotations

import multiprocessing.queues
from pathlib import Path

import refold
from refold.agents.recorder.context import StrayCall


@refold.tool(effect="write")
def pay(to: str) -> str:
    with Path(to).open("a") as paid:
        print("paid", file=paid)
    return "paid"


def said(to: str, how: str = "") -> str:
    """Make a call, for use in another process; return its result, or the message of the StrayCall."""
    try:
        if how == "unrecorded":
            with refold.unrecorded():
                return pay(to)
        if how == "run":
            with refold.open(f"file:{to}-log") as log, log.run("inner"):
                return pay(to)
        return pay(to)
    except StrayCall as error:
        return str(error)


def work(to: str, queue: multiprocessing.queues.SimpleQueue[str]) -> None:
    queue.put(said(to))
