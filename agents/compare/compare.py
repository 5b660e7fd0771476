"""The first place where two recorded runs differ, and why. Pure: computed from the two recordings alone.

1. Their inputs: agent, input, seed, state.
2. Step by step from the first, each compared as in steps.py. The first step with any difference is the result. If the
   two steps are unrelated, the rests of both runs are aligned by the requests of their steps, which distinguishes an
   inserted or missing step from a changed one, and from steps in another order.
3. One side has no more steps: the other continues.
4. How they ended: outcome, output, failure.

Law: if `exact` finds nothing in two runs whose steps are all committed, their hashes (journal/chain.py) are equal, and
if the hashes are equal nothing is found. Times, durations, keys, retries of calls and versions never count. Without
`exact` a run that was killed and resumed, or whose steps were tried again, equals one that was not, unless it did
something else (steps.py).

`against_itself` compares a run with its own replay without code: its states are computed again from the deltas, and its
hashes from the states. Both must match the recorded ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

import msgspec

from refold.agents.compare.differences import FieldDifference, Pair, aligned, differences
from refold.agents.compare.divergence import Divergence, LaterDifference, Side, What, why_of
from refold.agents.compare.steps import (
    CompareRules,
    Renaming,
    StepDifference,
    call_tree,
    failure_tree,
    found_in,
    request_key,
)
from refold.agents.journal.matching import compared_requests, matchings
from refold.agents.journal.record import Plain, Recording, Step
from refold.agents.journal.self_replay import chained, states
from refold.avro.canonical import encode, json_tree


def compare(a: Recording, b: Recording, *, exact: bool = False) -> Divergence | None:
    """Return the first difference of b from a; None if they do not differ.

    Args:
        a: A run.
        b: Another run.
        exact: Whether clock readings, random numbers, generated ids and the points of reads count too. No two live
            runs share these; it is meant for a run and its own replay.
    """
    return _Comparison(a, b, exact).divergence()


def uncompared(a: Recording, b: Recording) -> list[str]:
    """Describe the parts of the runs' requests that are not compared: `tool find: matched without request_id`."""
    return matchings(compared_requests(a, b))


class _Comparison:
    def __init__(self, a: Recording, b: Recording, exact: bool, names: Renaming | None = None) -> None:
        """Prepare the comparison.

        Args:
            names: Values of the outer runs that are called differently on each side.
        """
        self._a, self._b, self._exact = a, b, exact
        self._names = names or Renaming()
        self._within: dict[tuple[str, str], Divergence | None] = {}
        if not exact:
            self._names.note(a.run, b.run)
        self._rules = CompareRules(
            self._names, exact, asked_first=not (a.has_code or b.has_code), within=self._compared_within,
            children_a=a.children, children_b=b.children,
        )  # fmt: skip

    def divergence(self) -> Divergence | None:
        """Compare the runs, and return the first difference."""
        found = self._start() or self._steps() or self._end()
        if found is None:
            return None
        return msgspec.structs.replace(found, forked=_fork_json(self._a, self._b))

    def _compared_within(self, a: str, b: str) -> Divergence | Literal[False] | None:
        child_a, child_b = self._a.children.get(a), self._b.children.get(b)
        if child_a is None or child_b is None:
            return False
        if (a, b) not in self._within:
            self._within[a, b] = _Comparison(child_a, child_b, self._exact, self._names).divergence()
        return self._within[a, b]

    def _start(self) -> Divergence | None:
        things: list[tuple[What, Plain, Plain]] = [
            ("agent", self._a.agent, self._b.agent),
            ("input", self._a.input, self._b.input),
            ("seed", self._a.seed, self._b.seed),
            ("state", self._a.state, self._b.state),
        ]
        return self._first_outside_steps(things, 0)

    def _end(self) -> Divergence | None:
        things: list[tuple[What, Plain, Plain]] = [
            ("run_outcome", self._a.outcome, self._b.outcome),
            ("run_failure", failure_tree(self._a.failure), failure_tree(self._b.failure)),
            ("output", self._a.output, self._b.output),
        ]
        if self._exact:
            things.append(("patch", _patch(self._a), _patch(self._b)))
        return self._first_outside_steps(things, None)

    def _first_outside_steps(self, things: list[tuple[What, Plain, Plain]], step: int | None) -> Divergence | None:
        """Return the first difference among these, which belong to no step."""
        for what, one, other in things:
            if not self._rules.is_same(one, other):
                return msgspec.structs.replace(self._divergence(StepDifference(what, one, other), None), step=step)
        return None

    def _steps(self) -> Divergence | None:
        for index, (one, other) in enumerate(zip(self._a.steps, self._b.steps, strict=False)):
            found = list(found_in(one, other, self._rules))
            if found and self._is_cut_short(one, other, found):
                return self._unmatched_step("b" if other.is_committed else "a", index, is_last=True)
            if found:
                return self._in_step(index, found)
        shorter = min(len(self._a.steps), len(self._b.steps))
        if shorter == max(len(self._a.steps), len(self._b.steps)):
            return None
        return self._unmatched_step("a" if len(self._a.steps) > shorter else "b", shorter, is_last=True)

    def _is_cut_short(self, a: Step, b: Step, found: Sequence[StepDifference]) -> bool:
        """Return whether one side's step has not ended, and did nothing else than the other's so far."""
        if self._exact or a.is_committed == b.is_committed:
            return False
        side = "a_call" if b.is_committed else "b_call"  # the side of the step that was cut short
        return all(
            each.what in ("kept", "result", "outcome", "step_failure")
            or (each.what == "call" and getattr(each, side) is None)
            for each in found
        )

    def _in_step(self, index: int, found: list[StepDifference]) -> Divergence:
        """Interpret the differences of the steps at an index."""
        rest_a, rest_b = self._a.steps[index:], self._b.steps[index:]
        keys_a = [_key(each, self._names) for each in rest_a]
        keys_b = [_key(each) for each in rest_b]
        called_a, called_b = [_calls_of(x) for x in rest_a], [_calls_of(y) for y in rest_b]
        begin = 1 if keys_a[0] == keys_b[0] else 0
        pairs = list(aligned(keys_a[begin:], keys_b[begin:], called_a[begin:], called_b[begin:]))
        if begin or found[0].what in ("answer", "failure", "run"):
            # The request was the same: whatever they requested next, this is where they differ.
            divergence = self._first_of(found, index)
        elif _is_reordered(pairs, keys_a, keys_b):
            divergence = self._divergence(StepDifference("order", step_tree(rest_a[0]), step_tree(rest_b[0])), index)
        elif pairs[0].a is None or pairs[0].b is None:
            divergence = self._unmatched_step("b" if pairs[0].a is None else "a", index)
        else:
            divergence = self._first_of(found, index)
        return msgspec.structs.replace(
            divergence, later=tuple(self._later_differences(pairs[1 - begin :], index + begin))
        )

    def _first_of(self, found: Sequence[StepDifference], index: int) -> Divergence:
        also = dict.fromkeys(each.what for each in found if each.what != found[0].what)
        return msgspec.structs.replace(self._divergence(found[0], index), also=tuple(also))

    def _unmatched_step(self, side: Literal["a", "b"], index: int, *, is_last: bool = False) -> Divergence:
        """Return the result if one side has a step at the index that the other does not have."""
        owner = self._a if side == "a" else self._b
        tree = step_tree(owner.steps[index])
        other = self._b if side == "a" else self._a
        # What the other side does at that position, if it does anything at all.
        instead = None if is_last or index >= len(other.steps) else step_tree(other.steps[index])
        found = StepDifference("step", *((tree, instead) if side == "a" else (instead, tree)))
        divergence = self._divergence(found, index)
        return msgspec.structs.replace(divergence, only=side, why="longer" if is_last else "asked", differences=())

    def _divergence(self, found: StepDifference, index: int | None) -> Divergence:
        """Return a difference as the result. index: of its steps, the same on both sides; None if it belongs to no
        step."""
        side_a = self._side(self._a, found.a, index, found.a_attempt, found.a_call)
        side_b = self._side(self._b, found.b, index, found.b_attempt, found.b_call)
        # The state of a conversation holds the messages to the agent.
        is_told = found.what == "kept" and not (self._a.has_code or self._b.has_code)
        return Divergence(
            step=side_b.step if side_a.step is None else side_a.step, what=found.what,
            why="answered" if is_told else why_of(found.what) if found.within is None else found.within.why,
            within=found.within,
            a=side_a, b=side_b, differences=tuple(self._differences(found, index)),
            only="" if found.what != "call" else "a" if found.b_call is None else "b",
        )  # fmt: skip

    def _side(self, run: Recording, value: Plain, index: int | None, attempt: int | None, call: int | None) -> Side:
        if index is None or index >= len(run.steps):
            return Side(run=run.run, value=value)
        step = run.steps[index]
        return Side(run=run.run, step=step.number, name=step.name, attempt=attempt, call=call, value=value)

    def _differences(self, found: StepDifference, index: int | None) -> list[FieldDifference]:
        if found.what in ("step", "order", "call", "run"):
            return []
        if found.what == "kept" and index is not None:
            state_a, state_b = _state_after(self._a, index), _state_after(self._b, index)
            # Edits may differ although the states that they lead to do not.
            return differences(self._names.of(state_a), state_b) or differences(found.a, found.b)
        return differences(self._names.of(found.a), found.b)

    def _later_differences(self, pairs: Sequence[Pair], index: int) -> Iterator[LaterDifference]:
        for pair in pairs:
            one = None if pair.a is None else self._a.steps[index + pair.a]
            other = None if pair.b is None else self._b.steps[index + pair.b]
            if one is not None and other is not None:
                # After a divergence the states differ anyway.
                found = next((each for each in found_in(one, other, self._rules) if each.what != "kept"), None)
                if found is not None:
                    yield LaterDifference(a=one.number, b=other.number, what=found.what)
            elif one is not None:
                yield LaterDifference(a=one.number, b=None, what="step")
            elif other is not None:
                yield LaterDifference(a=None, b=other.number, what="step")


