"""The layout of the chart of an entity's history: a lane for each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 1000
LANE_HEIGHT = 30
LANES_MAX = 24
CHANGES_MAX = 400


class ChartMark(NamedTuple):
    """One change of a field.

    Attributes:
        x: The position, from 0 to WIDTH.
        label: The text for people.
    """

    x: float
    label: str
    version: int


class HistoryLane(NamedTuple):
    """The history of one field.

    Attributes:
        line: An SVG path of its values if all of them are numbers, else empty.
        low, high: The smallest and the largest value; None if there is no line.
    """

    field: str
    changes: tuple[ChartMark, ...]
    line: str
    low: float | None = None
    high: float | None = None


def lanes(rows: Sequence[Mapping[str, Any]]) -> list[HistoryLane]:
    """Return a lane for each field of a history. The x axis is the version."""
    versions = sorted({row["version"] for row in rows})[-CHANGES_MAX:]
    place = {version: (index + 0.5) * WIDTH / len(versions) for index, version in enumerate(versions)}
    fields = list(dict.fromkeys(row["field"] for row in rows))[:LANES_MAX]
    return [_lane(each, [row for row in rows if row["field"] == each and row["version"] in place], place)
            for each in fields]  # fmt: skip


def _lane(field: str, rows: Sequence[Mapping[str, Any]], place: Mapping[int, float]) -> HistoryLane:
    changes = tuple(ChartMark(place[row["version"]], f"v{row['version']}: {row['op']}", row["version"]) for row in rows)
    values = [row["new"] for row in rows]
    is_number = len(values) > 1 and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    if not is_number or any(row["key"] is not None for row in rows):
        return HistoryLane(field, changes, "")
    low, high = min(values), max(values)
    spread = (high - low) or 1
    height = [LANE_HEIGHT - 5 - (each - low) / spread * (LANE_HEIGHT - 10) for each in values]
    path = f"M{changes[0].x:.1f} {height[0]:.1f}"
    for change, y in zip(changes[1:], height[1:], strict=True):
        path += f"H{change.x:.1f}V{y:.1f}"
    return HistoryLane(field, changes, f"{path}H{WIDTH}", low, high)
