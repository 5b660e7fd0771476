"""The layout of charts: the history of an entity, and the graph of the causes of a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

WIDTH = 1000
LANE_HEIGHT = 30
LANES_MAX = 24
CHANGES_MAX = 400

NODE_WIDTH, NODE_HEIGHT, COLUMN_GAP, ROW_GAP = 230, 46, 56, 14
NODES_MAX = 60


class ChartMark(NamedTuple):
    """One change of a field. x: from 0 to WIDTH; label: text for people."""

    x: float
    label: str
    version: int


class HistoryLane(NamedTuple):
    """The history of one field.

    line: an SVG path of its values if all of them are numbers, else empty. low, high: the smallest and the largest
    value.
    """

    field: str
    changes: tuple[ChartMark, ...]
    line: str
    low: float | None = None
    high: float | None = None


class GraphNode(NamedTuple):
    """One observation of a chain, with its top left corner in pixels."""

    link: Mapping[str, Any]
    x: int
    y: int


class ChainGraph(NamedTuple):
    """A graph of causes. edges: SVG paths; width, height: in pixels; left_out: how many observations are not drawn."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    left_out: int


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


def graph(chain: Sequence[Mapping[str, Any]]) -> ChainGraph:
    """Lay out the chain of a value: the observation that set it on the left, its causes to the right."""
    shown = chain[:NODES_MAX]
    rows: dict[int, int] = {}
    nodes: list[GraphNode] = []
    for link in shown:
        row = rows[link["depth"]] = rows.get(link["depth"], -1) + 1
        x = link["depth"] * (NODE_WIDTH + COLUMN_GAP)
        nodes.append(GraphNode(link, x, row * (NODE_HEIGHT + ROW_GAP)))
    width = (max(rows, default=0) + 1) * (NODE_WIDTH + COLUMN_GAP) - COLUMN_GAP
    height = (max(rows.values(), default=0) + 1) * (NODE_HEIGHT + ROW_GAP) - ROW_GAP
    return ChainGraph(tuple(nodes), tuple(_edges(nodes)), width, height, len(chain) - len(shown))


def _edges(nodes: Sequence[GraphNode]) -> Iterator[str]:
    place = {each.link["observation"]: each for each in nodes}
    for node in nodes:
        for cause in node.link["causes"]:
            to = place.get(cause)
            if to is None:
                continue
            x1, y1 = node.x + NODE_WIDTH, node.y + NODE_HEIGHT // 2
            x2, y2 = to.x, to.y + NODE_HEIGHT // 2
            if to.x <= node.x:  # the cause has already been placed, because another path to it is shorter
                x1 = node.x + NODE_WIDTH // 2
                y1 = node.y + (NODE_HEIGHT if to.y > node.y else 0)
                x2, y2 = to.x + NODE_WIDTH // 2, to.y + (0 if to.y > node.y else NODE_HEIGHT)
            middle = (x1 + x2) // 2
            yield f"M{x1} {y1}C{middle} {y1} {middle} {y2} {x2} {y2}"
