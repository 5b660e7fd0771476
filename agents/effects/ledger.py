"""The effects ledger of a log: each write takes place once, its fate is known, and it can be undone.

    ledger = Ledger(log, now_micros, new_token)
    keys = StepKeys(task="order-7", step=3)
    order = Order(keys.next("refund", arguments), "refund", arguments, run=run_id, agent="support")
    receipt = ledger.perform(order, lambda key: api.refund(7, idempotency_key=key), Terms(probe=look_it_up))

How it is carried out stands in protocol.py, who may carry it out in claims.py, for users in docs/EFFECTS.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from refold.agents.effects import driving, listing, settling, undoing
from refold.agents.effects.book import Book, NewSource, Redact, StartOf
from refold.agents.effects.errors import NotDone
from refold.agents.effects.listing import Effect
from refold.agents.effects.order import Done, Order, Probe, Terms, Undo
from refold.agents.effects.protocol import Asked, Protocol, Steps
from refold.agents.effects.undoing import Undone
from refold.agents.journal.record import Plain
from refold.agents.vault import Keeper
from refold.avro.errors import InputError
from refold.avro.times import time_text
from refold.streams.client import Log


class Ledger:
    """The effects of a log. Several threads and tasks may use one.

    log: used in its turn (`Log.turn`). now_micros, new_token, sleep: from outside. All else: see Book.
    """

    def __init__(
        self, log: Log, now_micros: Callable[[], int], new_token: Callable[[], str], *, keeper: Keeper | None = None,
        redact: Redact = lambda tree: tree, new_source: NewSource | None = None,
        start_of: StartOf = lambda partition: 0, sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._now_micros = now_micros
        self._sleep = sleep
        self._book = Book(log, keeper=keeper, redact=redact, new_source=new_source, start_of=start_of)
        self._protocol = Protocol(self._book, now_micros, new_token)

    def perform(self, order: Order, send: Callable[[str], Any], terms: Terms | None = None) -> Plain:
        """Carry an effect out once, and return its result as JSON: the first one, if it was done before.

        send: called with the key; returns JSON (or Done, with a receipt), raises NotDone where nothing happened.
        Raises what `send` raised where it did not take place, EffectFailed where that was earlier, EffectUnknown where
        nobody knows, ResultNotKept, and StorageError where the log cannot be used.
        """
        return driving.run(self._protocol.perform(order, send, terms or Terms()), self._sleep)

    async def perform_async(self, order: Order, send: Callable[[str], Any], terms: Terms | None = None) -> Plain:
        """The same on an event loop, which it does not hold up; send and probe may be coroutine functions."""
        return await driving.run_async(self._protocol.perform(order, send, terms or Terms()))

    def list(self, *, status: str = "", run: str = "", tool: str = "") -> list[Effect]:
        """The effects, by the time they were first intended. run: those that it carried out, or is about to."""
        with self._book.log.turn:
            found = listing.listed(self._book.log, self._now_micros())
        return [*filter(listing.chosen_by(status, run, tool), found)]

    def effect(self, key: str) -> Effect:
        """One effect; InputError where there is none."""
        with self._book.log.turn:
            found = listing.listed(self._book.log, self._now_micros(), keys=[key])
        if not found:
            raise InputError(f"effect {key}: nothing is known of it; `refold effects list` shows the keys there are")
        return found[0]

    def settle(self, key: str, found: Done | NotDone, *, by: str, note: str = "") -> Effect:
        """Say what became of an effect whose fate is not known: Done(result), or NotDone(): it may be tried again.

        by: who found out. InputError where it is not unknown. The effect as it stands then.
        """
        settling.settle(self._book, key, found, self._now_micros(), by=by, note=note)
        return self.effect(key)

    def settle_by(self, key: str, probe: Probe, *, by: str, note: str = "") -> Effect:
        """Settle an effect by what a probe finds; it stays unknown where that cannot tell.

        InputError where it is not unknown, or is found not done while its request may still be under way.
        """
        effect, asked_at = self.effect(key), self._now_micros()
        settling.require_unknown(key, self._book.read(key), self._now_micros())
        arguments = self.arguments(effect)
        try:
            found = driving.run(_one(Asked(probe, (key, arguments))))
        except NotDone as error:
            found = error
        if found is NotDone:
            found = NotDone()
        if isinstance(found, NotDone) and effect.until > asked_at:
            raise InputError(f"effect {key}: the probe does not find it, but it may still be under way; ask again "
                             f"after {time_text(effect.until)}")  # fmt: skip
        if isinstance(found, (Done, NotDone)):
            return self.settle(key, found, by=by, note=note)
        if found is not None:
            raise InputError(f"the probe returned a {type(found).__name__}: it has to return Done(result), or None "
                             "where it cannot tell, or raise NotDone")  # fmt: skip
        return effect

    def compensate(self, run: str, undos: Mapping[str, Undo], *, agent: str = "", terms: Terms | None = None,
                   is_dry: bool = False) -> Iterator[Undone]:  # fmt: skip
        """Undo what a run did, last effect first, by functions by tool; says of each what became of it.

        Done as it is asked for: take all that comes. is_dry: say only what would be done.
        """
        own = undoing.to_undo(self.list(), run)
        return undoing.undo_each(
            self._book, own, undos, self.perform, agent=agent, terms=terms or Terms(), is_dry=is_dry
        )

    def arguments(self, effect: Effect) -> Plain:
        """What an effect was asked for with; raises where it can no longer be read."""
        return self._book.arguments(effect.key, effect.inputs)

    def message(self, effect: Effect) -> str:
        """What the last attempt failed with; raises where it can no longer be read."""
        return str(self._book.opened(effect.key, "error", effect.error.get("message") or ""))

    def result(self, effect: Effect) -> Plain:
        """The result of an effect that is done; ResultNotKept, or raises where it can no longer be read."""
        return self._book.result(effect.key, effect.result)


def _one(command: Asked) -> Steps:
    return (yield command)
