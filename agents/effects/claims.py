"""Which claim may carry an effect out, decided from the log's records in the log's order.

1. `intended` with a new token requests the claim. It is granted if, at its position in the log, no earlier claim is
   open and the effect is not done; else it is denied for good. Later records do not matter. So every reader of the log
   decides alike, and a process that was denied and killed leaves nothing that could be granted later.
2. A granted claim is open until its `failed` or `released`. `unknown` leaves it open: no other claim is granted.
3. `done` settles the effect whatever other records say, for any claim: the first one's result is the result.
4. A token with an earlier record is not granted. A record about a claim that is not open changes nothing, except by 3,
   and except when a person records again, for the claim that failed last, that it was not done: then attempts are
   counted from 0.

A token is `<run>:<unique>`, so the run that holds a claim is known from it. Retractions have no effect here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROBE = "probe"
"""The value of reconciled_by for a probe within an attempt. A probe uses up the attempt, a person's answer does not."""


def token_of(run: str, unique: str) -> str:
    """Return a claim's token."""
    return f"{run}:{unique}"


def run_of(token: str) -> str:
    """Return the run that made a claim."""
    return token.rpartition(":")[0]


@dataclass(slots=True)
class Claim:
    """A granted claim that is open.

    Attributes:
        intended_at: When the effect was intended, in microseconds since 1970.
    """

    token: str
    intended_at: int
    lease_ms: int
    is_unknown: bool = False

    @property
    def run(self) -> str:
        """The run that made it."""
        return run_of(self.token)

    @property
    def until(self) -> int:
        """The time by which its holder must have finished, microseconds."""
        return self.intended_at + self.lease_ms * 1000


@dataclass(slots=True)
class Finished:
    """The effect was carried out.

    Attributes:
        result: The result as stored in the log; None if it is not stored.
    """

    token: str
    result: Any = None


@dataclass(slots=True)
class FailedAttempt:
    """How the last attempt failed.

    Attributes:
        error: The error as stored in the log.
        at: When it failed, in microseconds since 1970; 0 if that is not recorded.
    """

    token: str
    at: int = 0
    backoff_ms: int = 0
    error: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_retryable(self) -> bool:
        """Whether another attempt may help."""
        return self.error.get("retryable") is not False


@dataclass(slots=True)
class EffectState:
    """The state of one effect below `offset` of the log; updated by `apply`.

    Attributes:
        holder: The open claim.
        attempts: How many claims were granted.
        failures: How many claims failed since a person last allowed new attempts.
        is_settled: Whether the effect's field `settled_at` is set.
        has_error: Whether the effect's field `error` is set.
    """

    offset: int = 0
    holder: Claim | None = None
    done: Finished | None = None
    attempts: int = 0
    failures: int = 0
    failed: FailedAttempt | None = None
    is_settled: bool = False
    has_error: bool = False
    ended: dict[str, str] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def apply(self, patch: Mapping[str, Any], cleared: tuple[str, ...] = ()) -> None:
        """Apply the next observation of the effect, in log order.

        Args:
            patch: The observation's fields.
            cleared: The fields that it clears.
        """
        self.is_settled = "settled_at" in patch or (self.is_settled and "settled_at" not in cleared)
        self.has_error = "error" in patch or (self.has_error and "error" not in cleared)
        for token, status in (patch.get("claims") or {}).items():
            if status == "intended":
                self._intended(token, patch)
            elif status == "done":
                self._done(token, patch)
            elif status in ("failed", "released"):
                self._end_claim(token, status, patch)
            elif status == "unknown" and self.holder is not None and self.holder.token == token:
                self.holder.is_unknown = True
            self.tokens.add(token)

    @property
    def disproved(self) -> tuple[str, ...]:
        """The fields that no longer hold once the effect is done: the error of an earlier attempt."""
        return ("error",) if self.has_error else ()

    @property
    def status(self) -> str:
        """The effect's status: "" if nothing was recorded of it."""
        if self.done is not None:
            return "done"
        if self.holder is not None:
            return "unknown" if self.holder.is_unknown else "intended"
        return "failed" if self.failed is not None else "released" if self.ended else ""

    def _intended(self, token: str, patch: Mapping[str, Any]) -> None:
        if token not in self.tokens and self.holder is None and self.done is None:
            self.attempts += 1
            self.holder = Claim(token, patch.get("intended_at") or 0, patch.get("lease_ms") or 0)

    def _done(self, token: str, patch: Mapping[str, Any]) -> None:
        self.ended[token] = "done"
        self.holder = None
        if self.done is None:
            self.done = Finished(token)
        if self.done.result is None:
            self.done.result = patch.get("result")

    def _end_claim(self, token: str, status: str, patch: Mapping[str, Any]) -> None:
        is_persons = patch.get("reconciled_by", PROBE) != PROBE
        if self.holder is None or self.holder.token != token:
            if is_persons and self.holder is None and self.failed is not None and self.failed.token == token:
                self.failures, self.failed = 0, FailedAttempt(token)
            return
        self.holder = None
        self.ended[token] = status
        if status == "released":
            self.attempts -= 1
            return
        self.failures = 0 if is_persons else self.failures + 1
        retries = patch.get("retries") or ()
        last = retries[-1] if retries else {}
        error = patch.get("error") or {}
        self.failed = FailedAttempt(token, last.get("at") or 0, last.get("backoff_ms") or 0, error)
