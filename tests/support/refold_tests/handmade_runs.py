"""Hand-made recordings with a valid chain of hashes."""

from __future__ import annotations

from typing import Any

import msgspec

from refold.agents.journal.chain import run_hash, start_hash, state_hash, step_hash
from refold.agents.journal.delta import applied
from refold.agents.journal.record import Attempt, Call, Effect, Failure, Outcome, RecordedRequest, Recording, Step

RUN = "run-1"


def tool(name: str, answer: Any = None, effect: Effect = "read", **kwargs: Any) -> Call:
    """Return a call of a tool."""
    return Call(
        asked=RecordedRequest(kind="tool", name=name, request={"args": [], "kwargs": kwargs}, effect=effect),
        answer=answer,
    )


def model(answer: Any, **kwargs: Any) -> Call:
    """Return a call of a model named chat."""
    return Call(asked=RecordedRequest(kind="model", name="chat", request={"args": [], "kwargs": kwargs}), answer=answer)


def made(kind: Any, answer: Any = None, name: str = "", request: Any = None) -> Call:
    """Return a call of any other kind."""
    return Call(asked=RecordedRequest(kind=kind, name=name, request=request), answer=answer)


def failed(call: Call, exception: str, message: str = "") -> Call:
    """Return the call as one that failed."""
    return msgspec.structs.replace(call, failure=Failure(exception=exception, message=message))


def step(
    name: str,
    *calls: Call,
    delta: tuple[Any, ...] = (),
    result: Any = None,
    outcome: Outcome = "succeeded",
    before: tuple[Attempt, ...] = (),
) -> Step:
    """Return a step with one attempt after those in `before`. `run_of` sets its number and hashes."""
    attempts = (*before, Attempt(number=len(before) + 1, calls=calls))
    return Step(number=0, name=name, attempts=attempts, delta=delta, result=result, outcome=outcome)


def run_of(*steps: Step, output: Any = None, **fields: Any) -> Recording:
    """Return a run that ended with these steps."""
    recording = Recording(run=RUN, agent="agent", status="ended", outcome="succeeded", output=output, **fields)
    state, previous = recording.state, start_hash("agent", recording.input, recording.seed, recording.state)
    placed = []
    for number, each in enumerate(steps, 1):
        before, state = state_hash(state), applied(state, each.delta)
        put = msgspec.structs.replace(
            each, number=number, previous=previous, state_before=before, state_after=state_hash(state)
        )
        previous = step_hash(previous, put) if put.is_committed else previous
        placed.append(msgspec.structs.replace(put, hash=previous))
    ended = run_hash(previous, recording.outcome, output, None)
    return msgspec.structs.replace(recording, steps=tuple(placed), hash=ended)
