"""The moments of an entity that a slider stops at, by one of three clocks.

known: the versions, by when the log recorded them. true: the times at which things happened, according to their
sources. read: the times at which agents read the entity. Each moment has the address of the page at that moment. If
there are too many moments, only those around the chosen one are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refold.agents.log import AgentLog
from refold.avro.observation import type_of
from refold.avro.times import parse_time, time_text
from refold.streams.cut import Cut

MOMENTS_MAX = 240
CLOCKS = ("known", "true", "read")
READS_SEARCHED = 50_000
"""In how many of the newest records reads are looked for at first; a tenth of a second's work."""
# The distance from the middle of the thumb, at an end of the slider, to that end: percent of a usual width.
MARGIN_PERCENT = 1.0


class SliderStop(NamedTuple):
    """One stop of a slider.

    Attributes:
        at: The moment, as WHEN.
        clock: The clock of `at`.
        time: The time of the moment, as RFC 3339.
        about: What happened.
        is_chosen: Whether the page shows this moment.
        x: The position on the slider, in percent of its width.
    """

    at: str
    clock: str
    time: str
    about: str
    is_chosen: bool = False
    x: float = 0


class DeployMark(NamedTuple):
    """A marker of the log, such as a deploy.

    Attributes:
        x: The position in percent, halfway between the moments before and after it.
    """

    name: str
    x: float


class SliderStops(NamedTuple):
    """The stops of a slider.

    Attributes:
        earlier, later: How many moments are left out on each side.
        chosen: The index of the shown moment; -1 for none.
    """

    clock: str
    moments: tuple[SliderStop, ...]
    marks: tuple[DeployMark, ...]
    chosen: int
    earlier: int = 0
    later: int = 0


def known_moments(rows: Sequence[Mapping[str, Any]], version: int) -> list[SliderStop]:
    """Return the versions that changed something. The chosen one is the newest up to `version`.

    Args:
        rows: The rows of the entity's history.
        version: The version that is shown.
    """
    by_version: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        by_version.setdefault(row["version"], []).append(row)
    numbers = sorted(by_version)
    chosen = max((each for each in numbers if each <= version), default=None)
    found = []
    for each in numbers:
        changed = by_version[each]
        fields = ", ".join(dict.fromkeys(row["field"] for row in changed))
        who = changed[0]["source"]["agent"] or "somebody"
        found.append(
            SliderStop(f"v{each}", "", changed[0]["recorded_at"], f"v{each}: {fields}, by {who}", each == chosen)
        )
    return found


def true_moments(
    rows: Sequence[Mapping[str, Any]], version: int, observed_until: str | None
) -> list[SliderStop]:  # fmt: skip
    """Return the times at which something happened.

    Args:
        rows: The rows of the entity's history.
        version: The version that is shown.
        observed_until: The time that is shown, RFC 3339. The chosen stop is the latest up to it; with None, the
            latest time that was known in `version`.
    """
    by_time: dict[str, list[str]] = {}
    for row in rows:
        if row["observed_at"]:
            by_time.setdefault(row["observed_at"], []).append(row["field"])
    times = sorted(by_time, key=_micros)
    if observed_until is None:
        known = {row["observed_at"] for row in rows if row["version"] <= version}
        reached = [each for each in times if each in known]
    else:
        reached = [each for each in times if _micros(each) <= _micros(observed_until)]
    chosen = reached[-1] if reached else None
    return [
        SliderStop(each, "observed", each, ", ".join(dict.fromkeys(by_time[each])), each == chosen) for each in times
    ]


def read_moments(reads: Sequence[Mapping[str, Any]], cut: str) -> list[SliderStop]:
    """Return the agents' reads of the entity, each at the cut that was read. The chosen one was read at `cut`."""
    return [
        SliderStop(each["cut"], "", each["read_at"],
               f"v{each['version']}, read by {each['agent']} in step {each['step']} of {each['run']}",
               each["cut"] == cut)
        for each in reads
        if each["cut"]
    ]  # fmt: skip


def moments_of(
    log: AgentLog, entity: str, clock: str, version: int, rows: Sequence[Mapping[str, Any]], cut: Cut, end: Cut,
    begin: Cut,
) -> list[SliderStop]:  # fmt: skip
    """Return the moments of an entity, by one clock.

    Args:
        log: The log.
        entity: TYPE/ID.
        clock: One of CLOCKS.
        version: The version that is shown now.
        rows: The rows of the entity's history.
        cut: The cut that is shown now.
        end: Where the slider ends.
        begin: The cut after which reads are looked for, for the clock `read`. Other moments are complete.
    """
    if clock == "read":
        return read_moments(reads_of(log, entity, begin, end), str(cut))
    if clock == "true":
        return true_moments(rows, version, None if cut.observed_until is None else time_text(cut.observed_until))
    return known_moments(rows, version)


def reads_of(log: AgentLog, entity: str, begin: Cut, end: Cut) -> list[dict[str, Any]]:
    """Return the reads of an entity by the steps that were recorded between two cuts, in order.

    The name of an entity is stored as it is, in UTF-8. So records without it are skipped undecoded, at a few
    microseconds each.
    """
    name = entity.encode()
    steps = {
        record.entity: None
        for partition, last in end.offsets.items()
        for record in log.port.read(partition, begin.offsets[partition], last)
        if name in record.data and type_of(record.entity) == "step"
    }
    found = []
    for step in log.states(steps, end).values():
        fields = step.fields
        by = {"agent": fields.get("agent", ""), "run": fields.get("run", ""), "step": fields.get("position", 0)}
        found += [
            {
                **by, "read_at": time_text(each["read_at"] or 0), "version": each.get("version"),
                "cut": each.get("cut") or "",
            }
            for each in fields.get("reads", ())
            if each["entity"] == entity
        ]  # fmt: skip
    return sorted(found, key=lambda each: (each["read_at"], each["run"], each["step"]))


def placed(clock: str, found: Sequence[SliderStop], markers: Sequence[Mapping[str, Any]]) -> SliderStops:
    """Return at most MOMENTS_MAX moments around the chosen one, evenly spaced, with the markers between them."""
    chosen = next((index for index, each in enumerate(found) if each.is_chosen), -1)
    middle = chosen if chosen >= 0 else len(found) - 1
    first = max(0, min(middle - MOMENTS_MAX // 2, len(found) - MOMENTS_MAX))
    shown = found[first : first + MOMENTS_MAX]
    place = _places(len(shown))
    moments = tuple(each._replace(x=place(index)) for index, each in enumerate(shown))
    marks = tuple(_marks(moments, markers))
    later = len(found) - first - len(shown)
    return SliderStops(clock, moments, marks, chosen - first if chosen >= 0 else -1, first, later)


def _places(count: int) -> Callable[[int], float]:
    room = 100 - 2 * MARGIN_PERCENT
    return lambda index: MARGIN_PERCENT + (room / 2 if count == 1 else index * room / (count - 1))


def _marks(moments: Sequence[SliderStop], markers: Sequence[Mapping[str, Any]]) -> list[DeployMark]:
    times = [_micros(each.time) for each in moments]
    found = []
    for each in markers:
        marked = _micros(each["marked_at"])
        before = sum(time <= marked for time in times)
        if not times:
            continue
        left = moments[before - 1].x if before else 0.0
        right = moments[before].x if before < len(moments) else 100.0
        found.append(DeployMark(each["name"], (left + right) / 2))
    return found


def _micros(text: str) -> int:
    return parse_time(text, "time")
