"""What differs in one step of two runs, the first thing first.

Things are looked at in the order in which they came about: each attempt's calls, asked and then answered, how the
attempt failed, and then what the step kept, gave back and came to. Of a conversation (has_code False) everything asked
in a step comes before every answer, for one message asked it all.

Calls are paired from the front while the same is asked. From the first that differs on they are aligned: by the whole
request, then by what is called, so that one that was put in is told from one that was changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from refold.agents.compare.aligning import aligned
from refold.agents.compare.divergence import What
from refold.agents.compare.renaming import FRESH, Renaming
from refold.agents.journal.record import Asked, Attempt, Call, Failure, Plain, Step


class Found(NamedTuple):
    """One thing that differs. a, b: what stands there. at: numbers of the attempt and of each side's call."""

    what: What
    a: Plain
    b: Plain
    attempt: int | None = None
    a_call: int | None = None
    b_call: int | None = None


class Rules(NamedTuple):
    """How strictly to look. exact: what every live run hears anew counts too (renaming.py)."""

    names: Renaming
    exact: bool = False
    asked_first: bool = False

    def is_same(self, a: Plain, b: Plain) -> bool:
        """Whether two trees are the same, as far as this comparison goes."""
        return self.names.is_same(a, b)


def found_in(a: Step, b: Step, rules: Rules) -> Iterator[Found]:
    """Everything that differs in two steps, but where they stand in their runs."""
    if a.name != b.name:
        yield Found("name", a.name, b.name)
    for number, (one, other) in enumerate(zip(a.attempts, b.attempts, strict=False), 1):
        yield from _attempt(number, one, other, rules)
    if len(a.attempts) != len(b.attempts):
        yield Found("attempts", len(a.attempts), len(b.attempts), min(len(a.attempts), len(b.attempts)))
    if not rules.is_same([*a.delta], [*b.delta]):
        yield Found("kept", [*a.delta], [*b.delta])
    if not rules.is_same(a.result, b.result):
        yield Found("result", a.result, b.result)
    if a.outcome != b.outcome:
        yield Found("outcome", a.outcome, b.outcome)


def _attempt(number: int, a: Attempt, b: Attempt, rules: Rules) -> Iterator[Found]:
    found = [each._replace(attempt=number) for each in _calls(a.calls, b.calls, rules)]
    if rules.asked_first:
        found.sort(key=lambda each: each.what in ("answer", "failure"))
    yield from found
    if not rules.is_same(failure_tree(a.failure), failure_tree(b.failure)):
        yield Found("step_failure", failure_tree(a.failure), failure_tree(b.failure), number)


def _calls(a: Sequence[Call], b: Sequence[Call], rules: Rules) -> Iterator[Found]:
    same = 0
    for one, other in zip(a, b, strict=False):
        if not _asks_same(one, other, rules):
            break
        same += 1
        yield from _answers(one, other, same, same, rules)
    if same < max(len(a), len(b)):
        yield from _further(a, b, same, rules)


def _further(a: Sequence[Call], b: Sequence[Call], same: int, rules: Rules) -> Iterator[Found]:
    keys_a = [request_key(each.asked, rules.names) for each in a[same:]]
    keys_b = [request_key(each.asked) for each in b[same:]]
    if sorted(keys_a) == sorted(keys_b):
        yield Found("order", call_tree(a[same]), call_tree(b[same]), None, same + 1, same + 1)
        return
    called_a, called_b = ([(each.asked.kind, each.asked.name) for each in side[same:]] for side in (a, b))
    for pair in aligned(keys_a, keys_b, called_a, called_b):
        one = None if pair.a is None else same + pair.a
        other = None if pair.b is None else same + pair.b
        yield from _pair(a, b, one, other, rules)


def _pair(a: Sequence[Call], b: Sequence[Call], one: int | None, other: int | None, rules: Rules) -> Iterator[Found]:
    if one is None or other is None:
        if one is not None:
            yield Found("call", call_tree(a[one]), None, None, one + 1, None)
        elif other is not None:
            yield Found("call", None, call_tree(b[other]), None, None, other + 1)
        return
    x, y = a[one], b[other]
    if (x.asked.kind, x.asked.name) != (y.asked.kind, y.asked.name):
        yield Found("tool", call_tree(x), call_tree(y), None, one + 1, other + 1)
    elif not rules.is_same(x.asked.request, y.asked.request):
        what: What = "decision" if x.asked.kind == "decide" else "arguments"
        yield Found(what, x.asked.request, y.asked.request, None, one + 1, other + 1)
    else:
        yield from _answers(x, y, one + 1, other + 1, rules)


def _asks_same(a: Call, b: Call, rules: Rules) -> bool:
    same = a.asked.kind == b.asked.kind and a.asked.name == b.asked.name
    return same and rules.is_same(a.asked.request, b.asked.request)


def _answers(a: Call, b: Call, a_call: int, b_call: int, rules: Rules) -> Iterator[Found]:
    failed_a, failed_b = failure_tree(a.failure), failure_tree(b.failure)
    if not rules.is_same(failed_a, failed_b):
        # What came back instead is part of the story: a result on one side, a failure on the other.
        tree_a = {"answer": a.answer, "failure": failed_a}
        tree_b = {"answer": b.answer, "failure": failed_b}
        yield Found("failure", tree_a, tree_b, None, a_call, b_call)
        return
    if not rules.exact and a.asked.kind in FRESH:
        rules.names.heard(a, b)
        return
    heard_a, heard_b = _heard(a, rules.exact), _heard(b, rules.exact)
    if not rules.is_same(heard_a, heard_b):
        yield Found("answer", heard_a, heard_b, None, a_call, b_call)


def _heard(call: Call, exact: bool) -> Plain:
    """What an answer said. A read is told by what was read; at which point of the log, only if it is to be exact."""
    if call.asked.kind != "read" or not isinstance(call.answer, dict):
        return call.answer
    left_out = ("fields",) if exact else ("fields", "cut")
    return {key: value for key, value in call.answer.items() if key not in left_out}


def request_key(asked: Asked, names: Renaming | None = None) -> str:
    """A text that equal requests share; with `names`, as the other run would have asked."""
    if names is None:
        return asked.hash
    return Asked(kind=asked.kind, name=asked.name, request=names.of(asked.request)).hash


def call_tree(call: Call) -> Plain:
    """What was asked, as a JSON tree."""
    return {"kind": call.asked.kind, "name": call.asked.name, "request": call.asked.request}


def failure_tree(failure: Failure | None) -> Plain:
    """What of a failure counts: not its time, nor its traceback."""
    return None if failure is None else {"exception": failure.exception, "message": failure.message}
