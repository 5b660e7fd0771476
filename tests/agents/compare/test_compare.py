"""Two runs are compared: the first difference and its origin are reported, and nothing if the runs are equal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from refold.agents.compare.compare import compare
from refold.agents.compare.divergence import Divergence
from refold.agents.compare.render import describe
from refold.agents.journal.record import Attempt, Call, Failure, Recording, Step
from refold_tests.recordings import call, decided, run, step

ASK = call("get_order", '{"id": 7, "lines": [{"sku": "a", "n": 1}], "status": "sent"}', order=7)
TELL = call("mail", "ok", to="mia", body="It was sent.")
BASE = run(
    step(ASK, name="look", order=7),
    step(call("search", "nothing", q="refund"), decided("refund", "it is late"), name="think"),
    step(TELL, name="act", result="mailed", done=True),
    output="mailed",
)


def with_step(number: int, other: Step) -> Recording:
    return run(*BASE.steps[: number - 1], other, *BASE.steps[number:], output="mailed", run="run-b")


def parted(b: Recording, a: Recording = BASE, **named: Any) -> Divergence:
    found = compare(a, b, **named)
    assert found is not None
    return found


def paths(found: Divergence) -> list[tuple[str, str]]:
    return [(each.path, each.op) for each in found.differences]


def test_run_equals_itself() -> None:
    assert compare(BASE, BASE, exact=True) is None
    assert list(describe(None)) == ["no difference"]


@pytest.mark.parametrize(
    ("number", "other", "what", "why", "differing"),
    [
        (1, step(call("get_order", "x", order=8), name="look", order=7), "arguments", "asked",
         [("kwargs.order", "set")]),
        (1, step(call("get_order", '{"id": 7, "lines": [{"sku": "a", "n": 2}], "note": "", "status": "sent"}', order=7),
                 name="look", order=7), "answer", "answered", [("#.lines[0].n", "set"), ("#.note", "add")]),
        (1, step(call("get_order", None, failed="builtins.TimeoutError", order=7), name="look", order=7), "failure",
         "answered", [("answer", "set"), ("failure", "set")]),
        (1, step(call("get_user", "x", order=7), name="look", order=7), "tool", "asked", [("name", "set")]),
        (1, step(ASK, name="look", order=8), "kept", "kept", [("order", "set")]),
        (1, step(ASK, ASK, name="look", order=7), "call", "asked", []),
        (1, step(ASK, name="peek", order=7), "name", "asked", [("", "set")]),
        (2, step(call("search", "nothing", q="refund"), decided("keep", "it is late"), name="think"), "decision",
         "decided", [("choice", "set")]),
        (2, step(decided("refund", "it is late"), call("search", "nothing", q="refund"), name="think"), "order",
         "asked", []),
        (3, step(TELL, name="act", result="sent", done=True), "result", "kept", [("", "set")]),
    ],
)  # fmt: skip
def test_difference_is_named(number: int, other: Step, what: str, why: str, differing: list[tuple[str, str]]) -> None:
    found = parted(with_step(number, other))
    assert (found.step, found.what, found.why, paths(found)) == (number, what, why, differing)
    assert found.a.step == found.b.step == number
    assert next(describe(found)).startswith(f"first divergence at step {number}: ")


def test_call_is_aligned_between_changed_neighbours() -> None:
    a = run(step(call("x", 1, n=1), call("y", 2), call("z", 3)))
    found = parted(run(step(call("x", 1, n=2), call("new", 0), call("y", 2), call("z", 4))), a)
    assert (found.what, found.a.call, found.b.call, found.also) == ("arguments", 1, 1, ("call", "answer"))
    found = parted(run(step(call("x", 1, n=1), call("new", 0), call("y", 2), call("z", 3))), a)
    assert (found.what, found.only, found.a.call, found.b.call, found.also) == ("call", "b", None, 2, ())


def test_divergence_is_the_worlds_when_a_request_changed_because_of_an_answer() -> None:
    retried = run(step(call("x", "busy")), step(call("x", "ok")), step(call("y", 1)))
    found = parted(retried, run(step(call("x", "ok")), step(call("y", 1))))
    assert (found.step, found.what, found.why) == (1, "answer", "answered")
    assert [(each.a, each.b, each.what) for each in found.later] == [(None, 2, "step")]


def test_answer_precedes_the_request_it_caused() -> None:
    a = run(step(call("x", 1), call("y", 1)), step(call("w", 1)))
    found = parted(run(step(call("x", 2), call("z", 1)), step(call("x", 1), call("y", 1)), step(call("w", 1))), a)
    assert (found.step, found.what, found.why, found.a.call) == (1, "answer", "answered", 1)
    assert found.also == ("tool",)


def test_longer_run_continues_the_shorter() -> None:
    shorter = run(*BASE.steps[:2], run="run-b")
    found = parted(shorter)
    assert (found.step, found.what, found.why, found.only) == (3, "step", "longer", "a")
    assert (found.a.step, found.b.step) == (3, None)
    assert found.a.value["calls"][0]["request"]["kwargs"]["to"] == "mia"
    swapped = parted(BASE, shorter)
    assert (swapped.step, swapped.only, swapped.a.step, swapped.b.step) == (3, "b", None, 3)
    text = "\n".join(describe(found))
    assert "A goes on" in text
    assert 'tool mail(to="mia", body="It was sent.")' in text


def test_inserted_step_is_named_without_the_steps_after_it() -> None:
    fresh = step(call("audit", "ok"), name="audit")
    longer = run(*BASE.steps[:1], fresh, *BASE.steps[1:], output="mailed", run="run-b")
    found = parted(longer)
    assert (found.step, found.what, found.why, found.only, found.later) == (2, "step", "asked", "b", ())
    assert parted(BASE, longer).only == "a"
    assert "only B has this step" in next(describe(found))


def test_reordered_steps_are_not_different_steps() -> None:
    found = parted(run(BASE.steps[0], BASE.steps[2], BASE.steps[1], output="mailed"))
    assert (found.step, found.what) == (2, "order")


def test_later_steps_are_aligned() -> None:
    one, two, three, four = (step(call(f"t{n}", n, n=n)) for n in range(4))
    a = run(one, two, three, four)
    b = run(step(call("t0", 0, n=9)), two, step(call("new", 1)), three, step(call("t3", 4, n=3)))
    found = parted(b, a)
    assert (found.step, found.what) == (1, "arguments")
    assert [(each.a, each.b, each.what) for each in found.later] == [(None, 3, "step"), (4, 5, "answer")]


@pytest.mark.parametrize(
    ("more", "what"),
    [({"agent": "other"}, "agent"), ({"input": 1}, "input"), ({"seed": 1}, "seed"), ({"state": {"x": 1}}, "state")],
)
def test_different_inputs_precede_every_step(more: dict[str, Any], what: str) -> None:
    found = parted(run(step(call("y", 1)), **more), run(step(call("x", 1))))
    assert (found.step, found.what, found.why) == (0, what, "started")


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"outcome": "failed", "output": "other"}, "run_outcome"),
        ({"output": {"mailed": False}}, "output"),
        ({"failure": Failure(exception="builtins.ValueError", message="no")}, "run_failure"),
    ],
)
def test_different_outcomes_follow_every_step(more: dict[str, Any], what: str) -> None:
    found = parted(run(*BASE.steps, **({"output": "mailed"} | more)))
    assert (found.step, found.what, found.why) == (None, what, "kept")


def test_exact_comparison_counts_attempts_and_failures() -> None:
    failed = Attempt(calls=(call("x", None, failed="builtins.OSError"),), failure=Failure(exception="builtins.OSError"))
    good = Attempt(number=2, calls=(call("x", 1),))
    tried = msgspec.structs.replace(step(call("x", 1)), attempts=(failed, good))
    found = parted(run(tried), run(step(call("x", 1))), exact=True)
    assert (found.what, found.why, found.also) == ("failure", "answered", ("step_failure", "attempts"))


def tried(*attempts: Attempt, **more: Any) -> Recording:
    numbered = tuple(msgspec.structs.replace(each, number=number) for number, each in enumerate(attempts, 1))
    return run(msgspec.structs.replace(step(**more), attempts=numbered), run="run-b")


def written(made: Call) -> Call:
    return msgspec.structs.replace(made, asked=msgspec.structs.replace(made.asked, effect="write"))


FAILED = Failure(exception="builtins.OSError")


def test_retried_or_truncated_step_equals_one_that_was_not() -> None:
    once = run(step(call("x", 1)))
    good, heard = Attempt(calls=(call("x", 1),)), Attempt(calls=(call("x", None, failed="builtins.OSError"),))
    for first in (msgspec.structs.replace(heard, failure=FAILED), Attempt(), heard):
        for b in (tried(first, good), tried(first, first, good)):
            assert compare(once, b) is None
            assert compare(b, once) is None
            assert compare(once, b, exact=True) is not None
    found = parted(tried(Attempt(), Attempt(calls=(call("x", 2),))), once)
    assert (found.what, found.why, found.a.attempt, found.b.attempt) == ("answer", "answered", 1, 2)
    assert "B run run-b, step 1, attempt 2, call 1" in list(describe(found))


def test_effect_of_an_earlier_attempt_alone_is_a_difference() -> None:
    paid, mailed = written(call("pay", "ok", to="mia")), written(call("mail", "ok", to="mia"))
    once = run(step(mailed))
    assert compare(once, tried(Attempt(calls=(mailed,), failure=FAILED), Attempt(calls=(mailed,)))) is None
    refused = written(call("pay", None, failed="builtins.OSError", to="mia"))
    assert compare(once, tried(Attempt(calls=(refused,), failure=FAILED), Attempt(calls=(mailed,)))) is None
    both = tried(Attempt(calls=(call("r", 1), paid), failure=FAILED), Attempt(calls=(mailed,)))
    found, back = parted(both, once), parted(once, both)
    assert (found.what, found.only, found.b.attempt, found.b.call) == ("call", "b", 1, 2)
    assert (back.what, back.only, back.a.attempt, back.a.call) == ("call", "a", 1, 2)
    assert compare(both, both) is None
    other = tried(Attempt(calls=(paid,), failure=FAILED), Attempt(calls=(mailed,)))
    assert compare(both, other) is None  # reads of an attempt that failed do not count


def test_fresh_ids_in_earlier_attempts_are_ignored() -> None:
    def live(uuid: str) -> Recording:
        first = Attempt(calls=(call("", uuid, kind="uuid"), written(call("pay", "ok", by=uuid))), failure=FAILED)
        return tried(first, Attempt(calls=(call("x", 1),)))

    assert compare(live("0a0a0a0a-1"), live("0b0b0b0b-2")) is None


def test_truncated_run_is_shorter_not_different() -> None:
    whole = run(step(call("x", 1), call("y", 2), name="s"), step(call("z", 1)))
    pending = msgspec.structs.replace(step(call("x", 1), name="s"), outcome="")
    for first in (pending, msgspec.structs.replace(pending, attempts=(Attempt(),))):
        found, back = parted(run(first), whole), parted(whole, run(first))
        assert (found.step, found.what, found.why, found.only) == (1, "step", "longer", "a")
        assert (back.step, back.what, back.why, back.only) == (1, "step", "longer", "b")
    other = msgspec.structs.replace(step(call("x", 2), name="s"), outcome="")
    assert parted(run(other), whole).what == "answer"


def test_clocks_random_numbers_and_ids_are_ignored() -> None:
    def live(now: int, uuid: str, observation: str, cut: str, name: str, mark: str = "") -> Recording:
        read = {"version": 3, "state_hash": "ab", "observations": ["cd"], "cut": cut}
        return run(
            step(call("", now, kind="now"), call("", uuid, kind="uuid"), call("document/a", read, kind="read")),
            step(call("pay", "ok", key=f"order-{uuid}", at=now, run=name, mark=mark), token=uuid),
            step(call("document/a", observation, kind="observe", fields={"paid": True}), result=observation),
            run=name,
        )

    a = live(1_700_000, "0a0a0a0a-1", "e" * 64, "cut:1.a", "run-aaaa")
    assert compare(a, live(1_900_000, "0b0b0b0b-2", "f" * 64, "cut:1.b", "run-bbbb")) is None
    found = parted(live(1_900_000, "0b0b0b0b-2", "f" * 64, "cut:1.b", "run-bbbb", mark="x"), a)
    assert (found.step, found.what, paths(found)) == (2, "arguments", [("kwargs.mark", "set")])
    exactly = parted(live(1_900_000, "0b0b0b0b-2", "f" * 64, "cut:1.b", "run-bbbb"), a, exact=True)
    assert (exactly.step, exactly.what, exactly.a.call) == (1, "answer", 1)


def test_read_of_another_version_is_caused_by_the_world() -> None:
    read = {"version": 3, "state_hash": "ab", "observations": ["cd"], "cut": "cut:1.x"}
    newer = read | {"version": 4, "state_hash": "ef", "observations": ["01"]}
    a, b = (run(step(call("document/a", each, kind="read"))) for each in (read, newer))
    found = parted(b, a)
    assert (found.what, found.why) == ("answer", "answered")
    assert [each.path for each in found.differences] == ["version", "state_hash", "observations[0]"]


def test_fork_states_what_was_changed() -> None:
    child = run(
        BASE.steps[0], step(call("search", "all", q="refund"), decided("keep"), name="think"),
        run="child", parent="run-a", forked_at=1, patch={"model": "other"},
    )  # fmt: skip
    found = parted(child)
    assert found.step == 2
    assert found.forked == {"side": "b", "parent": "run-a", "at": 1, "patch": {"model": "other"}}
    assert any("B is a fork" in line for line in describe(found))
    unchanged = run(*BASE.steps, run="child", parent="run-a", forked_at=1, patch={"model": "x"}, output="mailed")
    assert compare(BASE, unchanged) is None
    assert parted(unchanged, exact=True).what == "patch"
