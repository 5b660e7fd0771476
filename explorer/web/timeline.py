"""The layout of a run's timeline: its steps and calls as bars. Positions are percent of the width; a template makes
SVG.

There are three scales. `time` is proportional to time, `busy` shortens the time in which no step was running, and
`step` gives each step the same width. A source without times has only `step`. If a run has many steps, neighbouring
bars are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from refold.agents.journal.record import Call, Recording, Step
from refold.explorer.queries.run_shapes import has_failed, title_of

SCALES = ("busy", "time", "step")
BARS_MAX = 400
GAP_SHARE = 0.03
WIDTH_MIN = 0.35
ROW_OF = {"model": "model", "tool": "tools", "read": "state", "observe": "state", "run": "runs within"}
ROWS = ("steps", "model", "tools", "state", "runs within")

Scale = Callable[[int], float]


class TimelineBar(NamedTuple):
    """One bar.

    Attributes:
        row: One of ROWS.
        kind: The kind of the row, or of a call.
        x: The left end, in percent.
        width: The width, in percent.
        first: The number of the first step that the bar represents.
        last: The number of the last one.
        label: Its description.
        is_failed: Whether something in it failed.
        retries: How many retries it includes.
        name: The text inside the bar.
    """

    row: str
    kind: str
    x: float
    width: float
    first: int
    last: int
    label: str
    is_failed: bool = False
    retries: int = 0
    name: str = ""


class IdleGap(NamedTuple):
    """A shortened time in which no step was running.

    Attributes:
        x: The position, in percent.
        milliseconds: Its real duration, in milliseconds.
    """

    x: float
    milliseconds: float


class Timeline(NamedTuple):
    """A timeline.

    Attributes:
        rows: The rows that have bars, in order.
        scales: The scales that can be chosen.
    """

    rows: tuple[str, ...]
    bars: tuple[TimelineBar, ...]
    gaps: tuple[IdleGap, ...]
    scale: str
    scales: tuple[str, ...]


class _Span(NamedTuple):
    """A time span, in microseconds."""

    begin: int
    end: int


def timeline(run: Recording, wanted: str = "") -> Timeline:
    """Lay out the timeline of a run.

    Args:
        wanted: The scale. If the run cannot be shown on it, the default scale is used.
    """
    spans = [_span_of(step) for step in run.steps]
    timed = [span for span in spans if span is not None]
    scales = SCALES if timed and len(timed) == len(spans) else ("step",)
    scale = wanted if wanted in scales else _usual(timed, scales)
    gaps: tuple[IdleGap, ...] = ()
    if scale == "step":
        bars = _by_step(run.steps)
    else:
        place, gaps = _busy(timed) if scale == "busy" else (_real(timed), ())
        bars = _by_time(run.steps, timed, place)
    # Narrow bars are drawn last: wide ones would hide them.
    found = tuple(sorted(_thinned(bars, len(run.steps)), key=lambda each: -each.width))
    rows = tuple(row for row in ROWS if any(each.row == row for each in found))
    return Timeline(rows, found, gaps, scale, scales)


def _usual(spans: Sequence[_Span], scales: tuple[str, ...]) -> str:
    """Return the default scale: one by time only if most steps can be told apart on it."""
    if len(scales) == 1:
        return scales[0]
    place, _ = _busy(spans)
    narrow = sum(place(each.end) - place(each.begin) < WIDTH_MIN for each in spans)
    return "step" if narrow * 2 > len(spans) else scales[0]


def _span_of(step: Step) -> _Span | None:
    begun = [each.started_at for each in step.attempts if each.started_at]
    ended = [each.ended_at for each in step.attempts if each.ended_at]
    if not begun:
        return None
    return _Span(min(begun), max([*ended, *begun]))


def _real(spans: Sequence[_Span]) -> Scale:
    first, last = min(each.begin for each in spans), max(each.end for each in spans)
    whole = max(last - first, 1)
    return lambda micros: min(max((micros - first) / whole, 0), 1) * 100


def _busy(spans: Sequence[_Span]) -> tuple[Scale, tuple[IdleGap, ...]]:
    """Return a scale on which every gap between steps is short, and the gaps."""
    merged: list[_Span] = []
    for each in sorted(spans):
        if merged and each.begin <= merged[-1].end:
            merged[-1] = _Span(merged[-1].begin, max(merged[-1].end, each.end))
        else:
            merged.append(each)
    busy = max(sum(each.end - each.begin for each in merged), 1)
    room = busy * GAP_SHARE
    starts: list[float] = [0.0]
    for before, after in pairwise(merged):
        starts.append(starts[-1] + (before.end - before.begin) + min(after.begin - before.end, room))
    whole = starts[-1] + max(merged[-1].end - merged[-1].begin, 1)

    def place(micros: int) -> float:
        for start, span in zip(reversed(starts), reversed(merged), strict=True):
            if micros >= span.begin:
                return min((start + min(micros, span.end) - span.begin) / whole, 1) * 100
        return 0.0

    gaps = tuple(
        IdleGap((start + before.end - before.begin + room / 2) / whole * 100, (after.begin - before.end) / 1000)
        for start, (before, after) in zip(starts, pairwise(merged), strict=False)
        if after.begin - before.end > room
    )
    return place, gaps


def _by_time(steps: Sequence[Step], spans: Sequence[_Span], place: Scale) -> list[TimelineBar]:
    bars = []
    for step, span in zip(steps, spans, strict=True):
        bars.append(_step_bar(step, place(span.begin), place(span.end)))
        for call in _drawn(step):
            begin = call.started_at or span.begin
            bars.append(_call_bar(step, call, place(begin), place(begin + round(call.duration_ms * 1000))))
    return bars


def _by_step(steps: Sequence[Step]) -> list[TimelineBar]:
    bars, room = [], 100 / max(len(steps), 1)
    for index, step in enumerate(steps):
        bars.append(_step_bar(step, index * room, (index + 0.92) * room))
        calls = list(_drawn(step))
        each_room = room * 0.92 / max(len(calls), 1)
        bars += [
            _call_bar(step, call, index * room + number * each_room, index * room + (number + 0.85) * each_room)
            for number, call in enumerate(calls)
        ]
    return bars


def _drawn(step: Step) -> list[Call]:
    return [call for attempt in step.attempts for call in attempt.calls if call.asked.kind in ROW_OF]


def _step_bar(step: Step, begin: float, end: float) -> TimelineBar:
    name = f"step {step.number}" + (f" {step.name}" if step.name else "")
    return TimelineBar("steps", "step", *_room(begin, end), step.number, step.number, name, has_failed(step),
                       max(len(step.attempts) - 1, 0), title_of(step) or str(step.number))  # fmt: skip


def _call_bar(step: Step, call: Call, begin: float, end: float) -> TimelineBar:
    kind = "write" if call.asked.effect == "write" else call.asked.kind
    label = f"{call.asked.name or call.asked.kind}, in step {step.number}"
    failed = call.failure is not None
    return TimelineBar(ROW_OF[call.asked.kind], kind, *_room(begin, end), step.number, step.number, label, failed,
                       len(call.retries), call.asked.name or call.asked.kind)  # fmt: skip


def _room(begin: float, end: float) -> tuple[float, float]:
    """Return x and width of a bar. It is wide enough to see and click, and does not exceed the right edge."""
    width = max(end - begin, WIDTH_MIN)
    return min(begin, 100 - width), width


def _thinned(bars: Sequence[TimelineBar], steps: int) -> list[TimelineBar]:
    """Join neighbouring bars of a row if the run has more than BARS_MAX steps."""
    if steps <= BARS_MAX:
        return list(bars)
    chunk = -(-steps // BARS_MAX)
    joined: dict[tuple[str, int], TimelineBar] = {}
    for each in bars:
        key = each.row, (each.first - 1) // chunk
        known = joined.get(key)
        if known is None:
            joined[key] = each
            continue
        begin, end = min(known.x, each.x), max(known.x + known.width, each.x + each.width)
        first = known.first if known.is_failed or not each.is_failed else each.first
        joined[key] = known._replace(
            x=begin, width=end - begin, first=first, last=max(known.last, each.last),
            name="", label=f"steps {(each.first - 1) // chunk * chunk + 1} to {max(known.last, each.last)}",
            is_failed=known.is_failed or each.is_failed, retries=known.retries + each.retries,
        )  # fmt: skip
    return list(joined.values())
