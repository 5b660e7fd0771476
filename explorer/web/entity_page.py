"""The page of an entity: its state at a moment, a slider over its moments, its history, and the sources of a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from refold.avro.envelope import check_entity
from refold.avro.errors import InputError, ValidationError
from refold.avro.times import time_text
from refold.explorer.queries.entity import RECORDED, HistoryQuery, StateQuery, WhyQuery, field_of, opened_chain_json
from refold.explorer.queries.operate import MarkersQuery, RebuildQuery
from refold.explorer.queries.query import Query
from refold.explorer.queries.tail import cut_before
from refold.explorer.views.moments import CLOCKS, moments_of, placed
from refold.explorer.views.related import EVALUATION, evaluation
from refold.explorer.web.addresses import entity_link
from refold.explorer.web.causes_graph import OPENED, OPENED_MAX, CausesGraph, causes_graph, opened_in
from refold.explorer.web.charts import lanes
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.cut import Cut
from refold.streams.entity_index import exists, facts
from refold.streams.view import trace

LISTED = 200
MORE_SEARCHED = 4


class CausesShown(NamedTuple):
    """The chain of a value.

    Attributes:
        links: The drawn observations as `refold why` has them, by id, the nearest first.
        traced: How many observations were traced.
        is_whole: Whether these are all of the chain.
        can_open: Whether the address may name another fold to be opened.
    """

    graph: CausesGraph
    links: dict[str, dict[str, Any]]
    traced: int
    is_whole: bool
    can_open: bool


def entities_page(view: PageView) -> bytes:
    """Return the list of types, and the entities of one type."""
    entity = view.get("entity").strip()
    cut = view.cut()
    if entity:
        if "/" not in entity:
            raise InputError(f"{entity:.80}: name an entity as TYPE/ID")
        raise PageMoved(entity_link(entity, at=str(cut)))
    types = sorted({version.definition.name: version.definition for version in view.log.port.registry}.items())
    chosen = view.get("type")
    found: list[str] = []
    shown: list[tuple[str, Query]] = []
    total = 0
    if chosen:
        begin = f"{chosen}/{view.get('begin')}"
        names = sorted(name for name in facts(view.log, chosen, exists, cut) if name.startswith(begin))
        total = len(names)
        found = names[: view.number("limit") or LISTED]
        shown.append((f"how many of type {chosen}", RebuildQuery(str(cut), (chosen,))))
    return view.render(
        "entities.html", "Entities", cut, shown, types=types, chosen=chosen, begin=view.get("begin"), found=found,
        total=total, more=view.address(limit=total),
    )  # fmt: skip


def entity_page(view: PageView) -> bytes:
    """Return one entity at a moment. In the address, `to` is the cut at which the slider ends, and `reads` in how many
    records before it agents' reads are looked for. `field` is the value whose causes are drawn, `open` are the folds of
    that graph that are opened, and `traced` is how many observations are traced at most.
    """
    if len(view.path) < 2:
        raise InputError(f"{'/'.join(view.path):.80}: name an entity as TYPE/ID")
    entity = view.path[0] + "/" + "/".join(view.path[1:])
    clock = view.get("clock") or CLOCKS[0]
    if clock == "observed":  # a stop of the slider gives a time of this clock, which is resolved to a cut here
        at = view.log.point(view.get("at") or None, entity, clock).cut
        raise PageMoved(view.address(at=str(at), clock="true"))
    if clock not in CLOCKS:
        raise InputError(f"clock: one of {', '.join(CLOCKS)}, given {clock!r:.40}")
    end = view.cut(name="to")
    cut = view.cut(entity)
    state_query, history_query = StateQuery(entity, str(cut)), HistoryQuery(entity, until=str(end))
    state = state_query.answer(view.log)
    rows = history_query.answer(view.log)
    begin = cut_before(end, view.number("reads") or view.limits.records_searched, view.limits.partition_records_min)
    moments = placed(clock, moments_of(view.log, entity, clock, state["version"], rows, cut, end, begin),
                     MarkersQuery().answer(view.log))  # fmt: skip
    searched = end.records - begin.records
    unsearched = begin.records if clock == "read" else 0
    shown: list[tuple[str, Query]] = [("the state", state_query), ("the history", history_query)]
    field = view.get("field")
    causes = None
    if field:
        causes = _causes(view, f"{entity}.{field}", cut)
        shown.append((f"why {field}", WhyQuery(f"{entity}.{field}", str(cut))))
    listed = rows[::-1][:LISTED]
    sources = [*(each["source"] for each in state["fields"].values()), *(row["source"] for row in listed),
               *(each["source"] for each in (causes.links.values() if causes else ()) if each["source"])]  # fmt: skip
    changed = {row["field"] for row in rows if row["version"] == state["version"]}
    return view.render(
        "entity.html", entity, cut, shown, entity=entity, state=state, rows=listed, total=len(rows),
        moments=moments, clocks=CLOCKS, lanes=lanes(rows), field=field, causes=causes, opened=view.get("open"),
        opened_max=OPENED, more_traced=None if causes is None else view.address(traced=causes.traced * MORE_SEARCHED),
        changed=changed, version=state["version"], end=str(end),
        newest=max((row["version"] for row in rows), default=0),
        runs=_runs_among(view, sources, end), searched=searched, unsearched=unsearched,
        more=view.address(reads=searched * MORE_SEARCHED),
        result=evaluation(view.log.state(entity, cut)).text if entity.startswith(f"{EVALUATION}/") else "",
        observed_until=None if cut.observed_until is None else time_text(cut.observed_until),
    )  # fmt: skip


def _causes(view: PageView, value: str, cut: Cut) -> CausesShown:
    """Return the chain of a value, TYPE/ID.FIELD[.KEY], with the folds opened that the address names."""
    limit = view.number("traced") or view.limits.observations_traced
    _, entity, path = field_of(view.log, value, str(cut), RECORDED)
    chain = trace(view.log.port, cut, entity.observations_of(path.field, path.key), limit)
    opened = opened_in(view.get("open"))
    graph = causes_graph(chain, opened)
    drawn = {each.observation for each in graph.nodes}
    links = opened_chain_json(view.log, [each for each in chain if each.observation_id in drawn], cut)
    known = {each.observation_id for each in chain}
    is_whole = len(chain) < limit or all(cause in known for each in chain for cause in each.causes)
    by_id = {each["observation"]: each for each in links}
    return CausesShown(graph, by_id, len(chain), is_whole, len(opened) < OPENED_MAX)


def _runs_among(view: PageView, sources: Iterable[Mapping[str, Any]], end: Cut) -> set[str]:
    """Return the runs that the sources name and that the log has. Other processes use run ids of their own."""
    named = {f"run/{each['run']}" for each in sources if each["run"]}
    known: set[str] = set()
    for name in named:
        with suppress(ValidationError):
            check_entity(name)
            known.add(name)
    return {name.removeprefix("run/") for name in view.log.states(sorted(known), end)}
