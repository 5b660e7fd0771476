"""A log, a clock that tests set, and ledgers as separate processes would use them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import refold
from refold.agents.effects.keys import StepKeys
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.order import Order

# Long enough not to occur in RocksDB's own log by chance.
CARD = "4242 4242 4242 4242"
ARGUMENTS = {"kwargs": {"order": 7, "amount": 50.0}}
LEASE_S = 60.0


class World:
    """A log, a clock that advances when a process sleeps, and ledgers as separate processes would use them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = 1_000_000_000
        self.slept: list[float] = []
        self.tokens = iter(range(10**9))
        self.log = refold.open(f"file:{path}")

    def ledger(self, **more: Any) -> Ledger:
        return Ledger(self.log, lambda: self.now, lambda: str(next(self.tokens)), sleep=self.sleep, **more)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += int(seconds * 1e6)

    def status(self, order: Order) -> str:
        return self.ledger().effect(order.key).status

    def restarted(self) -> None:
        """Reopen the log, as after a crash: only the log is left."""
        self.log.close()
        self.log = refold.open(f"file:{self.path}")


def ordered(run: str = "r-1", step: int = 1) -> Order:
    return Order(StepKeys("task", step).next("pay", ARGUMENTS), "pay", ARGUMENTS, run=run, agent="a", step=f"{run}#1")


class Service:
    """The service that a tool calls. It returns its answers in turn and repeats the last one; exceptions are raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.keys: list[str] = []

    def __call__(self, key: str) -> Any:
        self.keys.append(key)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer
