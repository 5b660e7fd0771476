"""The differences in one step of two runs, the first one first.

On each side the last attempt counts: an earlier attempt that failed or was cut short, in this process or in one that
was killed, left the run's state unchanged. But a write tool's effect in such an attempt, or in a nested run of it, that
the last attempt did not request again, changed the world, and counts. With `exact` every attempt counts, each against
the other side's attempt of the same number.

Differences are checked in order of time: an attempt's calls, each request and then its answer, the attempt's failure,
and then the step's state, result and outcome. In a conversation (has_code False) every request of a step is checked
before every answer, because one message made all of them.

A nested run is compared as a run. If it did the same, a different id does not count as a difference.

Calls are paired from the front while the requests are equal. From the first difference on they are aligned: by the
whole request, then by the name, so that an inserted call is distinguished from a changed one.

Clock readings, random numbers and generated ids differ in every live run, and do not count as differences. A run puts
them into its arguments and states. When a run gets such an answer, its counterpart in the other run is noted, and a's
trees are compared as b would have written them.
Each run's own id is such a value too. Texts are replaced wherever they occur, from 8 characters on; numbers only as
whole values; a time also as its ISO text and as seconds. A value computed from them (a time plus an hour) no longer
matches, and counts as different.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from refold.agents.capture.exchange import is_exchange
from refold.agents.compare.differences import aligned
from refold.agents.compare.divergence import Divergence, What
from refold.agents.journal.delta import is_same
from refold.agents.journal.matching import compared
from refold.agents.journal.record import Attempt, Call, Failure, Kind, Plain, RecordedRequest, Recording, Step, child_of
from refold.avro.times import EPOCH

FRESH: frozenset[Kind] = frozenset({"now", "random", "uuid", "observe"})
"""Kinds whose answers differ in every live run."""

CHARACTERS_MIN = 8


class Renaming:
    """Values of run a, and what run b has instead of them."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._numbers: dict[int | float, int | float] = {}

    def note(self, a: Plain, b: Plain) -> None:
        """Note that b has its value wherever a has the given one."""
        if isinstance(a, str) and isinstance(b, str):
            if a != b and min(len(a), len(b)) >= CHARACTERS_MIN:
                self._texts[a] = b
        elif type(a) in (int, float) and type(b) in (int, float) and a != b:
            self._numbers[a] = b

    def note_answers(self, a: Call, b: Call) -> None:
        """Note the answers to the same request, if its kind is one of FRESH."""
        if a.asked.kind in FRESH:
            self.note(a.answer, b.answer)
        if a.asked.kind == "now":
            for one, other in zip(_forms(a.answer), _forms(b.answer), strict=False):
                self.note(one, other)

    def is_same(self, a: Plain, b: Plain) -> bool:
        """Return whether b equals a after renaming."""
        return is_same(a, b) or (bool(self._texts or self._numbers) and is_same(self.of(a), b))

    def of(self, a: Plain) -> Plain:
        """Return a's tree as b would have written it."""
        if isinstance(a, str):
            for old, new in self._texts.items():
                if old in a:
                    a = a.replace(old, new)
            return a
        if type(a) in (int, float):
            return self._numbers.get(a, a)
        if isinstance(a, dict):
            return {self.of(key): self.of(value) for key, value in a.items()}
        return [self.of(each) for each in a] if isinstance(a, list) else a


def _forms(micros: Plain) -> tuple[Plain, ...]:
    """Return the forms of a time that need no computation: its text, with or without a zone, and seconds."""
    try:
        moment = EPOCH + dt.timedelta(microseconds=micros)
    except (TypeError, OverflowError):
        return ()
    text = moment.replace(tzinfo=None).isoformat()
    return text, moment.timestamp()


class StepDifference(NamedTuple):
    """One difference.

    Attributes:
        a, b: The values.
        a_call, b_call: The number of each side's call; None if the difference is in no call.
        a_attempt, b_attempt: The number of each side's attempt; None if the difference is in no attempt.
        within: For nested runs, where these differ.
    """

    what: What
    a: Plain
    b: Plain
    a_call: int | None = None
    b_call: int | None = None
    a_attempt: int | None = None
    b_attempt: int | None = None
    within: Divergence | None = None


class CompareRules(NamedTuple):
    """How strictly to compare.

    Attributes:
        exact: Whether values that differ in every live run count too (see the module).
        within: Compares two nested runs, by their ids; returns False if the recording of one is missing.
        children_a, children_b: The recordings of each side's nested runs.
    """

    names: Renaming
    exact: bool = False
    asked_first: bool = False
    within: Callable[[str, str], Divergence | Literal[False] | None] = lambda a, b: False
    children_a: Mapping[str, Recording] = {}
    children_b: Mapping[str, Recording] = {}

    def is_same(self, a: Plain, b: Plain) -> bool:
        """Return whether two trees are the same by these rules."""
        return self.names.is_same(a, b)


def found_in(a: Step, b: Step, rules: CompareRules) -> Iterator[StepDifference]:
    """Yield every difference between two steps, except their positions in their runs.

    Args:
        a, b: The steps.
        rules: What is ignored.
    """
    if a.name != b.name:
        yield StepDifference("name", a.name, b.name)
    if rules.exact:
        for one, other in zip(a.attempts, b.attempts, strict=False):
            yield from _attempt(one, other, rules)
        if len(a.attempts) != len(b.attempts):
            number = min(len(a.attempts), len(b.attempts))
            found = StepDifference("attempts", len(a.attempts), len(b.attempts))
            yield found._replace(a_attempt=number, b_attempt=number)
    else:
        yield from _earlier_differences(a, b, rules)
        if a.attempts or b.attempts:
            yield from _attempt(_last(a), _last(b), rules)
    if not rules.is_same([*a.delta], [*b.delta]):
        yield StepDifference("kept", [*a.delta], [*b.delta])
    if not rules.is_same(a.result, b.result):
        yield StepDifference("result", a.result, b.result)
    if a.outcome != b.outcome:
        yield StepDifference("outcome", a.outcome, b.outcome)


def _last(step: Step) -> Attempt:
    return step.attempts[-1] if step.attempts else Attempt()


def _earlier_differences(a: Step, b: Step, rules: CompareRules) -> Iterator[StepDifference]:
    """Yield effects of attempts before the last one that the other side does not have."""
    for one, other in zip(a.attempts[:-1], b.attempts[:-1], strict=False):
        for _ in _calls(one.calls, other.calls, rules):
            pass  # only note the values that differ in every run, because writes may contain them
    done_a, done_b = _only_earlier(a, rules.children_a, rules.names), _only_earlier(b, rules.children_b)
    again_a, again_b = _requests(a, rules.children_a, rules.names), _requests(b, rules.children_b)
    for key in [*done_a, *(key for key in done_b if key not in done_a)]:
        if key in done_a and key in done_b:
            continue
        number, place, call = done_a[key] if key in done_a else done_b[key]
        if key in done_a and key not in again_b:
            yield StepDifference("call", call_tree(call), None, place, None, number, _last(b).number)
        elif key in done_b and key not in again_a:
            yield StepDifference("call", None, call_tree(call), None, place, _last(a).number, number)


def _only_earlier(
    step: Step, children: Mapping[str, Recording], names: Renaming | None = None
) -> dict[str, tuple[int, int, Call]]:
    """Return the write calls of attempts before the last that the last attempt does not request again.

    A write of a nested run has the position of the call that began that run.

    Returns:
        By key: the number of the attempt, the position, and the call.
    """
    again = _requests(step, children, names)
    found: dict[str, tuple[int, int, Call]] = {}
    for attempt in step.attempts[:-1]:
        for place, call in enumerate(attempt.calls, 1):
            for each in (call, *_calls_within(call, children)):
                if each.asked.kind == "tool" and each.asked.effect == "write" and each.failure is None:
                    key = request_key(each.asked, names)
                    if key not in again:
                        found[key] = (attempt.number, place, each)
    return found


def _requests(step: Step, children: Mapping[str, Recording], names: Renaming | None = None) -> set[str]:
    return {
        request_key(each.asked, names) for call in step.calls for each in (call, *_calls_within(call, children))
    }  # fmt: skip


def _calls_within(call: Call, children: Mapping[str, Recording]) -> Iterator[Call]:
    """Yield all calls of the run that a call began, and of its nested runs."""
    child = children.get(child_of(call))
    if child is None:
        return
    for step in child.steps:
        for attempt in step.attempts:
            for each in attempt.calls:
                yield each
                yield from _calls_within(each, child.children)


def _attempt(a: Attempt, b: Attempt, rules: CompareRules) -> Iterator[StepDifference]:
    found = [each._replace(a_attempt=a.number, b_attempt=b.number) for each in _calls(a.calls, b.calls, rules)]
    if rules.asked_first:
        found.sort(key=lambda each: each.what in ("answer", "failure"))
    yield from found
    if not rules.is_same(failure_tree(a.failure), failure_tree(b.failure)):
        failed = StepDifference("step_failure", failure_tree(a.failure), failure_tree(b.failure))
        yield failed._replace(a_attempt=a.number, b_attempt=b.number)


def _calls(a: Sequence[Call], b: Sequence[Call], rules: CompareRules) -> Iterator[StepDifference]:
    same = 0
    for one, other in zip(a, b, strict=False):
        if not _asks_same(one, other, rules):
            break
        same += 1
        yield from _answers(one, other, same, same, rules)
    if same < max(len(a), len(b)):
        yield from _remaining_differences(a, b, same, rules)


def _remaining_differences(
    a: Sequence[Call], b: Sequence[Call], same: int, rules: CompareRules
) -> Iterator[StepDifference]:
    keys_a = [request_key(each.asked, rules.names) for each in a[same:]]
    keys_b = [request_key(each.asked) for each in b[same:]]
    if sorted(keys_a) == sorted(keys_b):
        yield StepDifference("order", call_tree(a[same]), call_tree(b[same]), same + 1, same + 1)
        return
    called_a, called_b = ([(each.asked.kind, each.asked.name) for each in side[same:]] for side in (a, b))
    for pair in aligned(keys_a, keys_b, called_a, called_b):
        one = None if pair.a is None else same + pair.a
        other = None if pair.b is None else same + pair.b
        yield from _pair(a, b, one, other, rules)


def _pair(
    a: Sequence[Call], b: Sequence[Call], one: int | None, other: int | None, rules: CompareRules
) -> Iterator[StepDifference]:
    if one is None or other is None:
        if one is not None:
            yield StepDifference("call", call_tree(a[one]), None, one + 1, None)
        elif other is not None:
            yield StepDifference("call", None, call_tree(b[other]), None, other + 1)
        return
    x, y = a[one], b[other]
    if (x.asked.kind, x.asked.name) != (y.asked.kind, y.asked.name):
        yield StepDifference("tool", call_tree(x), call_tree(y), one + 1, other + 1)
    elif not rules.is_same(*(parts := _compared_parts(x, y, rules))):
        what: What = "decision" if x.asked.kind == "decide" else "arguments"
        yield StepDifference(what, *parts, one + 1, other + 1)
    else:
        yield from _answers(x, y, one + 1, other + 1, rules)


def _asks_same(a: Call, b: Call, rules: CompareRules) -> bool:
    same = a.asked.kind == b.asked.kind and a.asked.name == b.asked.name
    return same and rules.is_same(*_compared_parts(a, b, rules))


def _compared_parts(a: Call, b: Call, rules: CompareRules) -> tuple[Plain, Plain]:
    """Return the compared parts of two requests. Everything is compared only if `exact` is set."""
    return (a.asked.request, b.asked.request) if rules.exact else compared(a.asked, b.asked)


def _answers(a: Call, b: Call, a_call: int, b_call: int, rules: CompareRules) -> Iterator[StepDifference]:
    inner = rules.within(child_of(a), child_of(b)) if a.asked.kind == "run" else False
    if inner:  # before how the call ended, because a nested run that departed from its recording made it fail
        yield StepDifference(
            "run", _answer_of(a, rules.exact), _answer_of(b, rules.exact), a_call, b_call, within=inner
        )
        return
    failed_a, failed_b = failure_tree(a.failure), failure_tree(b.failure)
    if not rules.is_same(failed_a, failed_b):
        # The other kind of answer is part of the difference: a result on one side, a failure on the other.
        tree_a = {"answer": a.answer, "failure": failed_a}
        tree_b = {"answer": b.answer, "failure": failed_b}
        yield StepDifference("failure", tree_a, tree_b, a_call, b_call)
        return
    if inner is not False:
        return
    if not rules.exact and a.asked.kind in FRESH:
        rules.names.note_answers(a, b)
        return
    answer_a, answer_b = _answer_of(a, rules.exact), _answer_of(b, rules.exact)
    if not rules.is_same(answer_a, answer_b):
        yield StepDifference("answer", answer_a, answer_b, a_call, b_call)


def _answer_of(call: Call, exact: bool) -> Plain:
    """Return the compared part of an answer: for a read its content, for an exchange its bytes, for a nested run how it
    ended. The point of the log, the times, and the hash are compared only if `exact` is set."""
    if call.asked.kind == "model" and is_exchange(call.asked.request) and isinstance(call.answer, dict) and not exact:
        chunks = [body for _, body in call.answer.get("chunks", ())]
        headers = [[name, value] for name, value in call.answer.get("headers", ()) if name.lower() != "date"]
        return {**call.answer, "chunks": chunks, "headers": headers}
    if call.asked.kind == "run" and isinstance(call.answer, dict):
        left_out = ("run",) if exact else ("run", "hash")
        return {key: value for key, value in call.answer.items() if key not in left_out}
    if call.asked.kind != "read" or not isinstance(call.answer, dict):
        return call.answer
    left_out = ("fields",) if exact else ("fields", "cut")
    return {key: value for key, value in call.answer.items() if key not in left_out}


def request_key(request: RecordedRequest, names: Renaming | None = None) -> str:
    """Return a text that is the same for equal requests.

    Args:
        names: If given, values are renamed to the other run's.
    """
    if names is None:
        return request.hash
    return replace(request, request=names.of(request.request), found_by=names.of(request.found_by)).hash


def call_tree(call: Call) -> Plain:
    """Return a request, as a JSON tree."""
    return {"kind": call.asked.kind, "name": call.asked.name, "request": call.asked.request}


def failure_tree(failure: Failure | None) -> Plain:
    """Return the parts of a failure that count: without its time and its traceback."""
    return None if failure is None else {"exception": failure.exception, "message": failure.message}
