"""The effects ledger of a log: each write is carried out once, its status is known, and it can be undone.

    ledger = Ledger(log, now_micros, new_token)
    keys = StepKeys(task="order-7", step=3)
    order = Order(keys.next("refund", arguments), "refund", arguments, run=run_id, agent="support")
    receipt = ledger.perform(order, lambda key: api.refund(7, idempotency_key=key), Terms(probe=look_it_up))

protocol.py specifies how it is carried out, claims.py who may carry it out, docs/EFFECTS.md describes both for users.

A driver runs the protocol's steps in this thread, or on an event loop, with the log in a separate thread.

Settling an unknown effect, by hand or by a probe:

1. Read its records. Only a claim that is unknown, or past its lease, is settled: within its lease its holder may still
   be at work, and the holder's record takes precedence.
2. Record `done` for the claim's token, with the result, or `failed`; who says so, and how it was found out.
3. Read again: the log's state is now the answer, also if somebody else settled it at the same time.

`done` is also recorded for an effect that is done but whose result was not stored, to add the result; and `failed` for
one that failed, to allow new attempts.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from refold.agents.effects import listing, undo
from refold.agents.effects.claims import Claim, EffectState, run_of
from refold.agents.effects.errors import NotDone
from refold.agents.effects.listing import Effect
from refold.agents.effects.log_entries import DONE_PRIORITY, EffectLog, NewSource, Redact, StartOf
from refold.agents.effects.order import Done, Order, Probe, Terms, Undo
from refold.agents.effects.protocol import CallRequest, Command, Logged, Protocol, Steps, Wait
from refold.agents.effects.undo import UndoResult
from refold.agents.journal.record import Plain
from refold.agents.recorder.context import in_thread, waited_for
from refold.agents.vault import ValueCipher
from refold.avro.errors import InputError
from refold.avro.times import time_text
from refold.streams.client import Log
from refold.streams.point import When


def settle(
    book: EffectLog, key: str, found: Done | NotDone, now_micros: int, *, by: str, note: str = ""
) -> EffectState:
    """Record the result of an effect of unknown status.

    Args:
        book: The effects of the log.
        key: The effect's key.
        found: What is known now: done with a result, or not done.
        now_micros: The time, microseconds.
        by: Who found out.
        note: How it was found out.

    Returns:
        The state of the effect afterwards.

    Raises:
        InputError: There is nothing to settle.
    """
    state = book.read(key)
    if isinstance(found, Done) and state.done is not None and state.done.result is None:
        token = state.done.token
    elif isinstance(found, NotDone) and state.status == "failed" and state.failed is not None:
        token = state.failed.token
    else:
        token = require_unknown(key, state, now_micros).token
    if not by:
        raise InputError(f"effect {key}: say who settles it")
    patch: dict[str, Any] = {"claims": {token: "done" if isinstance(found, Done) else "failed"}, "token": token,
                            "reconciled_by": by}  # fmt: skip
    order = Order(key, "", None, run=run_of(token))
    if note:
        patch["reconciled_note"] = book.sealed(order, "reconciled_note", book.redacted(order, note))
    if isinstance(found, Done):
        sealed, _ = book.sealed_result(order, found.result)
        patch |= {"status": "done", "settled_at": now_micros, "result": sealed, "result_type": "application/json"}
        if found.receipt:
            patch["receipt"] = book.sealed(order, "receipt", book.redacted(order, found.receipt))
        book.say(order, patch, by=by, priority=DONE_PRIORITY, cleared=state.disproved)
    else:
        book.say(order, {**patch, "status": "failed"}, by=by, cleared=("settled_at",) if state.is_settled else ())
    return book.read(key, state)


def require_unknown(key: str, state: EffectState, now_micros: int) -> Claim:
    """Return the claim whose result is not known.

    Args:
        key: The effect's key, for the error.
        state: The effect's state.
        now_micros: The time, microseconds.

    Raises:
        InputError: There is none, or its lease is not over.
    """
    if not state.status:
        raise InputError(f"effect {key}: no such effect is recorded; `refold effects list` shows the keys")
    claim = state.holder
    if claim is None:
        raise InputError(f"effect {key}: it is {state.status}, so it needs no settling")
    if not claim.is_unknown and claim.until > now_micros:
        raise InputError(f"effect {key}: run {claim.run} may still be carrying it out; unless it records the result, "
                         f"it, settle it after {time_text(claim.until)}")  # fmt: skip
    return claim


def run(steps: Steps, sleep: Callable[[float], None] = time.sleep) -> Any:
    """Run the protocol to its end in this thread. Coroutines that tools return are run on a loop of their own."""

    def done(command: Command) -> Any:
        if isinstance(command, Logged):
            return command.work()
        if isinstance(command, Wait):
            return sleep(command.seconds)
        answer = command.function(*command.arguments)
        return _waited_for(answer) if inspect.isawaitable(answer) else answer

    try:
        command = next(steps)
        while True:
            try:
                answer = done(command)
            except BaseException as error:  # passed on to the protocol, which decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as ended:
        return ended.value


async def run_async(steps: Steps) -> Any:
    """Run the protocol to its end, without blocking the loop. Tools may be coroutine functions, or not."""

    async def done(command: Command) -> Any:
        if isinstance(command, Logged):
            return await _finish_work(command.work)
        if isinstance(command, Wait):
            return await asyncio.sleep(command.seconds)
        assert isinstance(command, CallRequest)
        answer = command.function(*command.arguments)
        return await answer if inspect.isawaitable(answer) else answer

    try:
        command = next(steps)
        while True:
            try:
                answer = await done(command)
            except BaseException as error:  # passed on to the protocol, which decides
                command = steps.throw(error)
            else:
                command = steps.send(answer)
    except StopIteration as ended:
        return ended.value


async def _finish_work(work: Callable[[], Any]) -> Any:
    """Return the work's result. If the task is cancelled meanwhile, it ends only after the work, so that records keep
    their order."""
    future = in_thread(work)
    await waited_for(future)
    return future.result()


def _waited_for(answer: Awaitable[Any]) -> Any:
    """Return the awaited answer, on a new loop; in another thread if this one already runs a loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_await_answer(answer))
    with ThreadPoolExecutor(1) as other:
        return other.submit(asyncio.run, _await_answer(answer)).result()


