"""The first step whose hash now differs from the recorded one, and how the step differs."""

from __future__ import annotations

from typing import NamedTuple

from refold.agents.journal.difference import ABSENT, Difference, differences
from refold.agents.journal.record import Call, Failure, Plain, Recording, Step


class FirstMismatch(NamedTuple):
    """The first point at which two runs differ.

    Attributes:
        step: The number of the step; 0 if the inputs differ, None if every step is the same and the end is not.
        name: The name of the step.
        differences: The differences, with the new value on the left and the recorded one on the right; ABSENT if one
            run has no such step.
    """

    step: int | None
    name: str
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        """For people: the place, and a line for each difference."""
        name = f" ({self.name})" if self.name else ""
        place = "the end" if self.step is None else f"step {self.step}{name}" if self.step else "the start"
        return "\n".join([place, *(f"  {each.line('now', 'recorded')}" for each in self.differences)])


def parting(now: Recording, recorded: Recording) -> FirstMismatch | None:
    """Return the first difference; None if the runs are the same, which their hashes prove.

    Args:
        now: The new run.
        recorded: The recorded run.
    """
    for step in range(max(len(now.steps), len(recorded.steps))):
        a = now.steps[step] if step < len(now.steps) else None
        b = recorded.steps[step] if step < len(recorded.steps) else None
        if a is None or b is None or a.hash != b.hash:
            return _mismatch_at(a, b, now, recorded)
    if now.hash == recorded.hash:
        return None
    return FirstMismatch(None, "", tuple(differences(_end(now), _end(recorded))))


def step_differences(now: Step, recorded: Step) -> tuple[Difference, ...]:
    """Return how two steps differ in the fields that the chain's hash covers, under names for people."""
    return tuple(differences(_chained_fields(now), _chained_fields(recorded)))


def _mismatch_at(a: Step | None, b: Step | None, now: Recording, recorded: Recording) -> FirstMismatch:
    step = a or b
    assert step is not None
    if a is None or b is None:
        names = [ABSENT if each is None else each.name for each in (a, b)]
        return FirstMismatch(step.number, step.name, (Difference("step", *names),))
    found = step_differences(a, b)
    if not found:  # the steps are equal, and something before them differs
        return FirstMismatch(0, "", tuple(differences(_start(now), _start(recorded))))
    return FirstMismatch(step.number, step.name, found)


def _start(run: Recording) -> Plain:
    return {"agent": run.agent, "input": run.input, "seed": run.seed, "state": run.state, "patch": run.patch}


def _end(run: Recording) -> Plain:
    return {"outcome": run.outcome, "output": run.output, "failure": _failure(run.failure)}


def _chained_fields(step: Step) -> Plain:
    attempts = [_attempt(each.calls, each.failure) for each in step.attempts]
    tree = {"name": step.name, "delta": list(step.delta), "result": step.result, "outcome": step.outcome}
    return {**tree, **(attempts[0] if len(attempts) == 1 else {"attempts": attempts})}


def _attempt(calls: tuple[Call, ...], failure: Failure | None) -> dict[str, Plain]:
    return {"calls": [_call(each) for each in calls], "failure": _failure(failure)}


def _call(call: Call) -> Plain:
    request = call.asked
    tree = {request.kind: request.name, "request": request.request, "failure": _failure(call.failure)}
    # For a read, the version and the observations count, not whether the values were stored with them.
    answer = call.answer
    if request.kind == "read" and isinstance(answer, dict):
        answer = {key: value for key, value in answer.items() if key != "fields"}
    return {**tree, "answer": answer}


def _failure(failure: Failure | None) -> Plain:
    return None if failure is None else {"exception": failure.exception, "message": failure.message}
