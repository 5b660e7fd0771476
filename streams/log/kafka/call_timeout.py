"""Calls of Kafka's client that may never come back, whatever time they were given."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread


def within(timeout_s: float, call: Callable[[], None]) -> None:
    """Make a call, in a thread of its own; raises what it raises, and TimeoutError where it is not over by then.

    Nobody can end such a call: it keeps its thread, and what it was made on, until it comes back or the process ends.
    """
    answer: Future[None] = Future()

    def run() -> None:
        try:
            call()
        except BaseException as problem:
            answer.set_exception(problem)
        else:
            answer.set_result(None)

    Thread(target=run, name="refold-call", daemon=True).start()
    answer.result(timeout_s)
