"""Randomly generated agents do what they do, and the log says exactly that.

A plan is a list of steps, each of attempts, each of actions: calls with their answers or errors, and edits of the
state. A real agent runs it, once with plain functions and once with coroutine functions. A model, which knows nothing
of the recorder, predicts what the log must contain. Every state that is rebuilt from the deltas is the state that the
run had.
"""

from __future__ import annotations

import asyncio
import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import refold
from refold.agents.journal.chain import broken, run_hash, state_hash
from refold.agents.journal.delta import applied
from refold.agents.journal.record import Recording
from refold.agents.log import AgentLog
from refold.agents.recorder.run import Run

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
trees = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("refold.float"), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(["a", "b", "list", "ü", ""])


@dataclass(frozen=True)
class Action:
    """kind: tool, model, decide, now, or an edit of the state: set, remove, grow, nest."""

    kind: str
    key: str
    value: Any
    fails: int = 0


@dataclass(frozen=True)
class Planned:
    """A step. form: block, function, or call (one outside of any step). fails: how many attempts of it fail."""

    form: str
    actions: tuple[Action, ...]
    fails: int = 0
    attempts_max: int = 1
    result: Any = None


calls = st.builds(Action, st.sampled_from(["tool", "model", "decide", "now"]), keys, trees, st.integers(0, 3))
edits = st.builds(Action, st.sampled_from(["set", "remove", "grow", "nest"]), keys, trees)
blocks = st.builds(Planned, st.just("block"), st.lists(calls | edits, max_size=5).map(tuple), st.integers(0, 1))
functions = st.builds(
    Planned, st.just("function"), st.lists(calls | edits, max_size=4).map(tuple), st.integers(0, 3), st.integers(1, 3),
    trees,
)  # fmt: skip
singles = st.builds(Planned, st.just("call"), calls.map(lambda each: (each,)))
plans = st.lists(blocks | functions | singles, max_size=5)
TOOL_ATTEMPTS = 2


def edit(state: dict[str, Any], action: Action) -> None:
    """Change a state in place."""
    value = copy.deepcopy(action.value)
    if action.kind == "set":
        state[action.key] = value
    elif action.kind == "remove":
        state.pop(action.key, None)
    elif action.kind == "grow":
        state.setdefault("list", [])
        if isinstance(state["list"], list):
            state["list"].append(value)
    else:
        state[action.key] = {"before": copy.deepcopy(state.get(action.key)), "now": value}


