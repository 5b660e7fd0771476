"""A divergence as lines of plain text; the first line says where and why."""

from __future__ import annotations

import json
from collections.abc import Iterator

from refold.agents.compare.differences import FieldDifference
from refold.agents.compare.divergence import Divergence, LaterDifference, Side, What, Why
from refold.agents.journal.difference import shown, shown_apart
from refold.agents.journal.record import Plain

WHATS: dict[What, str] = {
    "agent": "another agent", "input": "other input", "seed": "another seed", "state": "another starting state",
    "step": "a step that the other has not", "order": "another order", "name": "a step of another name",
    "call": "a call that the other has not", "tool": "another call", "arguments": "other arguments",
    "decision": "another decision", "answer": "another answer", "failure": "failed on one side",
    "run": "a run within does otherwise",
    "attempts": "more attempts on one side", "step_failure": "the attempt failed otherwise",
    "kept": "another state afterwards", "result": "another result", "outcome": "another outcome",
    "run_outcome": "the run's outcome", "output": "the run's output", "run_failure": "the run's failure",
    "patch": "what the fork changed",
}  # fmt: skip
WHYS: dict[Why, str] = {
    "started": "they were started with different things",
    "answered": "the world's doing: both asked the same, and were answered otherwise",
    "asked": "the agent's doing: after the same answers, it asked for something else",
    "decided": "the agent's doing: after the same answers, it decided otherwise",
    "kept": "the agent's doing: after the same requests and answers, it made another state",
    "longer": "one goes on where the other stops",
}
LATER_MAX = 12
DIFFERENCES_MAX = 12


def describe(found: Divergence | None, *, is_short: bool = False, is_folded: bool = False) -> Iterator[str]:
    """Yield the lines.

    Args:
        found: The divergence; None if the runs do not differ.
        is_short: Whether long values are cut, differing ones around the difference.
        is_folded: Whether only the first few of many differing paths are shown.
    """
    if found is None:
        yield "no difference"
        return
    place = {None: "at the end", 0: "at the start"}.get(found.step, f"at step {found.step}")
    yield f"first divergence {place}: {_headline(found)}"
    yield f"why: {WHYS[found.why]}"
    if found.forked:
        child = found.forked["side"].upper()
        changed = _text(found.forked["patch"], is_short)
        yield f"{child} is a fork, from after step {found.forked['at']}, changed by {changed}"
    if found.within is not None:
        yield "in a run within:"
        lines = describe(found.within, is_short=is_short, is_folded=is_folded)
        yield from (f"  {line}".rstrip() for line in lines)
        return
    yield ""
    for label, side in (("A", found.a), ("B", found.b)):
        yield f"{label} {_place(side)}"
        if not found.differences:
            yield from (f"  {line}" for line in _value(side.value, found.what, is_short))
    places = found.differences[:DIFFERENCES_MAX] if is_folded else found.differences
    for each in places:
        yield from _difference(each, is_short)
    if more := len(found.differences) - len(places):
        yield f"  and {more:,} more places (--full)"
    if found.also:
        yield f"also in this step: {', '.join(WHATS[each] for each in found.also)}"
    if found.later:
        named = "; ".join(_later_text(each) for each in found.later[:LATER_MAX])
        more = len(found.later) - LATER_MAX
        yield f"after it: {named}{f'; and {more:,} more' if more > 0 else ''}"


def _headline(found: Divergence) -> str:
    if found.what == "step":
        name = "A" if found.only == "a" else "B"
        return f"{name} goes on" if found.why == "longer" else f"only {name} has this step"
    if found.what == "call":
        return f"only {'A' if found.only == 'a' else 'B'} makes this call"
    return WHATS[found.what]


def _place(side: Side) -> str:
    parts = [f"run {side.run}"]
    if side.step is not None:
        parts.append(f"step {side.step}" + (f" {side.name}" if side.name else ""))
    if side.attempt is not None and side.attempt > 1:
        parts.append(f"attempt {side.attempt}")
    if side.call is not None:
        parts.append(f"call {side.call}")
    return ", ".join(parts)


def _value(value: Plain, what: What, is_short: bool) -> Iterator[str]:
    if value is None:
        yield "has none"
    elif what in ("step", "order") and isinstance(value, dict) and "calls" in value:
        yield from (_call(each, is_short) for each in value["calls"])
        if value.get("result") is not None:
            yield f"result {_text(value['result'], is_short)}"
    elif isinstance(value, dict) and "kind" in value:
        yield _call(value, is_short)
    else:
        yield _text(value, is_short)


def _call(call: Plain, is_short: bool) -> str:
    request = call["request"]
    if isinstance(request, dict) and request.keys() == {"args", "kwargs"}:
        given = [_text(each, is_short) for each in request["args"]]
        given += [f"{name}={_text(each, is_short)}" for name, each in request["kwargs"].items()]
        return f"{call['kind']} {call['name']}({', '.join(given)})"
    return " ".join(part for part in (call["kind"], call["name"], _text(request, is_short)) if part)


def _difference(each: FieldDifference, is_short: bool) -> Iterator[str]:
    yield f"  {each.path or 'value'}"
    a, b = shown_apart(each.a, each.b) if is_short else (_text(each.a, False), _text(each.b, False))
    if each.op != "add":
        yield f"    A {a}"
    if each.op != "remove":
        yield f"    B {b}"


def _later_text(each: LaterDifference) -> str:
    if each.a is None:
        return f"step {each.b} only in B"
    if each.b is None:
        return f"step {each.a} only in A"
    numbers = f"step {each.a}" if each.a == each.b else f"step {each.a} (B's {each.b})"
    return f"{numbers} {WHATS[each.what]}"


def _text(value: Plain, is_short: bool) -> str:
    return shown(value) if is_short else json.dumps(value, ensure_ascii=False)
