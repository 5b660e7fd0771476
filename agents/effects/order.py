"""What is asked of the ledger: an order for an effect, the terms of its tool, and what probes and undos are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from refold.agents.effects.errors import NotDone
from refold.agents.journal.record import Plain
from refold.agents.redaction.redactor import Redact
from refold.avro.errors import InputError

ATTEMPTS_MAX = 3
BACKOFF_MS = 200
BACKOFF_MS_MAX = 30_000
LEASE_S = 60.0


@dataclass(frozen=True, slots=True)
class Done:
    """That an effect took place: what a probe returns when it finds it so. A tool may return it too, to give a receipt.

    result: what the tool returned, or would have. receipt: the other side's own id of what it did.
    """

    result: Any = None
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Performed:
    """What an undo function is told: the effect that took place, and the key of the undoing.

    arguments: as the recorder keeps them, {"kwargs": {...}}, with "args": [...] where any have no name. receipt: the
    other side's own id, or "".
    """

    key: str
    tool: str
    arguments: Plain
    result: Plain
    receipt: str
    undo_key: str


Probe: TypeAlias = Callable[[str, Plain], Any]
"""(key, arguments) -> Done(result) where the effect took place, None where it cannot be told; raises NotDone where it
did not take place and will not any more. May be a coroutine function."""

Undo: TypeAlias = Callable[[Performed], Any]
"""Undoes an effect; returns JSON, raises as a write tool does. May be a coroutine function."""


@dataclass(frozen=True, slots=True)
class Order:
    """One effect that is asked for.

    arguments: JSON, as it may be written down. run, agent: who asks; step: id of the step, <run>#<n>. undo: the name
    of the function that undoes it, module:function. forked_from: for a fork's effect, the parent's key. compensates:
    the key of the effect that this one undoes. redact: what its result and errors go through, else the ledger's.
    """

    key: str
    tool: str
    arguments: Plain
    run: str
    agent: str = ""
    step: str = ""
    undo: str = ""
    forked_from: str = ""
    compensates: str = ""
    redact: Redact | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Terms:
    """How a tool may be tried. InputError where a number is none that can be meant.

    attempts_max: over all restarts. backoff_ms: the wait after the first failed attempt, doubled for each further one
    up to 30 s. lease_s: at least twice as long as a call may take to come to its end, at the other side too; it
    counts from the moment the effect was intended. Until it is over others wait for the claim's holder, and a probe's
    "not done" is not believed yet; in its first half the call has to begin. safe: exceptions of the tool that mean,
    as NotDone does, that nothing happened outside; all others leave the effect unknown.
    """

    attempts_max: int = ATTEMPTS_MAX
    backoff_ms: int = BACKOFF_MS
    lease_s: float = LEASE_S
    safe: tuple[type[BaseException], ...] = ()
    probe: Probe | None = None

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.backoff_ms < 0 or not 0 < self.lease_s < 10**6:
            raise InputError("a tool needs attempts_max from 1, backoff_ms from 0 and lease_s above 0; given "
                             f"{self.attempts_max}, {self.backoff_ms} and {self.lease_s}")  # fmt: skip

    @property
    def not_done(self) -> tuple[type[BaseException], ...]:
        """The exceptions that mean that nothing happened outside."""
        return (NotDone, *self.safe)

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, at least one."""
        return max(1, int(self.lease_s * 1000))

    def backoff_after(self, attempt: int) -> int:
        """The wait after an attempt that failed, counted from 1, in milliseconds."""
        return int(min(self.backoff_ms * 2 ** min(attempt - 1, 30), BACKOFF_MS_MAX))