class Agent:
    """Carries a plan out. Calls fail as often as the plan says."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.states: list[Any] = []
        self.answers: list[Any] = []

    def call(self, action: Action) -> None:
        left = [action.fails]

        @refold.tool(name=f"tool {action.key}", attempts_max=TOOL_ATTEMPTS)
        def tool(value: Any) -> Any:
            if left[0]:
                left[0] -= 1
                raise ConnectionError(f"{left[0]} left")
            return value

        def model(prompt: Any) -> Any:
            if action.fails:
                raise TimeoutError("model")
            return {"text": prompt}

        try:
            if action.kind == "tool":
                self.answers.append(tool(action.value))
            elif action.kind == "model":
                self.answers.append(self.run.model(model, prompt=action.value))
            elif action.kind == "now":
                self.run.now()
            else:
                self.run.decide(action.value, why=action.key, options=[1, action.key])
        except (ConnectionError, TimeoutError):
            self.answers.append("failed")

    def act(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            if action.kind in ("set", "remove", "grow", "nest"):
                edit(self.run.state, action)
            else:
                self.call(action)

    def carry_out(self, plan: list[Planned]) -> None:
        for step in plan:
            left = [step.fails]

            def body(step: Planned = step, left: list[int] = left) -> Any:
                self.act(step.actions)
                if left[0]:
                    left[0] -= 1
                    raise ValueError(f"{left[0]} left")
                return step.result

            try:
                if step.form == "call":
                    self.act(step.actions)
                elif step.form == "block":
                    with self.run.step("block"):
                        body()
                else:
                    self.run.step("function", body, attempts_max=step.attempts_max)
            except ValueError:
                pass
            self.states.append(copy.deepcopy(self.run.state))

    async def carry_out_async(self, plan: list[Planned]) -> None:
        for step in plan:
            left = [step.fails]

            async def body(step: Planned = step, left: list[int] = left) -> Any:
                await asyncio.sleep(0)
                self.act(step.actions)
                if left[0]:
                    left[0] -= 1
                    raise ValueError(f"{left[0]} left")
                return step.result

            try:
                if step.form == "call":
                    self.act(step.actions)
                elif step.form == "block":
                    async with self.run.step("block"):
                        await body()
                else:
                    await self.run.step("function", body, attempts_max=step.attempts_max)
            except ValueError:
                pass
            self.states.append(copy.deepcopy(self.run.state))


def predicted(action: Action) -> list[Any]:
    """Return [kind, name, answer, failure, retries] of a call, as it must be recorded."""
    if action.kind == "tool":
        failed = action.fails >= TOOL_ATTEMPTS
        left = f"{action.fails - TOOL_ATTEMPTS} left" if failed else None
        return ["tool", f"tool {action.key}", None if failed else action.value, left, min(action.fails, 1)]
    if action.kind == "model":
        answer, failed_with = (None, "model") if action.fails else ({"text": action.value}, None)
        return ["model", "Agent.call.<locals>.model", answer, failed_with, 0]
    return [action.kind, "", None, None, 0]


def exactly(tree: Any) -> Any:
    """Return the tree in a form that compares the type of each number."""
    if isinstance(tree, dict):
        return {key: exactly(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [exactly(each) for each in tree]
    return type(tree).__name__, repr(tree)


def check(recording: Recording, plan: list[Planned], agent: Agent, start: Any) -> None:
    assert list(broken(recording)) == []
    assert [step.number for step in recording.steps] == list(range(1, len(plan) + 1))
    state, before = start, state_hash(start)
    previous = recording.steps[0].previous if recording.steps else None
    for step, planned, left in zip(recording.steps, plan, agent.states, strict=True):
        tried = min(planned.fails + 1, planned.attempts_max)
        is_failed = planned.fails >= tried or (planned.form == "call" and predicted(planned.actions[0])[3] is not None)
        assert [each.number for each in step.attempts] == list(range(1, tried + 1))
        assert [each.failure is not None for each in step.attempts] == [True] * (tried - 1) + [is_failed]
        asked = [each for each in planned.actions if each.kind in ("tool", "model", "decide", "now")]
        for attempt in step.attempts:
            found = [
                [call.asked.kind, call.asked.name, None if call.asked.kind == "now" else call.answer,
                 call.failure.message if call.failure else None, len(call.retries)]
                for call in attempt.calls
            ]  # fmt: skip
            assert exactly(found) == exactly([predicted(each) for each in asked])
            said = [call.asked.request["choice"] for call in attempt.calls if call.asked.kind == "decide"]
            assert exactly(said) == exactly([each.value for each in asked if each.kind == "decide"])
        assert step.outcome == ("failed" if is_failed else "succeeded")
        assert exactly(step.result) == exactly(None if is_failed else planned.result)
        state = applied(state, step.delta)
        assert exactly(state) == exactly(left), "the state that the deltas make is the one the run had"
        assert (step.state_before, step.state_after, step.previous) == (before, state_hash(left), previous)
        before, previous = step.state_after, step.hash
    if recording.steps:
        assert recording.hash == run_hash(recording.steps[-1].hash, "succeeded", recording.output, None)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(plan=plans, start=st.dictionaries(keys, trees, max_size=3), given_input=trees, output=trees)
def test_log_contains_exactly_what_was_done(
    log: AgentLog, is_async: bool, plan: list[Planned], start: dict[str, Any], given_input: Any, output: Any
) -> None:
    with log.run("random", state=start, input=given_input, seed=7) as run:
        agent = Agent(run)
        if is_async:
            asyncio.run(agent.carry_out_async(plan))
        else:
            agent.carry_out(plan)
        run.output = output
    recording = log.recording(run.id)
    assert exactly([recording.input, recording.state, recording.output]) == exactly([given_input, start, output])
    check(recording, plan, agent, start)
