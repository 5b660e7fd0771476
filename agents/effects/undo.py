"""Undoing what a run did, last effect first, only when asked.

1. Take the effects that this run carried out, undoings left out, by the time they were done; the last one first.
2. Each is undone by the function registered for its tool, as an effect of its own, whose key is the effect's with
   `:undo`: so nothing is undone twice, whoever asks again after whatever crash.
3. When that is done, `compensated_by` is said of the effect. A crash between 2 and 3 leaves an undoing that is done:
   the next time finds its result, and says it then.
4. What has no function, could not be undone, or whose undoing is unknown, is reported with why, and the others go on:
   the caller decides what that means. So are effects whose own fate is unknown: settle them, and ask again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from refold.agents.effects.keys import undo_key
from refold.agents.effects.listing import Effect
from refold.agents.effects.log_entries import Book
from refold.agents.effects.order import Order, Performed, Terms, Undo
from refold.agents.journal.record import Plain
from refold.avro.errors import RefoldError

NO_FUNCTION = "no undo function is known for this tool"

Ended: TypeAlias = Literal["undone", "would be undone", "was undone before", "not undone"]
Perform: TypeAlias = Callable[[Order, Callable[[str], object], Terms], Plain]


@dataclass(frozen=True, slots=True)
class Undone:
    """What became of one effect of the run. why: empty where it is undone."""

    key: str
    tool: str
    ended: Ended
    why: str = ""

    @property
    def is_unregistered(self) -> bool:
        """Whether there was no function for it."""
        return self.why == NO_FUNCTION

    @property
    def is_left(self) -> bool:
        """Whether it may stand, and somebody has to look."""
        return self.ended == "not undone"


def to_undo(effects: Iterable[Effect], run: str) -> list[Effect]:
    """Steps 1 and 4: what a run did or may have done, last first."""
    own = [each for each in effects if run in each.runs and not each.compensates
           and each.status in ("done", "unknown", "intended")]  # fmt: skip
    return sorted(own, key=lambda each: (each.settled_at or each.intended_at, each.intended_at, each.key), reverse=True)


def undo_each(
    book: Book, effects: Iterable[Effect], undos: Mapping[str, Undo], perform: Perform, *, agent: str, terms: Terms,
    is_dry: bool,
) -> Iterator[Undone]:  # fmt: skip
    """Undo them in this order, and say of each what became of it, when it did."""
    for each in effects:
        why = "" if each.status == "done" else f"it is {each.status}; settle it, and ask again"
        if not why and each.compensated_by:
            yield Undone(each.key, each.tool, "was undone before")
            continue
        if not why and each.tool not in undos:
            why = NO_FUNCTION
        if why:
            yield Undone(each.key, each.tool, "not undone", why)
        elif is_dry:
            yield Undone(each.key, each.tool, "would be undone")
        else:
            yield _undo(book, each, undos[each.tool], perform, agent, terms)


def _undo(book: Book, effect: Effect, undo: Undo, perform: Perform, agent: str, terms: Terms) -> Undone:
    key = undo_key(effect.key)
    try:
        told = performed_of(book, effect)
        order = Order(key, f"undo {effect.tool}", {"key": effect.key}, run=effect.run, agent=agent, step=effect.step,
                      compensates=effect.key)  # fmt: skip
        perform(order, lambda _: undo(told), terms)
        book.say(Order(effect.key, effect.tool, None, run=effect.run, agent=agent), {"compensated_by": key})
    except RefoldError as error:
        return Undone(effect.key, effect.tool, "not undone", str(error))
    except Exception as error:  # the function's own, of the last attempt: the ledger has it as failed
        return Undone(effect.key, effect.tool, "not undone", f"{type(error).__name__}: {error}")
    return Undone(effect.key, effect.tool, "undone")


def performed_of(book: Book, effect: Effect) -> Performed:
    """What the function is told; raises where the content can no longer be read."""
    arguments = book.arguments(effect.key, effect.inputs)
    receipt = book.opened(effect.key, "receipt", effect.receipt) if effect.receipt else ""
    result = book.result(effect.key, effect.result)
    return Performed(effect.key, effect.tool, arguments, result, receipt, undo_key(effect.key))
