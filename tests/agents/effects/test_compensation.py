"""Undoing a run: last effect first, once, resumable; what cannot be undone is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.effects.errors import EffectUnknown, NotDone
from refold.agents.effects.keys import undo_key
from refold.agents.effects.order import Done, Order, Performed, Terms
from refold_tests.nine_steps import new_ledger, order_of

RUN = "r-1"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[refold.AgentLog]:
    with refold.open(f"file:{tmp_path / 'log'}") as found:
        yield found


def ordered(step: int, run: str = RUN, tool: str = "pay") -> Order:
    plain = order_of("task", run, step)
    return Order(plain.key.replace(":pay:", f":{tool}:"), tool, plain.arguments, run=run, agent="tests")


def did(log: refold.AgentLog, steps: int, run: str = RUN) -> list[str]:
    ledger = new_ledger(log)
    orders = [ordered(step, run) for step in range(1, steps + 1)]
    for number, each in enumerate(orders):
        ledger.perform(each, lambda key, number=number: Done({"id": number}, receipt=f"R{number}"))  # type: ignore[misc]
    return [each.key for each in orders]


class Undoing:
    """An undo function that stores its arguments, and raises what it is given."""

    def __init__(self, *fails: Exception) -> None:
        self.told: list[Performed] = []
        self.fails = list(fails)

    def __call__(self, effect: Performed) -> str:
        self.told.append(effect)
        if self.fails:
            raise self.fails.pop(0)
        return "gone"


def test_effects_are_undone_last_first_and_once(log: refold.AgentLog) -> None:
    keys = did(log, 3)
    did(log, 1, run="other")
    undo, ledger = Undoing(), new_ledger(log)
    planned = list(ledger.compensate(RUN, {"pay": undo}, is_dry=True))
    assert [(each.key, each.ended) for each in planned] == [(key, "would be undone") for key in keys[::-1]]
    assert undo.told == []
    found = list(ledger.compensate(RUN, {"pay": undo}))
    assert [(each.key, each.ended) for each in found] == [(key, "undone") for key in keys[::-1]]
    last = undo.told[0]
    assert (last.key, last.tool, last.undo_key) == (keys[2], "pay", undo_key(keys[2]))
    assert (last.arguments, last.result, last.receipt) == (ordered(3).arguments, {"id": 2}, "R2")
    again = list(new_ledger(log).compensate(RUN, {"pay": undo}))
    assert [each.ended for each in again] == ["was undone before"] * 3
    assert len(undo.told) == 3
    effects = {each.key: each for each in ledger.list()}
    assert effects[keys[0]].compensated_by == undo_key(keys[0])
    assert effects[undo_key(keys[0])].compensates == keys[0]
    assert not any(each.is_left for each in again)


def test_shared_task_is_undone_only_for_the_run_that_executed_it(log: refold.AgentLog) -> None:
    order = ordered(1)
    with pytest.raises(NotDone):
        new_ledger(log).perform(order, raising(NotDone("busy")), Terms(attempts_max=1))
    new_ledger(log).perform(ordered(1, run="r-2"), lambda key: "paid", Terms(attempts_max=2, backoff_ms=0))
    undo = Undoing()
    assert list(new_ledger(log).compensate(RUN, {"pay": undo})) == []
    assert [each.ended for each in new_ledger(log).compensate("r-2", {"pay": undo})] == ["undone"]


def raising(error: Exception) -> Callable[[str], Any]:
    def send(key: str) -> Any:
        raise error

    return send


def test_effect_that_cannot_be_undone_is_named_and_others_continue(log: refold.AgentLog) -> None:
    (first, second, third) = did(log, 3)
    ledger = new_ledger(log)
    with pytest.raises(EffectUnknown):
        ledger.perform(ordered(4), raising(TimeoutError("gone")))
    ledger.perform(ordered(5, tool="mail"), lambda key: "sent")
    undo = Undoing(NotDone("too late", retryable=False), OSError("reset"))
    found = {each.key: each for each in ledger.compensate(RUN, {"pay": undo})}
    assert list(found) == [ordered(5, tool="mail").key, ordered(4).key, third, second, first]
    assert found[ordered(5, tool="mail").key].is_unregistered
    assert "settle it" in found[ordered(4).key].why
    assert found[third].why == "too late"
    assert undo_key(second) in found[second].why
    assert found[first].ended == "undone"
    # An undo of unknown status is settled like any effect; then the effect is undone without another call.
    ledger.settle(undo_key(second), Done("gone"), by="ann")
    calls = len(undo.told)
    again = {each.key: each.ended for each in ledger.compensate(RUN, {"pay": undo})}
    assert again[second] == "undone"
    assert again[third] == "not undone"
    assert len(undo.told) == calls


def test_crash_after_an_undo_is_repaired_by_the_next(log: refold.AgentLog) -> None:
    (key,) = did(log, 1)
    undo, ledger = Undoing(), new_ledger(log)
    with pytest.MonkeyPatch.context() as patch:
        say = ledger._book.say

        def dying(order: Order, said: dict[str, Any], **more: Any) -> None:
            if "compensated_by" in said:
                raise KeyboardInterrupt
            say(order, said, **more)

        patch.setattr(ledger._book, "say", dying)
        with pytest.raises(KeyboardInterrupt):
            list(ledger.compensate(RUN, {"pay": undo}))
    assert not ledger.effect(key).compensated_by
    assert [each.ended for each in new_ledger(log).compensate(RUN, {"pay": undo})] == ["undone"]
    assert len(undo.told) == 1
    assert ledger.effect(key).compensated_by == undo_key(key)


def test_undo_may_be_a_coroutine_function(log: refold.AgentLog) -> None:
    (key,) = did(log, 1)

    async def undo(effect: Performed) -> str:
        return effect.key

    assert [each.ended for each in new_ledger(log).compensate(RUN, {"pay": undo})] == ["undone"]
    assert new_ledger(log).perform(Order(undo_key(key), "", None, run="x"), lambda key: "no") == key
