"""Check whether a run meets an expectation, and describe the difference for people. Pure."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence

from refold.agents.golden.expect import ANY, Expectation
from refold.agents.golden.run_summary import RunSummary
from refold.agents.journal.delta import is_same
from refold.agents.journal.objects import bare, dumped
from refold.agents.journal.record import Kind, Plain
from refold.avro.errors import InputError

_ABSENT = object()
_SHOWN_MAX = 200
_AROUND = 3
_ALIGNED_MAX = 500
# If an expected name does not occur among this many following names, it counts as missing.
_MISSING = 4
_ORDERED: Mapping[str, Callable[[Plain, Plain], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_KINDS: Mapping[str, Kind] = {"tools": "tool", "decisions": "decide", "model_calls": "model", "reads": "read"}


def unmet(expected: Expectation, did: RunSummary, recorded_hash: str) -> str:
    """Describe how a run misses an expectation, in one line or several; "" if it meets it.

    Args:
        expected: The expectation.
        did: What the run did.
        recorded_hash: The hash of the recorded run.
    """
    if expected.subject == "exact":
        return "" if did.hash == recorded_hash else "it did something else than was recorded"
    if expected.subject == "sequence":
        return _sequence(expected, did)
    if expected.subject == "count":
        return _count(expected, did)
    return _value(expected, did)


def _sequence(expected: Expectation, did: RunSummary) -> str:
    actual = [each if isinstance(each, str) else json.dumps(each) for each in getattr(did, expected.name)]
    return "" if _fits(expected.value, actual) else _side_by_side(expected.value, actual)


def _fits(pattern: Sequence[str], actual: Sequence[str]) -> bool:
    """Return whether names match the pattern, in which ANY matches any number of names."""
    reached = {0}  # how many of `actual` the pattern so far may match
    for each in pattern:
        if each == ANY:
            reached = set(range(min(reached), len(actual) + 1)) if reached else set()
        else:
            reached = {at + 1 for at in reached if at < len(actual) and actual[at] == each}
    return len(actual) in reached


def _side_by_side(pattern: Sequence[str], actual: Sequence[str]) -> str:
    """Return both in two columns, with differences marked and distant rows left out."""
    rows = list(_aligned(pattern, actual))
    near = {at + by for at, (mark, _, _) in enumerate(rows) if mark == ">" for by in range(-_AROUND, _AROUND + 1)}
    width = max(map(len, ["expected", *pattern]))
    lines = [f"       {'expected':{width}}  made"]
    number = 0
    for at, (mark, ours, theirs) in enumerate(rows):
        number += theirs != ""
        if at in near:
            lines.append(f"{mark} {number if theirs else '':>4} {ours or '-':{width}}  {theirs or '-'}")
        elif at - 1 in near or at == 0:
            lines.append("     ...")
    return "\n".join(lines)


def _aligned(pattern: Sequence[str], actual: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield rows of (mark, expected, made), with few unmatched names; "" if one side has none."""
    pattern, actual = pattern[:_ALIGNED_MAX], actual[:_ALIGNED_MAX]
    # alone[i][j]: the cost of unmatched names from pattern[i] and made[j] on.
    alone = [[0] * (len(actual) + 1) for _ in range(len(pattern) + 1)]
    for i in range(len(pattern), -1, -1):
        for j in range(len(actual), -1, -1):
            alone[i][j] = min((cost + alone[x][y] for cost, x, y in _moves(pattern, actual, i, j)), default=0)
    i = j = 0
    while i < len(pattern) or j < len(actual):
        cost, x, y = min(_moves(pattern, actual, i, j), key=lambda move: move[0] + alone[move[1]][move[2]])
        if y > j or pattern[i] != ANY:
            yield ">" if cost else " ", pattern[i] if i < x or not cost else "", actual[j] if y > j else ""
        i, j = x, y


