"""The ledger on an embedded log: what callers get, what is stored in the log, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.agents.effects.claims import token_of
from refold.agents.effects.errors import EffectFailed, EffectUnknown, NotDone, ResultNotKept
from refold.agents.effects.keys import entity_of
from refold.agents.effects.ledger import Ledger
from refold.agents.effects.listing import FATES
from refold.agents.effects.log_entries import EffectLog, OwnEntry
from refold.agents.effects.order import Done, Order, Terms
from refold.agents.keys.ring import MemoryKeyRing
from refold.agents.vault import Vault, run_key
from refold.avro.errors import Expired, InputError, StorageError
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.entity_index import EntityIndexes
from refold_tests.ledger_world import ARGUMENTS, CARD, LEASE_S, Service, World, ordered


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "log")
    yield found
    check_index(found)
    found.log.close()


def check_index(world: World) -> None:
    """Check that a log with indexes lists the same effects: after each test, so in every state that the tests make."""
    conditions: list[dict[str, str]] = [{}, {"run": "r-1"}, {"run": "r-2"}, {"tool": "pay"}, {"tool": "x"}]
    conditions += [{"status": each} for each in FATES]
    expected = [world.ledger().list(**each) for each in conditions]
    world.log.indexes = EntityIndexes()
    assert [world.ledger().list(**each) for each in conditions] == expected


def test_index_reads_only_effects_that_can_have_the_status(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.ledger().perform(ordered(step=1), lambda key: {"id": key})
    with pytest.raises(EffectUnknown):
        world.ledger().perform(ordered(step=2), Service(TimeoutError()))
    world.log.indexes = EntityIndexes()
    assert len(world.ledger().list(status="done")) == 1  # the index is made
    read: list[str] = []
    states = Log.states

    def noted(log: Log, names: list[str], at: Cut) -> Any:
        read.extend(names)
        return states(log, names, at)

    monkeypatch.setattr(Log, "states", noted)
    monkeypatch.setattr(Log, "rebuild", None)
    [found] = world.ledger().list(status="unknown")
    assert read == [entity_of(found.key)]
    monkeypatch.undo()


def test_repeated_call_returns_the_first_result(world: World) -> None:
    order, service = ordered(), Service({"id": "r", "amount": 50.0, "parts": (1, 2)}, "another")
    result = {"id": "r", "amount": 50.0, "parts": [1, 2]}
    for _ in range(2):
        ledger = world.ledger()
        for run in ("r-1", "r-2"):
            found = ledger.perform(ordered(run), service)
            assert found == result
            assert type(found["amount"]) is float
        world.restarted()
    assert service.keys == [order.key]
    effect = world.ledger().effect(order.key)
    assert (effect.status, effect.run, effect.attempts, effect.times_done) == ("done", "r-1", 1, 1)
    assert world.ledger().arguments(effect) == ARGUMENTS
    assert world.ledger().result(effect) == result
    fields = world.log.state(entity_of(order.key)).fields
    assert (fields["agent"], fields["step"], fields["tool"]) == ("a", "r-1#1", "pay")


def test_own_claim_is_not_granted_over_an_earlier_one(world: World) -> None:
    order, other = ordered(), ordered("r-2")
    book = EffectLog(world.log)

    def claimed(by: Order) -> OwnEntry:
        return book.say(by, {"claims": {token_of(by.run, "x"): "intended"}, "intended_at": 1, "lease_ms": 1000})

    claimed(other)
    found = book.read(order.key, own=claimed(order))
    assert found == book.read(order.key)
    assert found.holder is not None
    assert (found.holder.run, found.tokens) == ("r-2", {"r-1:x", "r-2:x"})


def test_effect_not_done_is_retried_with_growing_delays(world: World) -> None:
    service = Service(NotDone("busy"), ConnectionRefusedError("down"), NotDone("busy"), "paid")
    terms = Terms(attempts_max=4, backoff_ms=200, safe=(ConnectionRefusedError,))
    assert world.ledger().perform(ordered(), service, terms) == "paid"
    assert world.slept == [0.2, 0.4, 0.8]
    effect = world.ledger().effect(ordered().key)
    assert [(each["attempt"], each["backoff_ms"], each["error"]) for each in effect.retries] == [
        (1, 200, "busy"), (2, 400, "down"), (3, 800, "busy"),
    ]  # fmt: skip
    assert (effect.attempts, effect.status) == (4, "done")


@pytest.mark.parametrize("how", ["retried", "settled", "probed"])
def test_effect_done_after_retries_shows_no_earlier_error(world: World, how: str) -> None:
    error = NotDone("busy") if how == "retried" else TimeoutError("no answer")
    service, terms = Service(error, "paid"), Terms(attempts_max=2, backoff_ms=1)
    if how == "retried":
        world.ledger().perform(ordered(), service, terms)
    else:
        with pytest.raises(EffectUnknown):
            world.ledger().perform(ordered(), service, terms)
        assert world.ledger().effect(ordered().key).error["exception"] == "TimeoutError"
        assert "error" in world.log.state(entity_of(ordered().key)).fields
        if how == "settled":
            world.ledger().settle(ordered().key, Done("paid"), by="mia")
        else:
            world.ledger().perform(ordered(), service, Terms(probe=lambda key, arguments: Done("paid")))
    effect = world.ledger().effect(ordered().key)
    assert (effect.status, effect.error, effect.run) == ("done", {}, "r-1")
    fields = world.log.state(entity_of(ordered().key)).fields
    assert "error" not in fields
    assert len(fields.get("retries", ())) == (1 if how == "retried" else 0)


def test_attempts_and_delays_survive_restarts(world: World) -> None:
    service, terms = Service(NotDone("busy")), Terms(attempts_max=3, backoff_ms=1000)

    def killed(seconds: float) -> None:
        raise KeyboardInterrupt

    dying = Ledger(world.log, lambda: world.now, lambda: "t", sleep=killed)
    with pytest.raises(KeyboardInterrupt):
        dying.perform(ordered(), service, terms)
    world.restarted()
    world.now += 300_000
    with pytest.raises(NotDone, match="busy"):
        world.ledger().perform(ordered(), service, terms)
    assert world.slept == [0.7, 2.0]
    assert len(service.keys) == 3
    world.restarted()
    with pytest.raises(EffectFailed, match=r"attempt 3.*NotDone: busy"):
        world.ledger().perform(ordered(), service, terms)
    assert len(service.keys) == 3
    # A person may allow it to be tried again.
    assert world.ledger().settle(ordered().key, NotDone(), by="ann").status == "failed"
    with pytest.raises(NotDone):
        world.ledger().perform(ordered(), service, terms)
    assert len(service.keys) == 6


def test_permanent_failure_is_final(world: World) -> None:
    service = Service(NotDone("declined", retryable=False))
    with pytest.raises(NotDone, match="declined"):
        world.ledger().perform(ordered(), service)
    with pytest.raises(EffectFailed, match="declined"):
        world.ledger().perform(ordered(), service)
    assert len(service.keys) == 1
    assert world.ledger().effect(ordered().key).settled_at == world.now


@pytest.mark.parametrize("error", [TimeoutError("gone"), ValueError("?"), KeyboardInterrupt(), SystemExit(3)])
def test_effect_is_unknown_unless_the_tool_says_it_was_not_done(world: World, error: BaseException) -> None:
    service = Service(error, "never")
    with pytest.raises(EffectUnknown if isinstance(error, Exception) else type(error)) as raised:
        world.ledger().perform(ordered(), service)
    assert raised.value.__cause__ is error or raised.value is error
    assert world.status(ordered()) == "unknown"
    for run in ("r-1", "r-2"):
        with pytest.raises(EffectUnknown, match="refold effects settle"):
            world.ledger().perform(ordered(run), service)
    world.restarted()
    with pytest.raises(EffectUnknown):
        world.ledger().perform(ordered(), service)
    assert len(service.keys) == 1
    assert [each.key for each in world.ledger().list(status="unknown")] == [ordered().key]


def test_unknown_effect_is_settled_by_hand(world: World) -> None:
    service = Service(TimeoutError("gone"), "paid")
    for step in (1, 2):
        with pytest.raises(EffectUnknown):
            world.ledger().perform(ordered(step=step), Service(TimeoutError("gone")))
    ledger = world.ledger()
    assert ledger.settle(ordered(step=1).key, Done({"id": 4}, receipt="R"), by="ann", note="seen").status == "done"
    assert ledger.perform(ordered(step=1), service) == {"id": 4}
    assert service.keys == []
    settled = ledger.settle(ordered(step=2).key, NotDone(), by="ann")
    assert (settled.status, settled.reconciled_by) == ("failed", "ann")
    service.answers = ["paid"]
    assert ledger.perform(ordered(step=2), service, Terms(attempts_max=1)) == "paid"
    assert world.log.state(entity_of(ordered(step=1).key)).fields["reconciled_note"] == "seen"
    for key, why in ((ordered(step=1).key, "it is done"), ("task:9:x:0", "no such effect is recorded")):
        with pytest.raises(InputError, match=why):
            ledger.settle(key, Done(1), by="ann")
    with pytest.raises(InputError, match="it is done"):
        ledger.settle(ordered(step=1).key, NotDone(), by="ann")


def test_effect_with_a_live_lease_is_not_settled(world: World) -> None:
    order, other = ordered(), world.ledger()

    def meanwhile() -> str:
        with pytest.raises(InputError, match="may still be carrying it out"):
            other.settle(order.key, NotDone(), by="ann")
        assert world.status(order) == "intended"
        world.now += int(LEASE_S * 1e6)
        assert world.status(order) == "unknown"
        assert other.settle(order.key, NotDone(), by="ann").status == "failed"
        return "paid after all"

    assert world.ledger().perform(order, Service(meanwhile)) == "paid after all"
    # The claim's holder knows better than the person who gave the effect up.
    assert (world.status(order), other.perform(order, Service("no"))) == ("done", "paid after all")


def test_effect_done_twice_is_reported(world: World) -> None:
    order, other = ordered(), world.ledger()

    def meanwhile() -> str:
        world.now += int(LEASE_S * 1e6)
        other.settle(order.key, NotDone(), by="ann")
        assert other.perform(ordered("r-2"), Service("second"), Terms(backoff_ms=0)) == "second"
        return "first"

    world.ledger().perform(order, Service(meanwhile))
    effect = other.effect(order.key)
    assert (effect.status, effect.times_done, effect.runs) == ("done", 2, frozenset({"r-1", "r-2"}))
    assert other.perform(order, Service("third")) == "second"


def test_refused_call_leaves_nothing(world: World) -> None:
    order = Order(ordered().key, "pay", {"kwargs": {"order": {1}}}, run="r-1")
    with pytest.raises(InputError, match="a JSON value"):
        world.ledger().perform(order, Service("never"))
    assert world.ledger().list() == []


def test_probe_that_finds_a_later_resend_counts_it_once(world: World) -> None:
    order, other = ordered(), world.ledger()

    def late(key: str, arguments: Any) -> Done:
        world.now += int(LEASE_S * 1e6)
        other.settle(key, NotDone(), by="ann")
        other.perform(ordered("r-2"), Service("paid"))
        return Done("found")

    assert world.ledger().perform(order, Service(TimeoutError("gone")), Terms(probe=late)) == "paid"
    assert other.effect(order.key).times_done == 1


class ScriptedProbe:
    """A probe that returns the given answers in turn."""

    def __init__(self, *answers: Any) -> None:
        self.answers = [*answers]
        self.told: list[tuple[str, Any]] = []

    def __call__(self, key: str, arguments: Any) -> Any:
        self.told.append((key, arguments))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_probe_that_finds_it_done_settles_it_at_once(world: World) -> None:
    service, probe = Service(TimeoutError("gone")), ScriptedProbe(Done({"id": 4}))
    assert world.ledger().perform(ordered(), service, Terms(probe=probe)) == {"id": 4}
    assert probe.told == [(ordered().key, ARGUMENTS)]
    assert world.slept == []
    assert world.ledger().perform(ordered(), service) == {"id": 4}
    assert len(service.keys) == 1


@pytest.mark.parametrize("answers", [(NotDone("not there"), NotDone("not there")), (NotDone, NotDone())])
def test_probe_answer_not_done_is_accepted_after_the_lease(world: World, answers: tuple[Any, ...]) -> None:
    service = Service(TimeoutError("gone"), "paid")
    begun = world.now
    probe = ScriptedProbe(*answers)
    assert world.ledger().perform(ordered(), service, Terms(probe=probe, lease_s=LEASE_S)) == "paid"
    assert sum(world.slept) >= LEASE_S
    assert world.now - begun >= LEASE_S * 1e6
    assert len(service.keys) == len(probe.told) == 2


def test_late_effect_is_found_by_the_second_probe(world: World) -> None:
    service, probe = Service(TimeoutError("gone"), "again"), ScriptedProbe(NotDone(), Done("late"))
    assert world.ledger().perform(ordered(), service, Terms(probe=probe)) == "late"
    assert len(service.keys) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [(None, "could not tell"), (OSError("no route"), "failed with OSError: no route"), ("yes", "returned a str")],
)
def test_effect_stays_unknown_when_the_probe_cannot_tell(world: World, answer: Any, why: str) -> None:
    service = Service(TimeoutError("gone"))
    with pytest.raises(EffectUnknown, match=why):
        world.ledger().perform(ordered(), service, Terms(probe=ScriptedProbe(answer)))
    assert world.status(ordered()) == "unknown"
    assert world.ledger().perform(ordered("r-2"), service, Terms(probe=ScriptedProbe(Done("found")))) == "found"


def test_probe_settles_automatically_when_configured(world: World) -> None:
    with pytest.raises(EffectUnknown):
        world.ledger().perform(ordered(), Service(TimeoutError("gone")))
    ledger, key = world.ledger(), ordered().key
    assert ledger.settle_by(key, ScriptedProbe(None), by="ann").status == "unknown"
    with pytest.raises(InputError, match="may still be in progress"):
        ledger.settle_by(key, ScriptedProbe(NotDone()), by="ann")
    with pytest.raises(InputError, match="returned a str"):
        ledger.settle_by(key, ScriptedProbe("yes"), by="ann")
    world.now += int(LEASE_S * 1e6)
    assert ledger.settle_by(key, ScriptedProbe(NotDone()), by="ann").status == "failed"
    with pytest.raises(InputError, match="it is failed"):
        ledger.settle_by(key, ScriptedProbe(Done(1)), by="ann")


def test_open_claim_is_unknown_at_once_for_its_own_run_and_after_the_lease_for_others(world: World) -> None:
    steps = world.ledger()._protocol.perform(ordered(), Service("lost"), Terms(lease_s=LEASE_S))
    command = next(steps)
    for _ in range(2):  # a read, and `intended`; then it is killed
        command = steps.send(command.work())  # type: ignore[union-attr]
    steps.close()
    assert world.status(ordered()) == "intended"
    with pytest.raises(EffectUnknown, match="run r-1 set out to send it"):
        world.ledger().perform(ordered("r-2"), Service("no"))
    assert sum(world.slept) == pytest.approx(LEASE_S)
    slept = len(world.slept)
    with pytest.raises(EffectUnknown):
        world.ledger().perform(ordered(), Service("no"))
    assert len(world.slept) == slept


def test_holder_with_a_too_slow_log_sends_nothing(world: World) -> None:
    ledger, service = world.ledger(), Service("paid")
    say = ledger._book.say

    def slow(*given: Any, **more: Any) -> None:
        say(*given, **more)
        world.now += int(LEASE_S * 1e6 * 0.6)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger._book, "say", slow)
        with pytest.raises(StorageError, match="nothing was sent"):
            ledger.perform(ordered(), service, Terms(lease_s=LEASE_S))
    assert (world.status(ordered()), service.keys) == ("released", [])
    assert ledger.perform(ordered(), service) == "paid"


@pytest.mark.parametrize("result", [object(), {1: 2}, float("nan"), "\ud800"])
def test_unserializable_result_leaves_the_effect_done(world: World, result: Any) -> None:
    service = Service(result, "again")
    with pytest.raises(ResultNotKept, match="it took place"):
        world.ledger().perform(ordered(), service)
    with pytest.raises(ResultNotKept, match="--done RESULT"):
        world.ledger().perform(ordered(), service)
    assert (world.status(ordered()), len(service.keys)) == ("done", 1)
    world.ledger().settle(ordered().key, Done("as the service says"), by="ann")
    assert world.ledger().perform(ordered(), service) == "as the service says"


def test_raising_redactor_writes_nothing_and_sends_nothing_again(world: World) -> None:
    def redact(tree: Any) -> Any:
        raise RuntimeError("no redaction today")

    service = Service("secret")
    with pytest.raises(ResultNotKept, match="no redaction today"):
        world.ledger(redact=redact).perform(ordered(), service)
    with pytest.raises(ResultNotKept):
        world.ledger().perform(ordered(), service)
    assert len(service.keys) == 1


def test_private_effect_is_redacted_sealed_and_erased(world: World) -> None:
    ring = MemoryKeyRing()
    vault = Vault(world.log, ring)
    ledger = world.ledger(keeper=vault, redact=lambda tree: "card X" if CARD in str(tree) else tree)
    assert ledger.perform(ordered(), Service(f"card {CARD}")) == "card X"
    with pytest.raises(NotDone):
        ledger.perform(ordered(step=2), Service(NotDone(f"no card {CARD}")), Terms(attempts_max=1))
    assert ledger.perform(ordered(), Service("never")) == "card X"
    assert ledger.message(ledger.effect(ordered(step=2).key)) == "card X"
    world.log.flush()
    stored = b"".join(each.read_bytes() for each in world.path.rglob("*") if each.is_file())
    assert CARD.encode() not in stored
    assert b"card X" not in stored
    ring.destroy(run_key("r-1"))
    with pytest.raises(Expired):
        world.ledger(keeper=Vault(world.log, ring)).perform(ordered(), Service("never"))


@pytest.mark.parametrize("wrong", [{"attempts_max": 0}, {"backoff_ms": -1}, {"lease_s": 0}, {"lease_s": float("inf")}])
def test_contradictory_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="lease_s above 0"):
        Terms(**wrong)


def test_log_without_effects_lists_none(world: World) -> None:
    assert world.ledger().list() == []
    with pytest.raises(InputError, match="no such effect is recorded"):
        world.ledger().effect("x")
