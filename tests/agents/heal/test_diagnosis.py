"""What is found wrong with a run: a pure function of what the log holds of it."""

from __future__ import annotations

from typing import Any

import pytest

from refold.agents.heal.diagnosis import (
    Denial,
    Evidence,
    GoldenDivergence,
    StaleRead,
    diagnose,
    last_good,
)
from refold.agents.journal.record import Attempt, Call, Failure, RecordedRequest, Recording, Step

DENIED = Failure(exception="refold.agents.policy.decision.PolicyDenied")
LOST = Failure(exception="builtins.ConnectionError", tool="look")


def tool(name: str, answer: Any = "same", *, effect: Any = "read", at: int = 0, failure: Failure | None = None,
         kind: Any = "tool") -> Call:  # fmt: skip
    asked = RecordedRequest(kind=kind, name=name, request={"kwargs": {}}, effect=effect)
    return Call(asked=asked, answer=answer, failure=failure, started_at=at)


def step(number: int, *calls: Call, outcome: Any = "succeeded", failure: Failure | None = None) -> Step:
    timed = tuple(Call(**{**{name: getattr(each, name) for name in each.__struct_fields__}, "started_at": number})
                  for each in calls)  # fmt: skip
    return Step(number=number, name=f"s{number}", attempts=(Attempt(calls=timed, failure=failure),), outcome=outcome)


def run(*steps: Step, outcome: Any = "failed", failure: Failure | None = None, status: str = "ended") -> Recording:
    return Recording(run="r", agent="a", steps=steps, outcome=outcome, failure=failure, status=status)


def kinds(evidence: Evidence) -> list[tuple[str, str, int]]:
    return [(each.kind, each.name, each.at) for each in diagnose(evidence).findings]


def test_error_names_its_class_step_and_end_observation() -> None:
    failure = Failure(exception="builtins.ValueError")
    recording = run(step(1), step(2, outcome="failed", failure=failure), failure=failure)
    found = diagnose(Evidence(recording, {"step/r#2": "ab", "run/r": "cd"}))
    assert [(each.kind, each.name, each.at, each.steps, each.observations) for each in found.findings] == [
        ("error", "builtins.ValueError", 1, ("r#2",), ("ab", "cd")),
    ]
    assert found.failure == "error builtins.ValueError"


def test_failed_tool_precedes_its_error() -> None:
    recording = run(step(1), step(2, tool("look", failure=LOST), outcome="failed", failure=LOST), failure=LOST)
    assert kinds(Evidence(recording)) == [("tool", "look", 1), ("error", "builtins.ConnectionError", 1)]


def test_failure_outside_of_a_step_keeps_every_step() -> None:
    assert kinds(Evidence(run(step(1), step(2), failure=Failure(exception="builtins.KeyError")))) == [
        ("error", "builtins.KeyError", 2),
    ]


@pytest.mark.parametrize(("names", "good"), [
    pytest.param(["b", "a", "a", "a"], 2, id="the same call: the first one is good"),
    pytest.param(["a", "b", "a", "b", "a", "b"], 2, id="a cycle of two: the first cycle is good"),
    pytest.param(["a", "a"], None, id="twice is no loop"),
    pytest.param(["a", "b", "a", "c", "a", "b"], None, id="another call in between"),
])  # fmt: skip
def test_loop_is_found_by_calls_and_results(names: list[str], good: int | None) -> None:
    steps = [step(number, tool(name)) for number, name in enumerate(names, 1)]
    last = step(len(names) + 1, tool("a", failure=DENIED), outcome="failed", failure=DENIED)
    found = kinds(Evidence(run(*steps, last, failure=DENIED)))
    assert [at for kind, _, at in found if kind == "loop"] == ([] if good is None else [good])


def test_polling_that_makes_progress_is_no_loop() -> None:
    steps = [step(number, tool("a", number)) for number in range(1, 9)]
    assert kinds(Evidence(run(*steps, failure=LOST)))[0][0] != "loop"


def test_loop_within_one_step_rewinds_before_it() -> None:
    recording = run(step(1), step(2, *[tool("a")] * 4, outcome="failed", failure=DENIED), failure=DENIED)
    assert kinds(Evidence(recording))[0] == ("loop", "a", 1)


def test_step_that_wrote_is_never_dropped() -> None:
    looped = [step(number, tool("a")) for number in (1, 2, 3)]
    wrote = step(4, tool("pay", effect="write"))
    assert last_good(run(*looped, wrote, step(5, outcome="failed")), 1) == 4
    assert last_good(run(*looped, step(4, tool("e", kind="observe"))), 1) == 4
    assert last_good(run(*looped, step(4, tool("x", kind="run", answer={"run": "child"}))), 1) == 4
    # The step that failed is begun again, and its writes have the same keys; so nothing before it is left out either.
    assert last_good(run(*looped, step(4, tool("pay", effect="write"), outcome="failed")), 1) == 3
    # A write that a policy denied was not made.
    assert last_good(run(*looped, step(4, tool("pay", effect="write", failure=DENIED))), 1) == 0


def test_policy_denial_is_a_budget_a_rule_or_a_loop() -> None:
    recording = run(step(1), step(2, tool("a", failure=DENIED), outcome="failed", failure=DENIED), failure=DENIED)

    def denied(rule: str) -> list[tuple[str, str, int]]:
        return kinds(Evidence(recording, denials=(Denial(2, "tool a", "p", rule, "why", (), "ab"),)))

    policy_error = ("error", DENIED.exception, 1)
    assert denied("budget.tokens") == [("budget", "tokens", 1), policy_error]
    assert denied("large refunds") == [("denied", "large refunds", 1), policy_error]


def test_run_without_an_end_is_unfinished() -> None:
    recording = run(step(1), step(2, outcome=""), outcome="", status="running")
    assert kinds(Evidence(recording)) == [("unfinished", "", 1)]


def test_stale_read_and_divergence_rewind_before_their_step() -> None:
    recording = run(step(1), step(2), step(3), outcome="succeeded")
    stale = StaleRead(2, "document/limits", ("limit",), ("ab",))
    found = diagnose(Evidence(recording, {"step/r#2": "cd"}, stale=(stale,),
                              divergences=(GoldenDivergence("kettle", 3, "answer differs"),)))  # fmt: skip
    assert [(each.kind, each.name, each.at) for each in found.findings] == [
        ("stale_read", "document/limits", 1), ("divergence", "kettle", 2),
    ]  # fmt: skip
    assert found.findings[0].observations == ("cd", "ab")


def test_open_question_and_unknown_write_take_precedence() -> None:
    recording = run(step(1, outcome="failed", failure=LOST), failure=LOST)
    found = kinds(Evidence(recording, questions=("r#1.ab.1",), unknown=("r:1:pay:ab",)))
    assert [kind for kind, _, _ in found] == ["unknown_effect", "question", "tool", "error"]


def test_run_that_a_lease_says_runs_is_named_as_held() -> None:
    recording = run(step(1), outcome="", status="running")
    found = diagnose(Evidence(recording, held="run r is run by the agent desk"))
    assert found.held == "run r is run by the agent desk"
    assert found.findings[0].said == "it did not end: a live process has it"
