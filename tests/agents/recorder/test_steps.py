"""Steps and calls as an agent's code sees them, and how they are recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import inspect
from typing import Any

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording, Step
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run
from refold.agents.recorder.steps import AttemptsExhausted
from refold.agents.recorder.writer import RecordingFailed
from refold.avro.errors import InputError, UnknownEntity, ValidationError


def loaded(log: AgentLog, run: Run) -> Recording:
    """Return the run as it is stored in the log; check that its chain is intact."""
    recording = log.recording(run.id)
    assert list(broken(recording)) == []
    return recording


def only(log: AgentLog, run: Run) -> Step:
    (step,) = loaded(log, run).steps
    return step


class Flaky:
    """A function that fails a given number of times before it answers."""

    __name__ = __qualname__ = "flaky"

    def __init__(self, failures: int, error: type[Exception] = TimeoutError) -> None:
        self.left = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error(f"{self.left} left")
        return self.calls


# State


def test_failed_step_restores_the_state(log: AgentLog) -> None:
    with log.run("a", state={"kept": [1], "gone": {}}) as run:
        state = run.state
        with pytest.raises(ValueError, match="no"), run.step("fails"):  # noqa: PT012
            run.state["kept"].append(2)
            del run.state["gone"]
            run.state["new"] = 1
            raise ValueError("no")
        assert run.state is state
        assert state == {"kept": [1], "gone": {}}
        with run.step("goes on"):
            state["kept"].append(3)
    first, second = loaded(log, run).steps
    assert (first.outcome, first.delta, first.state_after) == ("failed", (), first.state_before)
    assert first.failure is not None
    assert (first.failure.exception, first.failure.message) == ("builtins.ValueError", "no")
    assert second.delta == (["splice", ["kept"], 1, 0, [3]],)
    assert second.state_before == first.state_after


def test_each_attempt_starts_with_the_state_of_the_first(log: AgentLog) -> None:
    seen = []

    def grows(run: Run, fails: Flaky) -> None:
        seen.append(list(run.state["items"]))
        run.state["items"].append(1)
        fails()

    with log.run("a", state={"items": []}) as run:
        run.step("grows", grows, run, Flaky(2), attempts_max=3)
        assert run.state == {"items": [1]}
    step = only(log, run)
    assert seen == [[], [], []]
    assert [each.number for each in step.attempts] == [1, 2, 3]
    assert [each.failure.message if each.failure else None for each in step.attempts] == ["1 left", "0 left", None]


@pytest.mark.parametrize(
    "value",
    [[(1, object())], {1: print}, float("nan"), object(), 2**64, {"a", 2**64}],
    ids=lambda value: type(value).__name__,
)
def test_unserializable_state_fails_its_step(log: AgentLog, value: Any) -> None:
    with log.run("a", state={"x": 0}) as run:
        with pytest.raises(InputError, match=r"run\.state"), run.step("spoils"):
            run.state["x"] = value
        assert run.state == {"x": 0}
        with pytest.raises(InputError, match=r"run\.state"):
            run.step("spoils too", lambda: run.state.update(x=value), attempts_max=3)
        with run.step("goes on"):
            run.state["x"] = 1
    steps = loaded(log, run).steps
    assert [(each.outcome, len(each.attempts)) for each in steps] == [("failed", 1), ("failed", 1), ("succeeded", 1)]
    assert steps[0].failure is not None
    assert steps[0].failure.exception.endswith("InputError")


def test_later_changes_of_values_by_the_agent_are_not_recorded(log: AgentLog) -> None:
    given, answer = {"q": [1]}, {"rows": [1]}

    @refold.tool
    def search(query: dict[str, Any]) -> dict[str, Any]:
        return answer

    begun_with, state = {"order": [7]}, {"x": [1]}
    with log.run("a", input=begun_with, state=state) as run:
        begun_with["order"].append(8)
        state["x"].append(2)
        run.input["order"].append(9)
        with run.step("s"):
            search(given)
            given["q"].append(2)
            answer["rows"].append(2)
    recording = loaded(log, run)
    assert (recording.input, recording.state) == ({"order": [7]}, {"x": [1]})
    (call,) = recording.steps[0].calls
    assert call.asked.request == {"kwargs": {"query": {"q": [1]}}}
    assert call.answer == {"rows": [1]}


# Ends


def test_unserializable_output_fails_the_run(log: AgentLog) -> None:
    with pytest.raises(InputError, match=r"run\.output"), log.run("a") as run:
        run.output = {1, print}
    recording = loaded(log, run)
    assert (recording.status, recording.outcome, recording.output) == ("ended", "failed", None)
    assert recording.failure is not None
    assert "run.output" in recording.failure.message


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ValueError("no"), "failed"), (KeyboardInterrupt(), "cancelled"), (SystemExit(1), "cancelled")],
    ids=repr,
)
def test_outcome_of_a_run_is_recorded(log: AgentLog, error: BaseException, outcome: str) -> None:
    with pytest.raises(type(error)), log.run("a", state={}) as run:  # noqa: PT012
        run.output = "lost"
        with run.step("s"):
            raise error
    recording = loaded(log, run)
    assert (recording.status, recording.outcome, recording.output) == ("ended", outcome, None)
    assert recording.failure is not None
    assert recording.failure.exception == f"builtins.{type(error).__name__}"
    assert recording.steps[0].outcome == outcome


def test_ended_run_accepts_nothing_more(log: AgentLog) -> None:
    with log.run("a") as run:
        pass
    for late in (run.now, lambda: run.step("s").__enter__(), lambda: run.step("s", lambda: 1), lambda: run.end(None)):
        with pytest.raises(RecordingFailed, match="has ended"):
            late()


# One step at a time


def test_steps_cannot_be_nested(log: AgentLog) -> None:
    with log.run("a") as run, run.step("outer"):
        with pytest.raises(InputError, match=r"step 1 \(outer\) is still open.*inner"), run.step("inner"):
            pass
        with pytest.raises(InputError, match="inner"):
            run.step("inner", lambda: 1)
    assert only(log, run).name == "outer"


def test_calls_outside_of_any_step_are_steps_of_their_own(log: AgentLog) -> None:
    with log.run("a") as run:
        run.now()
        run.decide("yes")
        with run.step("two"):
            run.now()
            run.now()
    assert [(each.name, len(each.calls)) for each in loaded(log, run).steps] == [("now", 1), ("decide", 1), ("two", 2)]


def test_nested_calls_of_a_tool_are_part_of_its_answer(log: AgentLog) -> None:
    flaky_inner = Flaky(1)

    @refold.tool(attempts_max=2)
    def inner() -> int:
        return flaky_inner()

    @refold.tool
    def outer() -> list[Any]:
        with pytest.raises(InputError, match="called inside a tool"):
            run.decide("x")
        return [inner(), run.now().year > 2000, run.model(lambda: "answer")]

    with log.run("a") as run:
        assert outer() == [2, True, "answer"]
        with run.step("s"):
            outer()
    one, two = loaded(log, run).steps
    for step in (one, two):
        assert [call.asked.name for call in step.calls] == ["outer"]


def test_run_in_a_tool_of_another_run_is_recorded_separately(log: AgentLog) -> None:
    children: list[Run] = []

    @refold.tool
    def helper() -> int:
        with log.run("child") as child:
            children.append(child)
            inner()
            return child.now().year

    @refold.tool
    def inner() -> int:
        return 1

    with log.run("parent") as run:
        helper()
    assert [call.asked.name for call in only(log, run).calls] == ["helper"]
    assert [each.name for each in loaded(log, children[0]).steps] == ["tool: inner", "now"]


# Tries


def test_retries_of_a_call_are_recorded_with_it(log: AgentLog) -> None:
    fails = Flaky(2)

    @refold.tool(attempts_max=3, backoff_ms=1)
    def search() -> int:
        return fails()

    with log.run("a") as run, run.step("s"):
        assert search() == 3
    (call,) = only(log, run).calls
    assert call.answer == 3
    assert [(each.attempt, each.backoff_ms, each.failure.message) for each in call.retries] == [
        (1, 1, "1 left"),
        (2, 2, "0 left"),
    ]


def test_call_that_must_not_be_retried_is_not(log: AgentLog) -> None:
    fails = Flaky(2, ValueError)

    @refold.tool(attempts_max=3, retry_on=(TimeoutError,))
    def search() -> int:
        return fails()

    answers: list[Any] = []

    @refold.tool(attempts_max=3)
    def odd() -> Any:
        answers.append(1)
        return object()

    with log.run("a") as run, run.step("s"):
        with pytest.raises(ValueError, match="1 left"):
            search()
        with pytest.raises(InputError, match="returns="):
            odd()
    assert len(answers) == 1, "an answer that cannot be recorded is no reason to ask again"
    first, second = only(log, run).calls
    assert (first.retries, second.retries) == ((), ())
    assert first.failure is not None
    assert first.failure.tool == "search"


def test_step_attempts_are_counted_bounded_and_delayed(log: AgentLog) -> None:
    fails = Flaky(9)
    with log.run("a") as run, pytest.raises(TimeoutError, match="6 left"):
        run.step("s", fails, attempts_max=3, backoff_ms=1)
    step = only(log, run)
    assert fails.calls == 3
    assert [(each.number, each.backoff_ms) for each in step.attempts] == [(1, 1), (2, 2), (3, 0)]
    fields = log.state(f"step/{run.id}#1").fields
    assert fields["attempts"] == 3
    assert [(each["attempt"], each["backoff_ms"]) for each in fields["retries"]] == [(1, 1), (2, 2)]
    assert (fields["status"], fields["outcome"]) == ("committed", "failed")


@pytest.mark.parametrize("given", [{"attempts_max": 0}, {"attempts_max": -1}, {"backoff_ms": -1}], ids=repr)
def test_invalid_retry_settings_are_refused(log: AgentLog, given: Any) -> None:
    with log.run("a") as run:
        with pytest.raises(InputError, match="attempt"):
            run.step("s", lambda: 1, **given)
        with pytest.raises(InputError, match="attempt"):
            refold.tool(**given)(lambda: 1)
    assert loaded(log, run).steps == ()


def test_attempts_count_across_processes(log: AgentLog) -> None:
    fails = Flaky(9)
    with contextlib.suppress(TimeoutError), log.run("a") as run:
        run.step("s", fails, attempts_max=2)
    with pytest.raises(AttemptsExhausted, match="begun 2 times"), log.run("a", resume=run.id) as again:
        again.step("s", fails, attempts_max=2)
    assert fails.calls == 2
    with pytest.raises(TimeoutError), log.run("a", resume=run.id) as again:
        again.step("s", fails, attempts_max=3)
    assert [each.number for each in only(log, run).attempts] == [1, 2, 3]


# Reads and observations


def test_reads_and_observations_are_recorded_and_linked(log: AgentLog) -> None:
    log.observe("document/ticket-1", {"fields": {"status": "open"}})
    with log.run("a") as run, run.step("s"):
        view = run.read("document/ticket-1")
        found = run.observe("document/ticket-1", {"fields": {"status": "closed"}})
        later = run.read("document/ticket-1")
        with pytest.raises(UnknownEntity):
            run.read("document/nobody")
        with pytest.raises(ValidationError):
            run.observe("document/ticket-1", {"no such field": 1})
    assert (view.fields["fields"]["status"], later.version) == ("open", view.version + 1)
    calls = only(log, run).calls
    assert [(call.asked.kind, call.failure is None) for call in calls] == [
        ("read", True), ("observe", True), ("read", True), ("read", False), ("observe", False),
    ]  # fmt: skip
    assert calls[0].answer["state_hash"] == view.state_hash
    assert "fields" not in calls[0].answer
    assert calls[1].answer == found
    fields = log.state(f"step/{run.id}#1").fields
    assert [(each["entity"], each["version"]) for each in fields["reads"]] == [
        ("document/ticket-1", view.version), ("document/ticket-1", later.version),
    ]  # fmt: skip
    link = next(each for each in log.state("document/ticket-1").why("fields") if each.observation_id == found)
    assert calls[0].answer["observations"] == link.causes


def test_objects_round_trip_with_their_types(log: AgentLog) -> None:
    @dataclasses.dataclass
    class Hit:
        at: dt.datetime
        score: float

    hit = Hit(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), 50.0)

    @refold.tool(returns=Hit)
    def search() -> Any:
        return hit

    with log.run("a") as run:
        assert run.step("s", lambda: hit, returns=Hit) is hit
        assert search() is hit
        assert run.model(lambda: hit, returns=Hit) is hit
    steps = loaded(log, run).steps
    assert steps[0].result == {"at": "2026-01-01T00:00:00Z", "score": 50.0}
    assert type(steps[1].calls[0].answer["score"]) is float


def test_run_provides_the_idempotency_key_of_a_write(log: AgentLog) -> None:
    """Frameworks derive the arguments that a model may fill in from the signature, and pass defaults."""
    keys: list[str] = []

    @refold.tool(effect="write")
    def pay(order: str, *, idempotency_key: str = "") -> str:
        keys.append(idempotency_key)
        return "paid"

    assert list(inspect.signature(pay).parameters) == ["order"]
    assert "idempotency_key" not in inspect.get_annotations(pay)
    with log.run("a") as run:
        assert pay("o-7", idempotency_key="") == "paid"
        with pytest.raises(InputError, match="pay: leave idempotency_key out, the run passes it"):
            pay("o-8", idempotency_key="mine")
    assert len(keys) == 1
    assert keys[0].startswith(f"{run.id}:1:pay:")
    assert pay("o-8", idempotency_key="mine") == "paid"
    assert keys[1] == "mine"
