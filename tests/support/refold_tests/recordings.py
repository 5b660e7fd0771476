"""Artificial recordings: a run's steps, given by their calls, with valid chains of hashes."""

from __future__ import annotations

from typing import Any

import msgspec

from refold.agents.journal import delta
from refold.agents.journal.record import Attempt, Call, Failure, Kind, RecordedRequest, Recording, Step
from refold.agents.journal.self_replay import chained


def call(name: str, answer: Any = None, *, kind: Kind = "tool", failed: str = "", **given: Any) -> Call:
    """Return one call. given: keyword arguments of a tool, else the whole request."""
    request: Any = {"args": [], "kwargs": given} if kind in ("tool", "model") else given or None
    failure = Failure(exception=failed, message=name) if failed else None
    return Call(asked=RecordedRequest(kind=kind, name=name, request=request), answer=answer, failure=failure)


def decided(choice: str, why: str = "") -> Call:
    """Return a decision."""
    return Call(asked=RecordedRequest(kind="decide", request={"choice": choice, "why": why, "options": None}))


def step(*calls: Call, name: str = "", result: Any = None, **kept: Any) -> Step:
    """Return a step with one attempt. kept: members of the state that it sets."""
    return Step(
        number=0, name=name, attempts=(Attempt(calls=calls),), result=result, outcome="succeeded",
        delta=delta.edits({}, kept),
    )  # fmt: skip


def run(*steps: Step, run: str = "run-a", **more: Any) -> Recording:
    """Return a run that succeeded, with numbered steps and computed hashes."""
    numbered = tuple(msgspec.structs.replace(each, number=number) for number, each in enumerate(steps, 1))
    given: dict[str, Any] = {"agent": "tester", "state": {}, "outcome": "succeeded", "status": "ended"} | more
    return chained(Recording(run=run, steps=numbered, **given))
