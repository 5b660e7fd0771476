"""Carry an effect out at most once: the protocol, as a generator that a driver runs (ledger.py).

The state of the effect is read from the log (claims.py says how it is decided), then

1. done: its first result is returned, whichever process carried it out.
2. A claim is open.
   a. Another run's, within its lease: wait for its holder, and read the log again.
   b. This run's, with no call in progress here: an earlier process of the run made it and is gone. Or another run's
   whose lease is over. Record `unknown` for it, durably.
   c. Unknown: call the tool's probe. Done: record `done` with its result. Not done: believed only after the claim's
   lease, because until then the request may still be in progress; wait, call the probe again, and then record `failed`.
   Neither, or no probe: EffectUnknown. It is never sent again before it is settled.
3. Failed with no attempts left, or in a way that no further attempt can help: EffectFailed. Otherwise wait for the rest
   of the backoff, even if a process that is gone made the attempt.
4. Record `intended` with a new token, flush, and read the log until the record is visible. Denied: continue with 1, and
   record `released` for readers that see only the state.
5. If half of its lease has passed by now, the holder records `released` and raises StorageError. The second half is for
   the call, which otherwise might not be over when others give it up.
6. Call the tool, with the key.
   a. It returns: record `done` with the result, durable before it is returned. If the result cannot be recorded, record
   `done` without one, and raise ResultNotKept.
   b. It raises NotDone or an error that its terms call safe: record `failed`, then 3; the last attempt raises the
   tool's error.
   c. It raises anything else: record `unknown`, then 2c. An error that is not an Exception (Ctrl-C, a cancelled task)
   is raised again.

Killed before 4: nothing was recorded. Between 4 and 6a: the claim is open, which 2b finds. While `done` is flushed: one
or the other. So nothing is sent that was not intended durably, and nothing is sent twice unless somebody recorded,
rightly or wrongly, that it was not done.

A holder that is suspended between 5 and 6 for longer than its lease, and whose effect was meanwhile settled as not
done, sends all the same. No log can prevent that. The tool gets the key for this case.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from refold.agents.effects.claims import PROBE, Claim, EffectState, token_of
from refold.agents.effects.errors import EffectFailed, EffectUnknown, NotDone, ResultNotKept
from refold.agents.effects.keys import inputs_hash
from refold.agents.effects.log_entries import DONE_PRIORITY, EffectLog, OwnEntry
from refold.agents.effects.order import Done, Order, Terms
from refold.agents.journal.record import Plain
from refold.avro.errors import InputError, StorageError
from refold.avro.times import time_text

POLL_S, POLL_S_MAX = 0.01, 0.5
MESSAGE_BYTES_MAX = 900


class Logged(NamedTuple):
    """Do this with the log, and return its result."""

    work: Callable[[], Any]


class CallRequest(NamedTuple):
    """Call this, and await the result if it is a coroutine."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Wait(NamedTuple):
    """Wait for this time."""

    seconds: float


Command: TypeAlias = Logged | CallRequest | Wait
Steps: TypeAlias = Generator[Command, Any, Any]


class LeaseWait:
    """How long to wait for the holders of claims: until the lease is over, by its own times or since it was seen."""

    def __init__(self, now_micros: Callable[[], int]) -> None:
        self._now_micros = now_micros
        self._first_seen: dict[str, int] = {}

    def left_s(self, claim: Claim) -> float:
        """Return the rest of the wait, seconds."""
        now = self._now_micros()
        seen = self._first_seen.setdefault(claim.token, now)
        return (min(claim.until, seen + claim.lease_ms * 1000) - now) / 1e6


class Outcome(NamedTuple):
    """How an attempt ended.

    Attributes:
        has_result: Whether `result` is its result.
        error: The exception that the tool raised, if any.
        unknown: The token of the claim that this left unknown.
    """

    has_result: bool = False
    result: Plain = None
    error: Exception | None = None
    unknown: str = ""


