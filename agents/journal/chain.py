"""The chain of hashes over a run: what the code did, and nothing else.

    state hash   SHA-256 of the state's deterministic CBOR
    start        SHA-256("refold-run/1\\0" + CBOR {agent, input, seed, state})
    step         SHA-256("refold-step/1\\0" + CBOR {previous, number, name, attempts, delta, result, outcome})
                 attempts: a list of {calls, failure}; a call is [kind, name, request, answer, failure], a failure
                 [exception, message]
    fork         SHA-256("refold-fork/1\\0" + CBOR {previous, patch}) stands between the parent's step and the child's
    run          SHA-256("refold-end/1\\0" + CBOR {previous, outcome, output, failure})

Absent parts are null; numbers under the rules of a log (50.0 is 50). Never in it: ids of runs, times, durations, keys
of effects, where an answer came from, tracebacks. So the same code against the same answers gives the same hash, in any
process, as often as it is replayed, and a change of what is asked, decided, kept or returned gives another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from refold.agents.journal.record import Attempt, Call, Failure, Kind, Outcome, Plain, Recording, Step
from refold.avro.canonical import encode, json_tree

# A read is the same with or without its values, and a nested run with any id.
_LEFT_OUT: Mapping[Kind, str] = {"read": "fields", "run": "run"}


def state_hash(state: Plain) -> str:
    """Lower-case hex."""
    return hashlib.sha256(encode(json_tree(state, "state"))).hexdigest()


def start_hash(agent: str, given: Plain, seed: int | None, state: Plain) -> str:
    """Where a run's chain begins."""
    return _hash("run", {"agent": agent, "input": given, "seed": seed, "state": state})


def step_hash(previous: str, step: Step) -> str:
    """The chain with this step."""
    return _hash(
        "step",
        {
            "previous": previous, "number": step.number, "name": step.name, "delta": list(step.delta),
            "attempts": [_attempt(each) for each in step.attempts], "result": step.result, "outcome": step.outcome,
        },
    )  # fmt: skip


def fork_hash(previous: str, patch: Plain) -> str:
    """The chain of a child, from the parent's on."""
    return _hash("fork", {"previous": previous, "patch": patch})


def run_hash(previous: str, outcome: Outcome, output: Plain, failure: Failure | None) -> str:
    """The whole run; previous: its last step's hash, or where its chain begins."""
    return _hash("end", {"previous": previous, "outcome": outcome, "output": output, "failure": _failure(failure)})


def broken(recording: Recording) -> Iterable[int]:
    """Yield the numbers of the steps whose hash does not match their content: those that were tampered with."""
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
    asked = call.asked
    answer = call.answer
    if asked.kind in _LEFT_OUT and isinstance(answer, dict):
        answer = {key: value for key, value in answer.items() if key != _LEFT_OUT[asked.kind]}
    return [asked.kind, asked.name, asked.request, answer, _failure(call.failure)]


def _failure(failure: Failure | None) -> Plain:
    return None if failure is None else [failure.exception, failure.message]


def _hash(what: str, tree: Plain) -> str:
    return hashlib.sha256(b"refold-" + what.encode() + b"/1\0" + encode(json_tree(tree, what))).hexdigest()
