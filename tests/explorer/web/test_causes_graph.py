"""The graph of the causes of a value: thousands of observations stay readable, and each is drawn or counted once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import unescape
from itertools import pairwise
from pathlib import Path

import pytest

import refold
from refold.avro.errors import InputError
from refold.avro.observation import Observation, Source
from refold.explorer.web.causes_graph import (
    COLUMN_GAP,
    KEPT,
    NODE_HEIGHT,
    NODE_WIDTH,
    NODES_DRAWN,
    OPENED,
    OPENED_MAX,
    SOURCES_DRAWN,
    VALUE,
    CausesGraph,
    causes_graph,
    opened_in,
)
from refold.explorer.web.limits import PageLimits
from refold.streams.log.port import Position
from refold.streams.view import TraceLink
from refold_tests.explored import explored

pytestmark = pytest.mark.outside

BOXES_MAX = 3 * NODES_DRAWN + SOURCES_DRAWN
PAGE_BYTES = 200_000
"""At most for a page of 5,000 observations."""


def named(number: int) -> str:
    """Return the id of an observation."""
    return f"{number:08x}" * 8


def link(number: int, depth: int, causes: Sequence[int], kind: str = "order", agent: str = "") -> TraceLink:
    source = Source(agent or f"agent-{number % 2}")
    statement = Observation(f"{kind}/{number}", number, source=source)
    return TraceLink(named(number), depth, Position(0, number), number, list(map(named, causes)), statement)


def wide(count: int) -> list[TraceLink]:
    """A value with one observation that has `count` causes of one kind."""
    return [link(0, 0, range(1, count + 1)), *(link(number, 1, (), agent="a") for number in range(1, count + 1))]


def deep(count: int) -> list[TraceLink]:
    """A line of observations, each caused by the next."""
    return [link(number, number, () if number == count - 1 else [number + 1], agent="a") for number in range(count)]


def woven(count: int) -> list[TraceLink]:
    """Observations with up to three causes each, some shared, some far away."""
    found = [link(0, 0, [1, 2, 3])]
    for number in range(1, count):
        causes = {each for each in (2 * number, 2 * number + 1, number + 40, count - 1) if number < each < count}
        found.append(link(number, number.bit_length(), sorted(causes), f"kind_{number % 3}"))
    return found


def checked(chain: Sequence[TraceLink], opened: Sequence[str] = ()) -> CausesGraph:
    """Lay out a chain, and check what holds for every graph."""
    graph = causes_graph(chain, opened)
    assert causes_graph(chain, opened) == graph
    drawn = [each.observation for each in graph.nodes]
    assert drawn[0] == VALUE
    assert len(set(drawn)) == len(drawn)
    assert len(drawn) - 1 + graph.folded == len(chain)
    boxes = sorted([*((each.x, each.y) for each in graph.nodes), *((each.x, each.y) for each in graph.folds)])
    for (x, y), (other_x, other_y) in pairwise(boxes):
        assert other_x - x >= NODE_WIDTH + COLUMN_GAP or (x == other_x and other_y - y >= NODE_HEIGHT)
    assert max(x for x, _ in boxes) + NODE_WIDTH == graph.width
    assert max(y for _, y in boxes) + NODE_HEIGHT <= graph.height
    # Every box has a line from a box on its left, except the value.
    lines = [[float(each) for each in re.findall(r"-?\d+", path)] for path in graph.edges]
    ends = {(line[-2], line[-1] - NODE_HEIGHT // 2) for line in lines}
    begins = {(line[0] - NODE_WIDTH, line[1] - NODE_HEIGHT // 2) for line in lines}
    assert ends == set(boxes[1:])
    assert begins <= set(boxes)
    return graph


def test_small_graph_has_no_fold() -> None:
    graph = checked([link(0, 0, [1, 2]), link(1, 1, [3]), link(2, 1, [3]), link(3, 2, ())])
    assert (len(graph.nodes), graph.folds, len(graph.edges)) == (5, (), 5)


@pytest.mark.parametrize("make", [wide, deep, woven], ids=lambda make: make.__name__)
def test_graph_of_5000_observations_is_readable(make: object) -> None:
    chain = make(5_000)  # type: ignore[operator]
    graph = checked(chain)
    assert 0 < len(graph.nodes) + len(graph.folds) <= BOXES_MAX
    assert len(graph.nodes) - 1 <= NODES_DRAWN + SOURCES_DRAWN + 1


def test_kind_is_folded_and_opened_in_parts() -> None:
    chain = wide(312)
    graph = checked(chain)
    [fold] = graph.folds
    assert (fold.kind, fold.agent, fold.members, fold.beyond) == ("order", "a", 312 - KEPT, 0)
    assert len(graph.nodes) == 2 + KEPT
    opened = checked(chain, [fold.key])
    assert {each.observation for each in graph.nodes} < {each.observation for each in opened.nodes}
    assert [(each.key, each.members) for each in opened.folds] == [(fold.key, 312 - KEPT - OPENED)]
    assert checked(chain, [fold.key] * 13).folds == ()


def test_line_shows_its_source_after_the_fold_and_can_be_followed() -> None:
    chain = deep(5_000)
    graph = checked(chain)
    [fold] = graph.folds
    assert graph.nodes[-1].observation == named(4_999)
    assert (fold.members, fold.beyond) == (1, 5_000 - 2 - (len(graph.nodes) - 2))
    further = checked(chain, [fold.key])
    assert len(further.nodes) > len(graph.nodes) + 3
    assert further.folds[0].key != fold.key


def test_opening_one_fold_folds_nothing_that_was_drawn() -> None:
    chain = woven(800)
    graph = checked(chain)
    for fold in graph.folds[::8]:
        opened = {each.observation for each in checked(chain, [fold.key]).nodes}
        # A source that was drawn after the fold may now be within another fold.
        assert len({each.observation for each in graph.nodes} - opened) <= SOURCES_DRAWN


def test_addresses_name_at_most_some_folds() -> None:
    assert opened_in("a.0,b.1,,a.0") == ("a.0", "b.1", "a.0")
    with pytest.raises(InputError, match="at most"):
        opened_in("a.0," * (OPENED_MAX + 1))
    assert checked(wide(20), ["nothing.7"]).folds  # a name of no fold opens none


def test_page_of_5000_causes_folds_and_opens_by_its_address(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'log'}"
    with refold.open(url) as log:
        made: list[str] = []
        for number in range(4_999):
            causes = made[-1:] if number % 2 else made[-40::13]
            made.append(log.observe(f"document/d{number % 50}", {"kind": "x"}, source=f"a{number % 3}", causes=causes))
        log.observe("document/result", {"kind": "end"}, source="judge", causes=[*made[-300:], *made[:2]])
        log.flush()
    with explored(url) as pages:
        page = pages.get("/entity/document/result?field=kind")
        assert len(page.body) < PAGE_BYTES
        found = re.search(r"([\d,]+) observations, of which ([\d,]+) are folded", page.text)
        assert found is not None
        assert int(found[1].replace(",", "")) > 4_990
        drawn = page.body.count('class="node-name"')
        assert drawn <= BOXES_MAX
        fold = re.search(r'<a href="([^"]*)#why">\s*<rect class="node fold under"', page.body)
        assert fold is not None
        opened = pages.get(unescape(fold[1]))
        assert opened.body.count('class="node-name"') > drawn
        assert pages.get(opened.url).body == opened.body
        assert "fold again" in opened.text
    with explored(url, limits=PageLimits(observations_traced=100)) as pages:
        part = pages.get("/entity/document/result?field=kind")
        assert "Only the nearest 100 observations were traced." in part.text
        more = re.search(r'href="([^"]*)#why">Trace 4 times as many', part.body)
        assert more is not None
        assert "400 observations" in pages.get(unescape(more[1])).text
