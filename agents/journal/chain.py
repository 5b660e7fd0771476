"""The chain of hashes over a run. It covers what the code did, and nothing else.

    state hash   SHA-256 of the state's deterministic CBOR
    start        SHA-256("refold-run/1\\0" + CBOR {agent, input, seed, state})
    step         SHA-256("refold-step/1\\0" + CBOR {previous, number, name, attempts, delta, result, outcome})
                 attempts: a list of {calls, failure}; a call is [kind, name, request, answer, failure], a failure
                 [exception, message]
    fork         SHA-256("refold-fork/1\\0" + CBOR {previous, patch}) comes between the parent's step and the child's
    run          SHA-256("refold-end/1\\0" + CBOR {previous, outcome, output, failure})

Absent parts are null. Numbers follow the rules of a log (50.0 is 50). The chain never covers: ids of runs, times,
durations, idempotency keys, where an answer came from, tracebacks. So the same code with the same answers gives the
same hash, in any process and in every replay. Any change of what is requested, decided, stored or returned gives
another hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from refold.agents.journal.record import Attempt, Call, Failure, Kind, Outcome, Plain, Recording, Step
from refold.avro.canonical import encode, json_tree

# A read is the same with or without its values, and a nested run is the same with any id.
_LEFT_OUT: Mapping[Kind, str] = {"read": "fields", "run": "run"}


def state_hash(state: Plain) -> str:
    """Return the hash of a state, lower-case hex."""
    return hashlib.sha256(encode(json_tree(state, "state"))).hexdigest()


def start_hash(agent: str, given: Plain, seed: int | None, state: Plain) -> str:
    """Return the hash with which a run's chain begins.

    Args:
        agent: The agent's name.
        given: The run's input.
        seed: The run's seed.
        state: The state at the start.
    """
    return _hash("run", {"agent": agent, "input": given, "seed": seed, "state": state})


def step_hash(previous: str, step: Step) -> str:
    """Return the hash of the chain including this step.

    Args:
        previous: The hash of the chain before it.
    """
    return _hash(
        "step",
        {
            "previous": previous, "number": step.number, "name": step.name, "delta": list(step.delta),
            "attempts": [_attempt(each) for each in step.attempts], "result": step.result, "outcome": step.outcome,
        },
    )  # fmt: skip


def fork_hash(previous: str, patch: Plain) -> str:
    """Return the hash with which a fork's chain continues.

    Args:
        previous: The hash of the parent's chain at the fork.
    """
    return _hash("fork", {"previous": previous, "patch": patch})


def run_hash(previous: str, outcome: Outcome, output: Plain, failure: Failure | None) -> str:
    """Return the hash of the whole run.

    Args:
        previous: Its last step's hash, or its start hash if it has no steps.
    """
    return _hash("end", {"previous": previous, "outcome": outcome, "output": output, "failure": _failure(failure)})


def broken(recording: Recording) -> Iterable[int]:
    """Yield the numbers of the steps whose hash does not match their content: those that were changed afterwards."""
    previous = start_hash(recording.agent, recording.input, recording.seed, recording.state)
    for step in recording.steps:
        for fork in recording.parted:
            if step.number == fork.at + 1:
                previous = fork_hash(previous, fork.patch)
        if step.is_committed:
            if step.previous != previous or step.hash != step_hash(previous, step):
                yield step.number
            previous = step.hash


def _attempt(attempt: Attempt) -> Plain:
    return {"calls": [_call(each) for each in attempt.calls], "failure": _failure(attempt.failure)}


def _call(call: Call) -> Plain:
    request = call.asked
    answer = call.answer
    if request.kind in _LEFT_OUT and isinstance(answer, dict):
        answer = {key: value for key, value in answer.items() if key != _LEFT_OUT[request.kind]}
    return [request.kind, request.name, request.request, answer, _failure(call.failure)]


def _failure(failure: Failure | None) -> Plain:
    return None if failure is None else [failure.exception, failure.message]


def _hash(what: str, tree: Plain) -> str:
    return hashlib.sha256(b"refold-" + what.encode() + b"/1\0" + encode(json_tree(tree, what))).hexdigest()