def step_tree(step: Step) -> Plain:
    """Return a step's requests and results, as a JSON tree."""
    return {"calls": [call_tree(each) for each in step.calls], "result": step.result}


def _state_after(run: Recording, index: int) -> Plain:
    return next(islice(states(run), index + 1, None))


def _is_reordered(pairs: Sequence[Pair], a: Sequence[str], b: Sequence[str]) -> bool:
    """Return whether the first item of a side occurs later on the other side, without a match there."""
    alone_a = {a[pair.a] for pair in pairs if pair.a is not None and not pair.same}
    alone_b = {b[pair.b] for pair in pairs if pair.b is not None and not pair.same}
    first = pairs[0]
    return (first.a is None or a[first.a] in alone_b) and (first.b is None or b[first.b] in alone_a)


def _key(step: Step, names: Renaming | None = None) -> str:
    """Return a step's requests, or its result if it has none; the text is equal for steps that belong together."""
    requests = [request_key(each.asked, names) for each in step.calls]
    silent = all(each.asked.kind == "decide" for each in step.calls)
    result: Any = None
    if silent:
        result = step.result if names is None else names.of(step.result)
    return encode(json_tree([step.name, requests, result], "step")).hex()


def _calls_of(step: Step) -> tuple[Any, ...]:
    return (step.name, *((each.asked.kind, each.asked.name) for each in step.calls))


def _patch(run: Recording) -> Plain:
    return [[each.at, each.patch] for each in run.parted]


def _fork_json(a: Recording, b: Recording) -> Plain:
    for side, child, parent in (("b", b, a), ("a", a, b)):
        if child.parent and child.parent == parent.run:
            return {"side": side, "parent": parent.run, "at": child.forked_at, "patch": child.patch}
    return None


class SelfCheck(NamedTuple):
    """The result of comparing a run with its replay.

    Attributes:
        altered: The numbers of the steps whose recorded hashes do not match their content.
        is_altered: Whether the run's own hash does not match.
    """

    run: str
    steps: int
    divergence: Divergence | None
    altered: tuple[int, ...]
    is_altered: bool

    @property
    def is_equal(self) -> bool:
        """Whether the run equals its replay."""
        return self.divergence is None and not self.altered and not self.is_altered


def against_itself(recording: Recording) -> SelfCheck:
    """Step through a run without code, and compare it with the result."""
    again = chained(recording)
    altered = tuple(
        one.number
        for one, other in zip(recording.steps, again.steps, strict=True)
        if (one.hash, one.state_before, one.state_after) != (other.hash, other.state_before, other.state_after)
    )
    is_altered = recording.hash != again.hash
    return SelfCheck(
        recording.run, len(recording.steps), compare(recording, again, exact=True), altered, is_altered
    )  # fmt: skip