class Protocol:
    """Carries out orders.

    Args:
        now_micros: Returns the time, in microseconds since 1970.
        new_token: Returns a unique text at each call.
    """

    def __init__(self, book: EffectLog, now_micros: Callable[[], int], new_token: Callable[[], str]) -> None:
        self._book = book
        self._now_micros = now_micros
        self._new_token = new_token
        self._in_hand: set[str] = set()

    def perform(self, order: Order, send: Callable[[str], Any], terms: Terms) -> Steps:
        """Yield the steps of one order; return the effect's result.

        Args:
            order: The effect.
            send: Carries it out; called with the key.
            terms: How it may be tried.
        """
        state: EffectState = yield Logged(partial(self._book.read, order.key))
        cause: Exception | None = None
        causes: dict[str, Exception | None] = {}
        patience, poll_s = LeaseWait(self._now_micros), POLL_S
        while state.done is None:
            claim = state.holder
            if claim is None:
                yield from self._require_another(order.key, state, terms, cause)
                yield from self._back_off(state)
                outcome = yield from self._attempt(order, send, terms, state)
                if outcome.has_result:
                    return outcome.result
                cause = outcome.error or cause
                causes[outcome.unknown] = outcome.error
            elif claim.is_unknown:
                yield from self._resolve(order, terms, claim, causes.get(claim.token))
            elif self._is_given_up(order, claim, patience):
                yield from self._record_unknown(order, claim.token, {"message": "its holder said nothing of its end"})
            else:
                yield Wait(max(0.0, min(poll_s, patience.left_s(claim))))
                poll_s = min(poll_s * 2, POLL_S_MAX)
            state = yield Logged(partial(self._book.read, order.key, state))
        return (yield Logged(partial(self._book.result, order.key, state.done.result)))

    def _is_given_up(self, order: Order, claim: Claim, patience: LeaseWait) -> bool:
        """Step 2b."""
        is_orphan = claim.run == order.run and claim.token not in self._in_hand
        return is_orphan or patience.left_s(claim) <= 0

    # 2c

    def _resolve(self, order: Order, terms: Terms, claim: Claim, cause: Exception | None) -> Steps:
        """Settle a claim that is unknown by the tool's probe, or raise."""
        if terms.probe is None:
            raise EffectUnknown(order.key, _unknown_text(claim, cause)) from cause
        asked_at = self._now_micros()
        try:
            found = yield CallRequest(terms.probe, (order.key, order.arguments))
        except NotDone as error:
            found = error
        except Exception as error:  # the user's probe may raise anything
            raise EffectUnknown(
                order.key, f"{_unknown_text(claim, cause)}, and its probe failed with {_error_text(error)}"
            ) from error
        if isinstance(found, Done):
            yield Logged(partial(self._record_found, order, claim.token, found))
        elif isinstance(found, NotDone) or found is NotDone:
            left_s = (claim.until - asked_at) / 1e6
            if left_s > 0:
                yield Wait(left_s)
            else:
                yield Logged(partial(self._record_not_found, order, claim.token, terms))
        elif found is None:
            raise EffectUnknown(order.key, f"{_unknown_text(claim, cause)}, and its probe could not tell") from cause
        else:
            problem = f"its probe returned a {type(found).__name__} instead of Done(result), None or raising NotDone"
            raise EffectUnknown(order.key, f"{_unknown_text(claim, cause)}, and {problem}") from cause

    # 3

    def _require_another(self, key: str, state: EffectState, terms: Terms, cause: Exception | None) -> Steps:
        """Raise if it may not be tried again."""
        failed = state.failed
        if failed is None or (state.failures < terms.attempts_max and failed.is_retryable):
            return
        message = yield Logged(partial(self._book.opened, key, "error", failed.error.get("message") or ""))
        raise EffectFailed(key, state.attempts, failed.error.get("exception") or "an error", message) from cause

    def _back_off(self, state: EffectState) -> Steps:
        """Wait for the rest of the last failed attempt's backoff."""
        if state.failed is not None and state.failures:
            left_ms = state.failed.backoff_ms - max(0, self._now_micros() - state.failed.at) / 1000
            if left_ms > 0:
                yield Wait(left_ms / 1000)

    # 4 to 6

    def _attempt(self, order: Order, send: Callable[[str], Any], terms: Terms, state: EffectState) -> Steps:
        """Claim, send, and record the result. Returns an Outcome."""
        token = token_of(order.run, self._new_token())
        intended_at = self._now_micros()
        try:
            self._in_hand.add(token)
            try:
                own = yield Logged(partial(self._record_intent, order, token, intended_at, terms, state))
                while token not in state.tokens and not self._is_late(intended_at, terms):
                    state = yield Logged(partial(self._book.read, order.key, state, own))
            except (GeneratorExit, InputError):  # killed or refused, so nothing was recorded
                raise
            except BaseException:  # the record may still reach the log, but nothing was sent
                yield from self._release(order, token)
                raise
            if token in state.tokens and (state.holder is None or state.holder.token != token):
                yield from self._release(order, token)
                return Outcome()
            if self._is_late(intended_at, terms):
                yield from self._release(order, token, status="released")
                raise StorageError(
                    f"effect {order.key}: nothing was sent, because the log took too long to store the claim for its "
                    f"lease of {terms.lease_s:g} s; try again, or give the tool a longer lease_s"
                )
            return (yield from self._send(order, send, terms, token, state))
        finally:
            self._in_hand.discard(token)

    def _is_late(self, intended_at: int, terms: Terms) -> bool:
        return self._now_micros() - intended_at > terms.lease_ms * 500

    def _send(self, order: Order, send: Callable[[str], Any], terms: Terms, token: str, state: EffectState) -> Steps:
        """Do step 6; return an Outcome."""
        sent_at = self._now_micros()
        try:
            answer = yield CallRequest(send, (order.key,))
        except GeneratorExit:
            raise
        except terms.not_done as error:
            retryable = error.retryable if isinstance(error, NotDone) else True
            is_last = state.failures + 1 >= terms.attempts_max or not retryable
            fields = {**_error_fields(error), "retryable": retryable}
            yield Logged(partial(self._record_failed, order, token, terms, fields, state, is_last=is_last))
            if is_last or not isinstance(error, Exception):
                raise
            return Outcome(error=error)
        except BaseException as error:  # whatever ended the call, the effect may have taken place
            yield from self._record_unknown(order, token, _error_fields(error), sent_at)
            if not isinstance(error, Exception):
                raise
            return Outcome(error=error, unknown=token)
        done = answer if isinstance(answer, Done) else Done(answer)
        times = {"sent_at": sent_at, "duration_ms": (self._now_micros() - sent_at) / 1000}
        result = yield Logged(partial(self._record_done, order, token, done, times, state))
        return Outcome(has_result=True, result=result)

    # Recording

    def _record_intent(self, order: Order, token: str, at: int, terms: Terms, state: EffectState) -> OwnEntry:
        patch: dict[str, Any] = {
            "claims": {token: "intended"}, "token": token, "status": "intended", "intended_at": at,
            "lease_ms": terms.lease_ms, "attempts": state.attempts + 1,
        }  # fmt: skip
        if not state.tokens:
            given = {"agent": order.agent, "run": order.run, "step": order.step, "forked_from": order.forked_from,
                     "compensates": order.compensates}  # fmt: skip
            patch |= {
                "key": order.key, "tool": order.tool, "inputs_hash": inputs_hash(order.arguments),
                "inputs": self._book.inputs(order),
                **{name: value for name, value in given.items() if value},
                **({"compensation": {"undo": order.undo}} if order.undo else {}),
            }  # fmt: skip
        return self._book.say(order, patch, cleared=("settled_at",) if state.is_settled else ())

    def _release(self, order: Order, token: str, **more: str) -> Steps:
        """Release a claim under which nothing was sent; best effort, because the log may be unavailable."""
        try:
            patch = {"claims": {token: "released"}, **more}
            yield Logged(partial(self._book.say, order, patch, is_durable=False))
        except Exception:  # the caller's own error must not be hidden
            return

    def _record_unknown(self, order: Order, token: str, error: Mapping[str, Any], sent_at: int | None = None) -> Steps:
        """Record that the effect is unknown. If the log refuses, the open claim has the same meaning."""
        patch: dict[str, Any] = {"claims": {token: "unknown"}, "token": token, "status": "unknown"}
        patch["error"] = self._error(order, error)
        if sent_at is not None:
            patch["sent_at"] = sent_at
        try:
            yield Logged(partial(self._book.say, order, patch))
        except StorageError:
            return

    def _record_found(self, order: Order, token: str, found: Done) -> None:
        """Record what a probe found. Nothing is recorded if somebody settled the effect meanwhile, because it may have
        been done since."""
        state = self._book.read(order.key)
        if state.holder is not None and state.holder.token == token:
            self._record_done(order, token, found, {"reconciled_by": PROBE}, state)

    def _record_not_found(self, order: Order, token: str, terms: Terms) -> None:
        """Record that a probe did not find the effect, under the same condition."""
        state = self._book.read(order.key)
        if state.holder is not None and state.holder.token == token:
            error = {"exception": "NotDone", "message": "its probe found that it did not take place"}
            self._record_failed(order, token, terms, error, state, reconciled_by=PROBE)

    def _record_failed(self, order: Order, token: str, terms: Terms, error: Mapping[str, Any], state: EffectState, *,
                    is_last: bool = False, **more: str) -> None:  # fmt: skip
        fields = self._error(order, error)
        backoff_ms = 0 if is_last else terms.backoff_after(state.failures + 1)
        retry = {"attempt": state.attempts, "at": fields["at"], "backoff_ms": backoff_ms, "error": fields["message"]}
        patch: dict[str, Any] = {"claims": {token: "failed"}, "token": token, "status": "failed", "error": fields,
                                 "retries": [retry], **more}  # fmt: skip
        if is_last:
            patch["settled_at"] = fields["at"]
        self._book.say(order, patch)

    def _record_done(self, order: Order, token: str, done: Done, more: Mapping[str, Any], state: EffectState) -> Plain:
        """Record `done`, durably, and return the result as it was recorded.

        The error of an earlier attempt is cleared, because the effect took place.

        Raises:
            ResultNotKept: The result could not be recorded.
        """
        patch: dict[str, Any] = {"claims": {token: "done"}, "token": token, "status": "done",
                                "settled_at": self._now_micros(), **more}  # fmt: skip
        try:
            if done.receipt:
                patch["receipt"] = self._book.sealed(order, "receipt", self._book.redacted(order, done.receipt))
            sealed, kept = self._book.sealed_result(order, done.result)
            result = {"result": sealed, "result_type": "application/json"}
            self._book.say(order, {**patch, **result}, priority=DONE_PRIORITY, cleared=state.disproved)
            return kept
        except StorageError:
            raise
        except Exception as error:  # not JSON, too large, or refused by the redactor; the effect took place
            patch.pop("receipt", None)
            self._book.say(order, patch, priority=DONE_PRIORITY, cleared=state.disproved)
            raise ResultNotKept(order.key, str(error)) from error

    def _error(self, order: Order, error: Mapping[str, Any]) -> dict[str, Any]:
        """Return an error for a patch."""
        message = self._book.redacted(order, error.get("message", ""))
        return {"at": self._now_micros(), **error, "message": self._book.sealed(order, "error", message)}


def _error_fields(error: BaseException) -> dict[str, Any]:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return {"exception": name, "message": _short(str(error))}


def _short(text: str) -> str:
    """Shorten a message to a field's inline limit: a log may have no store."""
    return text.encode(errors="replace")[:MESSAGE_BYTES_MAX].decode(errors="ignore")


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {_short(str(error))}"


def _unknown_text(claim: Claim, cause: Exception | None) -> str:
    """Describe a claim of unknown result."""
    if cause is not None:
        return f"it was sent, and the call ended in {_error_text(cause)}"
    return f"run {claim.run} set out to send it at {time_text(claim.intended_at)}, and its end was never recorded"
