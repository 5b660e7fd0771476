"""The ledger's protocol among processes that take turns, die, and see the log with delay. Time and world are simulated.

The external service carries out a call at once or later, but within half of the lease, and counts the calls.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refold.agents.effects.claims import EffectState
from refold.agents.effects.errors import NotDone
from refold.agents.effects.order import Done, Order, Terms
from refold.agents.effects.protocol import CallRequest, Command, Logged, Protocol, Wait

LEASE_MICROS = 1_000_000
KEY = "task:1:pay:0"


@dataclass
class World:
    """The log of one effect, the clock, and the external service. arrivals: the times at which sent calls are
    carried out.
    """

    rng: random.Random
    now: int = 1
    said: list[tuple[dict[str, Any], tuple[str, ...]]] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)

    def took_place(self) -> int:
        """Return how often the call has been carried out by now."""
        return sum(at <= self.now for at in self.arrivals)

    def probe(self, key: str, arguments: object) -> Done:
        """Return whether the call has been carried out by now."""
        if self.took_place():
            return Done("paid")
        raise NotDone("not there")


class WorldsBook:
    """One process's view of the log: it sees its own entries at once, and those of others possibly later."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._least = 0

    def read(self, key: str, known: EffectState | None = None, own: object = None) -> EffectState:
        standing = known or EffectState()
        self._least = max(self._least, standing.offset)
        self._least = end = self._world.rng.randint(self._least, len(self._world.said))
        for patch, cleared in self._world.said[standing.offset : end]:
            standing.apply(patch, cleared)
        standing.offset = end
        return standing

    def say(self, order: Order, patch: dict[str, Any], *, priority: int = 0, cleared: tuple[str, ...] = (),
            is_durable: bool = True) -> None:  # fmt: skip
        if is_durable or self._world.rng.random() < 0.5:
            self._world.said.append((patch, cleared))
            self._least = len(self._world.said)

    def sealed(self, order: Order, field: str, value: Any) -> Any:
        return value

    def inputs(self, order: Order) -> Any:
        return order.arguments

    def opened(self, key: str, field: str, stored: Any) -> Any:
        return stored

    def sealed_result(self, order: Order, result: object) -> tuple[Any, Any]:
        return json.dumps(result), result

    def result(self, key: str, stored: Any) -> Any:
        return json.loads(stored)

    def redacted(self, order: Order, tree: Any) -> Any:
        return tree


class Process:
    """One process that performs the order. `ended`: ("returned", value), ("raised", error) or ("died",)."""

    def __init__(self, world: World, run: str, *, is_probing: bool, luck: float, attempts_max: int) -> None:
        self.world = world
        self.ended: tuple[Any, ...] = ()
        self.asleep_until = 0
        self._luck = luck
        book: Any = WorldsBook(world)
        protocol = Protocol(book, lambda: world.now, lambda: f"{world.rng.getrandbits(64):x}")
        terms = Terms(attempts_max=attempts_max, backoff_ms=100, lease_s=LEASE_MICROS / 1e6,
                      probe=world.probe if is_probing else None)  # fmt: skip
        self._steps = protocol.perform(Order(KEY, "pay", {"args": []}, run=run), self._send, terms)
        self._next: Callable[[], Command] = lambda: next(self._steps)

    def turn(self) -> None:
        """Carry out one command, or die before or after it."""
        try:
            command = self._next()
        except StopIteration as ended:
            self.ended = ("returned", ended.value)
            return
        except Exception as error:
            self.ended = ("raised", error)
            return
        if self.world.rng.random() < 0.03 * (1 - self._luck):
            return self.die()
        try:
            answer = self._done(command)
        except BaseException as error:  # bound to another name, because `error` is deleted after the block
            raised = error
            self._next = lambda: self._steps.throw(raised)
        else:
            self._next = lambda: self._steps.send(answer)
        if self.world.rng.random() < 0.03 * (1 - self._luck):
            self.die()

    def die(self) -> None:
        """Die as by SIGKILL: nothing more is recorded."""
        self._steps.close()
        self.ended = ("died",)

    def _done(self, command: Command) -> Any:
        if isinstance(command, Logged):
            self.world.now += self.world.rng.choice([0, 0, 10, 1000, 1000, 200_000])
            return command.work()
        if isinstance(command, Wait):
            self.asleep_until = self.world.now + max(1, int(command.seconds * 1e6))
            return None
        assert isinstance(command, CallRequest)
        return command.function(*command.arguments)

    def _send(self, key: str) -> str:
        """Return or raise one of the possible results of a call of the external service."""
        assert key == KEY
        world, rng = self.world, self.world.rng
        world.now += rng.choice([0, 100, 10_000])
        if rng.random() < self._luck:
            world.arrivals.append(world.now)
            return "paid"
        fate = rng.choice(["refused", "lost", "done, answer lost", "late"])
        if fate == "refused":
            raise NotDone("503")
        if fate == "done, answer lost":
            world.arrivals.append(world.now)
        elif fate == "late":
            world.arrivals.append(world.now + rng.randint(0, LEASE_MICROS // 2))
        raise TimeoutError("no answer")
