"""Requests to the ledger: an order for an effect, the terms of its tool, and the arguments of probes and undos."""

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
    """An effect was carried out: a probe returns it. A tool may return it too, to give a receipt.

    Attributes:
        result: The tool's result.
        receipt: The other side's own id of the effect.
    """

    result: Any = None
    receipt: str = ""


@dataclass(frozen=True, slots=True)
class Performed:
    """The argument of an undo function: the effect that was carried out, and the key of the undo.

    Attributes:
        arguments: The arguments as the recorder stores them: {"kwargs": {...}}, with "args": [...] if any have no name.
        receipt: The other side's own id of the effect; "" without one.
    """

    key: str
    tool: str
    arguments: Plain
    result: Plain
    receipt: str
    undo_key: str


Probe: TypeAlias = Callable[[str, Plain], Any]
"""(key, arguments) -> Done(result) if the effect was carried out, None if it cannot tell; raises NotDone if it was not
and will not be. May be a coroutine function."""

Undo: TypeAlias = Callable[[Performed], Any]
"""Undoes an effect; returns JSON, raises as a write tool does. May be a coroutine function."""


@dataclass(frozen=True, slots=True)
class Order:
    """A request for one effect.

    Attributes:
        arguments: The arguments as JSON, in the form in which it may be written.
        run, agent: The run and the agent that request it.
        step: The id of the step, <run>#<n>.
        undo: The name of the function that undoes it, module:function.
        forked_from: For a fork's effect, the parent's key.
        compensates: The key of the effect that this one undoes.
        redact: The redactor of its result and errors; None: the ledger's.
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
    """How a tool may be tried.

    Attributes:
        attempts_max: How many attempts may be made, counted over all restarts.
        backoff_ms: The wait after the first failed attempt, in milliseconds. It doubles with each further one, up to 30
            s.
        lease_s: A time at least twice as long as a call may take to finish, including the other side, in seconds. It
            counts from the moment the effect was intended. Until it is over others wait for the claim's holder, and a
            probe's "not done" is not believed. The call must begin in its first half.
        safe: The exceptions of the tool that mean, as NotDone does, that nothing happened outside; all others leave the
            effect unknown.

    Raises:
        InputError: A number is invalid.
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
        """Return the wait after a failed attempt, milliseconds.

        Args:
            attempt: Its number, from 1.
        """
        return int(min(self.backoff_ms * 2 ** min(attempt - 1, 30), BACKOFF_MS_MAX))
