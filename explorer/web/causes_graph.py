"""The graph of the causes of a value: which observations are drawn, which are folded, and where each node is placed.

1. The first node is the value. Its causes are the observations that set it. From there the chain is walked towards its
   sources, the nearest observations first.
2. The causes of a node that have no place yet are grouped by kind: the type of their entity, and the agent that
   recorded them. The first KEPT of a kind are drawn; the others are one fold.
3. All causes of a node are one fold if they are more than DEPTH_DRAWN causes away, or if NODES_DRAWN observations are
   drawn already.
4. Each time that a fold is opened, OPENED more of its observations are drawn. Steps 2 and 3 begin again from these,
   with a number of their own, so nothing that was drawn before is folded.
5. What only folds lead to is in the first fold that leads to it. Some of the observations there that have no causes are
   drawn after the fold, because the value comes from these in the end.
6. fast-sugiyama gives each node a column and a place in it. It also places the lines that pass a column.

A fold is named by the observation that its members are causes of, and the number of their kind. Neither changes,
because an observation's id covers its causes; so an address with opened folds shows the same graph again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import fast_sugiyama

from refold.avro.errors import InputError
from refold.avro.observation import type_of
from refold.streams.view import TraceLink

KEPT = 3
DEPTH_DRAWN = 6
NODES_DRAWN = 32
OPENED = 24
OPENED_MAX = 20
SOURCES_OF_A_FOLD, SOURCES_DRAWN = 2, 12
ID_DIGITS = 12
NODE_WIDTH, NODE_HEIGHT, COLUMN_GAP, ROW_GAP = 230, 46, 56, 14
MIXED = "observations"
VALUE = ""
"""The name of the node of the value."""


class GraphNode(NamedTuple):
    """A drawn observation, or the value.

    Attributes:
        observation: Its id in hex; VALUE for the value.
        x, y: The top left corner, in pixels.
    """

    observation: str
    x: int
    y: int


class GraphFold(NamedTuple):
    """Observations that are not drawn.

    Attributes:
        key: Its name in an address.
        kind, agent: The kind and the agent of its members: MIXED and empty if they are of several, both empty if they
            are not in the log.
        members: The number of its members.
        beyond: How many further observations only folds lead to, this one first.
        x, y: The top left corner, in pixels.
    """

    key: str
    kind: str
    agent: str
    members: int
    beyond: int
    x: int
    y: int


class CausesGraph(NamedTuple):
    """A graph of causes.

    Attributes:
        edges: The edges, as SVG paths.
        width, height: The size, in pixels.
        folded: How many observations are not drawn.
    """

    nodes: tuple[GraphNode, ...]
    folds: tuple[GraphFold, ...]
    edges: tuple[str, ...]
    width: int
    height: int
    folded: int


@dataclass(slots=True)
class _Fold:
    kind: str
    agent: str
    members: list[str]
    beyond: int = 0
    sources: list[str] = field(default_factory=list)


class _Waiting(NamedTuple):
    """A drawn node whose causes have no place yet.

    Attributes:
        depth: How many causes further the graph is drawn.
        pool: The name of the pool that its causes are counted in (see _Drawing).
    """

    effect: str
    causes: Sequence[str]
    depth: int
    pool: str


def opened_in(text: str) -> tuple[str, ...]:
    """Parse the opened folds of an address: their names, each as often as it was opened, with commas between.

    Raises:
        InputError: There are more than OPENED_MAX.
    """
    found = tuple(filter(None, text.split(",")))
    if len(found) > OPENED_MAX:
        raise InputError(f"open: at most {OPENED_MAX} folds, given {len(found)}")
    return found


def causes_graph(chain: Sequence[TraceLink], opened: Sequence[str] = ()) -> CausesGraph:
    """Lay out the chain of a value: the value on the left, its causes to the right.

    Args:
        chain: The chain, nearest first.
        opened: The names of the folds that are opened, each as often as it was opened.
    """
    drawing = _Drawing(chain, opened)
    drawing.draw()
    drawing.hide()
    places = list(dict.fromkeys([VALUE, *drawing.place.values()]))
    laid_out = _lay_out(places, drawing.edges())
    corner = laid_out.corner
    nodes = tuple(GraphNode(each, *corner[each]) for each in places if each not in drawing.folds)
    folds = tuple(
        GraphFold(key, each.kind, each.agent, len(each.members), each.beyond, *corner[key])
        for key, each in drawing.folds.items()
    )
    folded = sum(each.members + each.beyond for each in folds)
    return CausesGraph(nodes, folds, tuple(laid_out.lines), laid_out.width, laid_out.height, folded)


class _Drawing:
    """Decides where each observation of a chain is: in a node of its own, or in a fold.

    A pool is how many observations may be drawn: one for the whole graph, and one for each opened fold.

    Attributes:
        place: The node or fold that has an observation, by observation.
    """

    def __init__(self, chain: Sequence[TraceLink], opened: Sequence[str]) -> None:
        self._links = {each.observation_id: each for each in chain}
        self._roots = [each.observation_id for each in chain if each.depth == 0]
        self._opened = opened
        self._pools = {VALUE: NODES_DRAWN}
        self.place: dict[str, str] = {}
        self.folds: dict[str, _Fold] = {}

    def draw(self) -> None:
        """Walk the chain: steps 1 to 4."""
        waiting = deque([_Waiting(VALUE, self._roots, DEPTH_DRAWN, VALUE)])
        while waiting:
            waiting.extend(self._draw_causes(waiting.popleft()))

    def _draw_causes(self, given: _Waiting) -> Iterator[_Waiting]:
        is_drawn = given.depth and self._pools[given.pool]
        kinds = self._kinds(given.causes) if is_drawn else self._merge_kinds(given.causes)
        for number, ((kind, agent), every) in enumerate(kinds.items()):
            members = [each for each in every if each not in self.place]
            key = f"{given.effect[:ID_DIGITS] or 'value'}.{number if is_drawn else 'all'}"
            kept = min(KEPT, self._pools[given.pool]) if is_drawn else 0
            more = OPENED * self._opened.count(key)
            if kept + more and kept + more + 1 == len(members):  # a fold of one takes as much room as the one
                kept, more = (kept, more + 1) if more else (kept + 1, 0)
            self._pools[given.pool] = max(0, self._pools[given.pool] - len(members[:kept]))
            if more:
                self._pools.setdefault(key, OPENED)
            for each in members[:kept]:
                yield self._drawn(each, given.depth - 1, given.pool)
            for each in members[kept : kept + more]:
                yield self._drawn(each, DEPTH_DRAWN, key)
            if members[kept + more :]:
                self.folds[key] = _Fold(kind, agent, members[kept + more :])
                self.place |= dict.fromkeys(members[kept + more :], key)

    def _drawn(self, observation: str, depth: int, pool: str) -> _Waiting:
        self.place[observation] = observation
        return _Waiting(observation, self._causes(observation), depth, pool)

    def _causes(self, observation: str) -> list[str]:
        return [each for each in dict.fromkeys(self._links[observation].causes) if each in self._links]

    def _kinds(self, causes: Iterable[str]) -> Mapping[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for each in causes:
            observation = self._links[each].observation
            kind = ("", "") if observation is None else (type_of(observation.entity), observation.source.agent)
            found.setdefault(kind, []).append(each)
        return found

    def _merge_kinds(self, causes: Iterable[str]) -> Mapping[tuple[str, str], list[str]]:
        """Return causes as one kind, which is called MIXED if they are of several."""
        kinds = self._kinds([each for each in causes if each not in self.place])
        return kinds if len(kinds) < 2 else {(MIXED, ""): [each for some in kinds.values() for each in some]}

    def hide(self) -> None:
        """Put all that has no place yet into folds: step 5."""
        left = SOURCES_DRAWN
        for key, fold in self.folds.items():
            waiting = deque(fold.members)
            while waiting:
                for cause in self._causes(waiting.popleft()):
                    if cause in self.place:
                        continue
                    is_source = not self._links[cause].causes and self._links[cause].observation is not None
                    if is_source and left and len(fold.sources) < SOURCES_OF_A_FOLD:
                        left -= 1
                        self.place[cause] = cause
                        fold.sources.append(cause)
                        continue
                    self.place[cause] = key
                    fold.beyond += 1
                    waiting.append(cause)

    def edges(self) -> list[tuple[str, str]]:
        """Return from which node or fold a line goes to which. From a fold, lines go only to its sources."""
        found = dict.fromkeys((VALUE, self.place[each]) for each in self._roots)
        for name, place in self.place.items():
            if name == place:
                found |= dict.fromkeys((place, self.place[cause]) for cause in self._causes(name))
        return [*found, *((key, source) for key, fold in self.folds.items() for source in fold.sources)]


class _Layout(NamedTuple):
    """corner: by node or fold, its top left corner, pixels. lines: SVG paths. width, height: pixels."""

    corner: dict[str, tuple[int, int]]
    lines: list[str]
    width: int
    height: int


def _lay_out(places: Sequence[str], edges: Sequence[tuple[str, str]]) -> _Layout:
    number = {name: index for index, name in enumerate(places)}
    pitch = NODE_HEIGHT + ROW_GAP
    [(positions, _, _, found)] = fast_sugiyama.from_edges(
        [(number[a], number[b]) for a, b in edges], vertex_spacing=pitch, dummy_vertices=True, ranking_type="up"
    )
    lines = cast("list[tuple[int, int]]", found)
    # The library draws downwards; here a layer is a column. With "up", each node is as near to the value as it can be.
    top, first = max(y for _, (_, y) in positions), min(x for _, (x, _) in positions)
    at = {each: (round((top - y) / pitch) * (NODE_WIDTH + COLUMN_GAP), round(x - first)) for each, (x, y) in positions}
    after = {a: b for a, b in lines if a >= len(places)}  # a line that passes columns has a point in each
    paths = []
    for a, b in lines:
        if a >= len(places):
            continue
        passed = [a, b]
        while passed[-1] >= len(places):
            passed.append(after[passed[-1]])
        paths.append(_path([at[each] for each in passed]))
    right, bottom = max(x for x, _ in at.values()), max(y for _, y in at.values())
    return _Layout(
        {name: at[index] for name, index in number.items()}, sorted(paths), right + NODE_WIDTH, bottom + NODE_HEIGHT
    )


def _path(points: Sequence[tuple[int, int]]) -> str:
    """Return a line from the right side of the first box to the left side of the last, through the others."""
    (x, y), *others = [(x, y + NODE_HEIGHT // 2) for x, y in points]
    path = f"M{x + NODE_WIDTH} {y}"
    for index, (to_x, to_y) in enumerate(others):
        middle = to_x - COLUMN_GAP // 2
        path += f"C{middle} {y} {middle} {to_y} {to_x} {to_y}"
        if index < len(others) - 1:
            path += f"H{to_x + NODE_WIDTH}"
        y = to_y
    return path