async def _await_answer(answer: Awaitable[Any]) -> Any:
    return await answer


class Ledger:
    """The effects of a log. Several threads and tasks may use one.

    Args:
        log: The log, used under `Log.lock`.
        now_micros: Returns the time, in microseconds since 1970.
        new_token: Returns a unique text at each call.
        sleep: Waits for a number of seconds.
        keeper, redact, new_source, start_of: As in EffectLog.
    """

    def __init__(
        self,
        log: Log,
        now_micros: Callable[[], int],
        new_token: Callable[[], str],
        *,
        keeper: ValueCipher | None = None,
        redact: Redact = lambda tree: tree,
        new_source: NewSource | None = None,
        start_of: StartOf = lambda partition: 0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now_micros = now_micros
        self._sleep = sleep
        self._book = EffectLog(log, keeper=keeper, redact=redact, new_source=new_source, start_of=start_of)
        self._protocol = Protocol(self._book, now_micros, new_token)

    def perform(self, order: Order, send: Callable[[str], Any], terms: Terms | None = None) -> Plain:
        """Carry an effect out once, and return its result as JSON: the first one, if it was done before.

        Args:
            order: The effect.
            send: Called with the key. Returns JSON (or Done, with a receipt); raises NotDone if nothing happened.
            terms: How it may be tried.

        Raises:
            EffectFailed: It was not carried out in earlier attempts, and may not be tried again.
            EffectUnknown: It was sent, and it is not known whether it was carried out.
            ResultNotKept: It was carried out, but its result could not be recorded.
            StorageError: The log cannot be used.
            Exception: The error of `send`, if it was not carried out.
        """
        return run(self._protocol.perform(order, send, terms or Terms()), self._sleep)

    async def perform_async(self, order: Order, send: Callable[[str], Any], terms: Terms | None = None) -> Plain:
        """As `perform`, without blocking the event loop; send and probe may be coroutine functions."""
        return await run_async(self._protocol.perform(order, send, terms or Terms()))

    def list(self, *, status: str = "", run: str = "", tool: str = "", at: When = None) -> list[Effect]:
        """Return the effects, by the time they were first intended.

        Args:
            status: Only effects with this status.
            run: Only effects that this run carried out, or is about to.
            tool: Only effects of this tool.
            at: As they were at this point. Whether a lease is over is always judged by the current time.
        """
        with self._book.log.lock:
            found = listing.listed(self._book.log, self._now_micros(), at=at, status=status, run=run, tool=tool)
        return [*filter(listing.chosen_by(status, run, tool), found)]

    def effect(self, key: str) -> Effect:
        """Return one effect.

        Raises:
            InputError: There is none with that key.
        """
        with self._book.log.lock:
            found = listing.listed(self._book.log, self._now_micros(), keys=[key])
        if not found:
            raise InputError(f"effect {key}: no such effect is recorded; `refold effects list` shows the keys")
        return found[0]

    def settle(self, key: str, found: Done | NotDone, *, by: str, note: str = "") -> Effect:
        """Record the result of an effect of unknown status.

        Args:
            key: The effect's key.
            found: Done(result), or NotDone(): it may be tried again.
            by: Who found out.
            note: How it was found out.

        Returns:
            The effect afterwards.

        Raises:
            InputError: Its status is not unknown.
        """
        settle(self._book, key, found, self._now_micros(), by=by, note=note)
        return self.effect(key)

    def settle_by(self, key: str, probe: Probe, *, by: str, note: str = "") -> Effect:
        """Settle an effect by a probe. It stays unknown if the probe cannot tell.

        Args:
            key: The effect's key.
            probe: Finds out whether it was carried out.
            by: Who runs the probe.
            note: More about it.

        Returns:
            The effect afterwards.

        Raises:
            InputError: Its status is not unknown, or the probe found it not done while its request may still be in
                progress.
        """
        effect, asked_at = self.effect(key), self._now_micros()
        require_unknown(key, self._book.read(key), self._now_micros())
        arguments = self.arguments(effect)
        try:
            found = run(_single_step(CallRequest(probe, (key, arguments))))
        except NotDone as error:
            found = error
        if found is NotDone:
            found = NotDone()
        if isinstance(found, NotDone) and effect.until > asked_at:
            raise InputError(f"effect {key}: the probe did not find it, but it may still be in progress; ask again "
                             f"after {time_text(effect.until)}")  # fmt: skip
        if isinstance(found, (Done, NotDone)):
            return self.settle(key, found, by=by, note=note)
        if found is not None:
            raise InputError(f"the probe returned a {type(found).__name__}: it must return Done(result), or None "
                             "where it cannot tell, or raise NotDone")  # fmt: skip
        return effect

    def compensate(self, run: str, undos: Mapping[str, Undo], *, agent: str = "", terms: Terms | None = None,
                   is_dry: bool = False) -> Iterator[UndoResult]:  # fmt: skip
        """Undo what a run did, last effect first; yield the result for each effect.

        The undoing happens during iteration, so iterate to the end.

        Args:
            run: The run's id.
            undos: The undo function of each tool.
            agent: The source of the undos.
            terms: How each undo may be tried.
            is_dry: Only yield what would be done.
        """
        own = undo.to_undo(self.list(), run)
        return undo.undo_each(self._book, own, undos, self.perform, agent=agent, terms=terms or Terms(), is_dry=is_dry)

    def arguments(self, effect: Effect) -> Plain:
        """Return the arguments of an effect; raises if they can no longer be read."""
        return self._book.arguments(effect.key, effect.inputs)

    def message(self, effect: Effect) -> str:
        """Return the message of the last attempt's failure; raises if it can no longer be read."""
        return str(self._book.opened(effect.key, "error", effect.error.get("message") or ""))

    def result(self, effect: Effect) -> Plain:
        """Return the result of an effect that is done.

        Raises:
            ResultNotKept: None is stored.
            NotAnswerable: It can no longer be read.
        """
        return self._book.result(effect.key, effect.result)


def _single_step(command: CallRequest) -> Steps:
    return (yield command)
