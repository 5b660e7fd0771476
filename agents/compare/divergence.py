"""What comparing two runs finds: the first place where they part, and why.

`what` names the thing that differs:

    agent, input, seed, state       what they were started with (step 0)
    step                            one side has a step that the other has not, or goes on
    order                           the same steps, or the same calls of a step, come in another order
    name                            the step's name
    call                            one side makes a call that the other does not
    tool                            another tool, model, entity or kind of call
    arguments                       the same is called with other arguments
    decision                        another choice, rationale or options
    answer, failure                 the same was asked, and something else came back
    run                             a run within was begun with the same, and did something else (within)
    attempts, step_failure          the step was tried more often, or failed otherwise
    kept                            the step left another state
    result, outcome                 the step's result, and how it ended
    run_outcome, output, run_failure   how the run ended (no step)
    patch                           of forks that did the same: what was changed

`why` says whose doing it is, given that all before it was equal on both sides:

    started     they were started with different things
    answered    the world, or a model, answered otherwise though it was asked the same; or somebody said something else
    asked       the agent asked for something else though it had heard the same
    decided     the agent decided otherwise though it had heard the same
    kept        the agent kept, returned or failed otherwise though it had asked and heard the same
    longer      one side goes on where the other stops
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
    """Whose doing it is that this differs, where all before it is equal."""
    if what in _STARTED:
        return "started"
    if what in _ANSWERED:
        return "answered"
    if what in _ASKED:
        return "asked"
    return "decided" if what == "decision" else "kept"


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One run at the place where they part.

    step: number of the step there; None where the run has none. call: place of the call among those of its attempt,
    counted from 1; None where no one call is meant. value: what stands there, a JSON tree.
    """

    run: str
    step: int | None = None
    name: str = ""
    attempt: int | None = None
    call: int | None = None
    value: Plain = None


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """A step behind the first divergence that differs too. a, b: its numbers; None where a side has no such step."""

    a: int | None
    b: int | None
    what: What


class Divergence(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where two runs part.

    step: the step's number, as both count it up to there; 0 for what they were started with, None for how the runs
    ended. only: the side ("a" or "b") that alone has the step or call, where one has. differences: place by place.
    also: what else differs in the same step. later: the steps behind it that differ, aligned. forked: where one run is
    a fork of the other, {"side", "parent", "at", "patch"}. within: where two runs within part; why is theirs.
    """

    step: int | None
    what: What
    why: Why
    a: Side
    b: Side
    only: Literal["", "a", "b"] = ""
    differences: tuple[FieldDifference, ...] = ()
    also: tuple[What, ...] = ()
    later: tuple[Later, ...] = ()
    forked: Plain = None
    within: Divergence | None = None


def divergence_json(found: Divergence) -> Plain:
    """The JSON tree: `--json`'s."""
    tree = msgspec.to_builtins(found)
    tree["differences"] = [each._asdict() for each in found.differences]
    tree["within"] = None if found.within is None else divergence_json(found.within)
    return tree
