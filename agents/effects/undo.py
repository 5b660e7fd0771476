"""Undo what a run did, last effect first, only on request.

1. Take the effects that this run carried out, without undos, by the time they were done; the last one first.
2. Each is undone by the function registered for its tool. The undo is itself an effect, with the effect's key and
   `:undo`: so nothing is undone twice, after any crash and repeat.
3. After that, `compensated_by` is recorded for the effect. A crash between 2 and 3 leaves an undo that is done: the
   next run finds its result, and records it then.
4. An effect that has no function, could not be undone, or whose undo is unknown, is reported with the reason, and the
   others continue: the caller decides what that means. The same holds for effects of unknown status: settle them, and
   repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from refold.agents.effects.keys import undo_key
from refold.agents.effects.listing import Effect
from refold.agents.effects.log_entries import EffectLog
from refold.agents.effects.order import Order, Performed, Terms, Undo
from refold.agents.journal.record import Plain
from refold.avro.errors import RefoldError

NO_FUNCTION = "no undo function is known for this tool"

Ended: TypeAlias = Literal["undone", "would be undone", "was undone before", "not undone"]
Perform: TypeAlias = Callable[[Order, Callable[[str], object], Terms], Plain]


@dataclass(frozen=True, slots=True)
class UndoResult:
    """The result for one effect of the run.

    Attributes:
        why: Why it is not undone; empty if it is undone.
    """

    key: str
    tool: str
    ended: Ended
    why: str = ""

    @property
    def is_unregistered(self) -> bool:
        """Whether there is no function for it."""
        return self.why == NO_FUNCTION

    @property
    def is_left(self) -> bool:
        """Whether the effect may still be in place, so that somebody has to check."""
        return self.ended == "not undone"


def to_undo(effects: Iterable[Effect], run: str) -> list[Effect]:
    """Do steps 1 and 4: return what a run did or may have done, last first."""
    own = [each for each in effects if run in each.runs and not each.compensates
           and each.status in ("done", "unknown", "intended")]  # fmt: skip
    return sorted(own, key=lambda each: (each.settled_at or each.intended_at, each.intended_at, each.key), reverse=True)


def undo_each(
    book: EffectLog, effects: Iterable[Effect], undos: Mapping[str, Undo], perform: Perform, *, agent: str,
    terms: Terms, is_dry: bool,
) -> Iterator[UndoResult]:  # fmt: skip
    """Undo the effects in this order; yield the result for each, after it was undone.

    Args:
        book: The effects of the log.
        effects: The effects, last first.
        undos: The undo function of each tool.
        perform: Carries an undo out.
        agent: The source of the undos.
        terms: How each undo may be tried.
        is_dry: Only yield what would be done.
    """
    for each in effects:
        why = "" if each.status == "done" else f"it is {each.status}; settle it, and ask again"
        if not why and each.compensated_by:
            yield UndoResult(each.key, each.tool, "was undone before")
            continue
        if not why and each.tool not in undos:
            why = NO_FUNCTION
        if why:
            yield UndoResult(each.key, each.tool, "not undone", why)
        elif is_dry:
            yield UndoResult(each.key, each.tool, "would be undone")
        else:
            yield _undo(book, each, undos[each.tool], perform, agent, terms)


def _undo(book: EffectLog, effect: Effect, undo: Undo, perform: Perform, agent: str, terms: Terms) -> UndoResult:
    key = undo_key(effect.key)
    try:
        performed = performed_of(book, effect)
        order = Order(key, f"undo {effect.tool}", {"key": effect.key}, run=effect.run, agent=agent, step=effect.step,
                      compensates=effect.key)  # fmt: skip
        perform(order, lambda _: undo(performed), terms)
        book.say(Order(effect.key, effect.tool, None, run=effect.run, agent=agent), {"compensated_by": key})
    except RefoldError as error:
        return UndoResult(effect.key, effect.tool, "not undone", str(error))
    except Exception as error:  # raised by the function in its last attempt; the ledger records it as failed
        return UndoResult(effect.key, effect.tool, "not undone", f"{type(error).__name__}: {error}")
    return UndoResult(effect.key, effect.tool, "undone")


def performed_of(book: EffectLog, effect: Effect) -> Performed:
    """Return the argument of the undo function.

    Raises:
        NotAnswerable: The content can no longer be read.
    """
    arguments = book.arguments(effect.key, effect.inputs)
    receipt = book.opened(effect.key, "receipt", effect.receipt) if effect.receipt else ""
    result = book.result(effect.key, effect.result)
    return Performed(effect.key, effect.tool, arguments, result, receipt, undo_key(effect.key))
