"""The result of comparing two runs: the first place where they differ, and why.

`what` names the kind of difference:

    agent, input, seed, state       the inputs (step 0)
    step                            one side has a step that the other does not have, or continues
    order                           the same steps, or the same calls of a step, are in another order
    name                            the step's name
    call                            one side makes a call that the other does not
    tool                            another tool, model, entity or kind of call
    arguments                       the same call with other arguments
    decision                        another choice, rationale or options
    answer, failure                 the same request, another answer
    run                             a nested run had the same input, and did something else (within)
    attempts, step_failure          the step was tried more often, or failed differently
    kept                            the step left another state
    result, outcome                 the step's result, and how it ended
    run_outcome, output, run_failure   how the run ended (no step)
    patch                           of forks that did the same: the changes

`why` names the origin, given that everything before was equal on both sides:

    started     their inputs differ
    answered    the world, or a model, gave another answer to the same request; or another message was sent
    asked       the agent made another request after the same answers
    decided     the agent decided differently after the same answers
    kept        the agent stored, returned or failed differently after the same requests and answers
    longer      one side continues after the other ends
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from refold.agents.compare.differences import FieldDifference
from refold.agents.journal.record import Plain

What: TypeAlias = Literal[
    "agent", "input", "seed", "state", "step", "order", "name", "call", "tool", "arguments", "decision", "answer",
    "failure", "run", "attempts", "step_failure", "kept", "result", "outcome", "run_outcome", "output", "run_failure",
    "patch",
]  # fmt: skip
Why: TypeAlias = Literal["started", "answered", "asked", "decided", "kept", "longer"]

_STARTED: frozenset[What] = frozenset({"agent", "input", "seed", "state", "patch"})
_ANSWERED: frozenset[What] = frozenset({"answer", "failure"})
_ASKED: frozenset[What] = frozenset({"step", "order", "name", "call", "tool", "arguments"})


def why_of(what: What) -> Why:
    """Return the origin of a difference, if everything before it is equal."""
    if what in _STARTED:
        return "started"
    if what in _ANSWERED:
        return "answered"
    if what in _ASKED:
        return "asked"
    return "decided" if what == "decision" else "kept"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run at the place where they differ.

    Attributes:
        step: The number of the step there; None if the run has none.
        call: The position of the call in its attempt, counted from 1; None if no single call is meant.
        value: The value there, a JSON tree.
    """

    run: str
    step: int | None = None
    name: str = ""
    attempt: int | None = None
    call: int | None = None
    value: Plain = None


class LaterDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A step after the first divergence that differs too.

    Attributes:
        a, b: Its numbers; None if a side has no such step.
    """

    a: int | None
    b: int | None
    what: What


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where two runs differ.

    Attributes:
        step: The step's number, which is the same for both up to there; 0 for the inputs, None for how the runs ended.
        only: The side ("a" or "b") that alone has the step or call, if any.
        differences: The differences, place by place.
        also: The other differences in the same step.
        later: The later steps that differ too, aligned.
        forked: If one run is a fork of the other, this fork as {"side", "parent", "at", "patch"}; else None.
        within: Where two nested runs differ; `why` is then theirs.
    """

    step: int | None
    what: What
    why: Why
    a: Side
    b: Side
    only: Literal["", "a", "b"] = ""
    differences: tuple[FieldDifference, ...] = ()
    also: tuple[What, ...] = ()
    later: tuple[LaterDifference, ...] = ()
    forked: Plain = None
    within: Divergence | None = None


def divergence_json(found: Divergence) -> Plain:
    """Return the JSON tree that `--json` prints."""
    tree = msgspec.to_builtins(found)
    tree["differences"] = [each._asdict() for each in found.differences]
    tree["within"] = None if found.within is None else divergence_json(found.within)
    return tree
