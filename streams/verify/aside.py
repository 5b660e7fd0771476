"""A question that others answer, asked in a thread of its own while the checks here go on."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Aside(Generic[Answer]):
    """Asks at once. Nobody waits for the answer of a check that was given up."""

    def __init__(self, ask: Callable[[], Answer]) -> None:
        self._ask = ask
        self._answers: list[Answer] = []
        self._problem: Exception | None = None
        self._thread = Thread(target=self._run, name="refold-verify", daemon=True)
        self._thread.start()

    def answer(self) -> Answer:
        """The answer, once it is there; raises what the question raised."""
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._answers[0]

    def _run(self) -> None:
        try:
            self._answers.append(self._ask())
        except Exception as problem:
            self._problem = problem