def _moves(pattern: Sequence[str], actual: Sequence[str], i: int, j: int) -> Iterator[tuple[int, int, int]]:
    """Yield the possible next rows, as (the cost of an unmatched name in it, next i, next j)."""
    if i < len(pattern):
        if pattern[i] == ANY:
            yield 0, i + 1, j
            if j < len(actual):
                yield 0, i, j + 1
            return
        if j < len(actual) and pattern[i] == actual[j]:
            yield 0, i + 1, j + 1
        yield _MISSING, i + 1, j
    if j < len(actual):
        yield 1, i, j + 1


def _count(expected: Expectation, did: RunSummary) -> str:
    if expected.is_tool:
        count, what = did.count(expected.name), f"calls of {expected.name}"
    elif expected.name == "steps":
        count, what = len(did.steps), "steps"
    else:
        count, what = did.count(kind=_KINDS[expected.name]), expected.name.replace("_", " ")
    if _holds(expected.operator, count, expected.value):
        return ""
    others = f"; it called {', '.join(sorted(set(did.tools))) or 'no tool'}" if expected.is_tool and not count else ""
    return f"made {count} {what}{others}"


def _value(expected: Expectation, did: RunSummary) -> str:
    if expected.name == "error":
        return _error(expected, did)
    if expected.name == "state":
        try:
            root = did.state_at(-1 if expected.step is None else expected.step)
        except InputError as error:
            return str(error)
    else:
        root = getattr(did, expected.name)
    found = bare(dumped(root, expected.name))
    for at, part in enumerate(expected.path):
        inner = _member(found, part)
        if inner is _ABSENT:
            if expected.operator == "!=":
                return ""
            return f"{_path(expected, at + 1)} is not there; {_path(expected, at)} is {shown(found)}"
        found = inner
    if _holds(expected.operator, found, expected.value):
        return ""
    hint = ""
    if expected.operator == "=" and str(found) == str(expected.value):
        hint = f" (a {_kind(found)}, where a {_kind(expected.value)} is expected)"
    failed = f"; {_failure_text(did)}" if expected.name == "outcome" and did.failure else ""
    return f"{_path(expected, len(expected.path))} is {shown(found)}{hint}{failed}"


def _error(expected: Expectation, did: RunSummary) -> str:
    failure = did.failure
    if failure is None:
        holds = (expected.value is None) == (expected.operator == "=") and expected.operator != "~"
    elif expected.operator == "~":
        holds = str(expected.value) in failure.message
    else:
        names = (failure.exception, failure.exception.rpartition(".")[2])
        holds = (expected.value in names) == (expected.operator == "=")
    return "" if holds else _failure_text(did)


def _failure_text(did: RunSummary) -> str:
    if did.failure is None:
        return "it did not fail"
    return f"it failed with {did.failure.exception}: {shown(did.failure.message)}"


def _holds(sign: str, found: Plain, value: Plain) -> bool:
    if sign in ("=", "!="):
        return is_same(found, value) == (sign == "=")
    if sign == "~":
        if isinstance(found, str):
            return str(value) in found
        if isinstance(found, list):
            return any(is_same(each, value) for each in found)
        return isinstance(found, dict) and str(value) in found
    numbers = (int, float)
    both = (type(found) in numbers and type(value) in numbers) or (isinstance(found, str) and isinstance(value, str))
    return both and _ORDERED[sign](found, value)


def _member(tree: Plain, part: str | int) -> Plain:
    if isinstance(part, int):
        return tree[part] if isinstance(tree, list) and -len(tree) <= part < len(tree) else _ABSENT
    return tree.get(part, _ABSENT) if isinstance(tree, dict) else _ABSENT


def _path(expected: Expectation, length: int) -> str:
    head = expected.name if expected.step is None else f"{expected.name}[{expected.step}]"
    return head + "".join(
        f"[{each}]" if isinstance(each, int) else f".{each}" if each.isidentifier() else f"[{json.dumps(each)}]"
        for each in expected.path[:length]
    )


def _kind(value: Plain) -> str:
    return {str: "text", bool: "boolean", int: "number", float: "number"}.get(type(value), "JSON value")


def shown(value: Plain) -> str:
    """Return a value on one line, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}... ({len(text)} characters)"
