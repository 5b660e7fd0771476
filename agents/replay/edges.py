"""How each edge of a run can be reproduced: whether it is computed, recorded, or unknown.

There is one edge for each request, and one for each step: from the state before it, by the code and the answers, to the
state after it.

    deterministic   the agent's own code: running it again on the same answers gives the same result; a replay proves it
    recorded        an answer from outside (a model, a tool, the clock, randomness, a read): it is returned from the
                    recording, never requested again
    unknown         its origin, or its result, is not known

A run as a whole is never called reproducible; each edge is classified. What a model would answer today is not
predicted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from refold.agents.journal.record import OF_THE_CODE, Attempt, Call, Recording, Step

Determinism: TypeAlias = Literal["deterministic", "recorded", "unknown"]


class Edge(NamedTuple):
    """One edge.

    Attributes:
        kind, name: The kind and the name of the call; "step" and its name for the step's own edge.
        position: The position of the call in its attempt, counted from 1; 0 for the step's own edge.
        reason: The reason for the class, in words.
    """

    step: int
    attempt: int
    position: int
    kind: str
    name: str
    determinism: Determinism
    reason: str


def edges(recording: Recording) -> Iterator[Edge]:
    """Yield every edge of a recording, in order: a step's calls, attempt by attempt, then the step's own edge."""
    for step in recording.steps:
        for index, attempt in enumerate(step.attempts):
            is_cut_short = attempt.failure is None and (index + 1 < len(step.attempts) or not step.is_committed)
            yield from _call_edges(step, attempt, has_code=recording.has_code)
            if is_cut_short and step.outcome != "":
                reason = "the process ended in this attempt, and nothing of it was recorded"
                yield Edge(step.number, attempt.number, 0, "step", step.name, "unknown", reason)
        yield Edge(step.number, len(step.attempts), 0, "step", step.name, *_step_edge(recording, step))


def counted(found: Iterator[Edge]) -> dict[Determinism, int]:
    """Return how many edges there are of each class."""
    counts = Counter(each.determinism for each in found)
    return {"deterministic": counts["deterministic"], "recorded": counts["recorded"], "unknown": counts["unknown"]}


def _call_edges(step: Step, attempt: Attempt, *, has_code: bool) -> Iterator[Edge]:
    for position, call in enumerate(attempt.calls, 1):
        found = of_call(call, has_code=has_code)
        yield Edge(step.number, attempt.number, position, call.asked.kind, call.asked.name, *found)


def of_call(call: Call, *, has_code: bool) -> tuple[Determinism, str]:
    """Return the class of a call's edge, and the reason.

    Args:
        call: The call.
        has_code: Whether the recording has code that can be run again.
    """
    if call.asked.kind in OF_THE_CODE:
        if has_code:
            return "deterministic", "the code's own, computed again"
        return "recorded", "as the recording says; the code that chose it is not at hand"
    if call.asked.kind == "run" and has_code:
        return "deterministic", "a run within: its code runs again, against its own recording"
    if call.failure is not None:
        return "recorded", f"failed with {call.failure.exception}, which is raised again"
    if not has_code and call.answer is None:
        return "unknown", "asked for, and the recording has no answer to it"
    again = f", behind {len(call.retries)} failed tries" if call.retries else ""
    return "recorded", f"answered from the recording{again}"


def _step_edge(recording: Recording, step: Step) -> tuple[Determinism, str]:
    if step.outcome == "":
        return "unknown", "begun, and not ended in this recording"
    if step.outcome == "unknown":
        return "unknown", "begun, and nothing is known of its end"
    if not recording.has_code:
        return "recorded", "what it changed is recorded; the code that changed it is not at hand"
    return "deterministic", "the code, run again on the recorded answers"
