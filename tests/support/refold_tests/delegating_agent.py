"""An agent that delegates to nested runs, found by name. Each effect appends a line to the file that DELEGATED
names.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import refold

WORLD = "DELEGATED"


@refold.tool(effect="write")
def send(text: str, *, idempotency_key: str = "") -> str:
    """Append the text to the file."""
    with Path(os.environ[WORLD]).open("a") as file:
        file.write(f"{text}\n")
    return f"sent {text}"


def clerk(run: refold.Run) -> str:
    """Run at the second level of nesting."""
    if os.environ.get("DELEGATED_DIES") == run.input:
        os.kill(os.getpid(), 9)
    return run.step("send", send, f"{run.input} by a clerk")


def worker(run: refold.Run) -> str:
    """Run at the first level of nesting."""
    with run.step("delegate"):
        run.state["limit"] = run.read("tool_config/acme").fields["rate_limit"]
        return str(run.child("clerk", input=run.input).drive(clerk))


def agent(run: refold.Run) -> list[str]:
    """Start two workers concurrently, then a third."""
    with run.step("at once"), ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda of: run.child("worker", input=of).drive(worker), ("a", "b")))
    return [*found, run.child("worker", input="c").drive(worker)]


def other(run: refold.Run) -> str:
    """Do nothing in the step `at once`, then start a worker that sends something new."""
    with run.step("at once"):
        pass
    return str(run.child("worker", input="d").drive(worker))
