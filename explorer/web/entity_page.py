"""The page of an entity: its state at a moment, a slider over its moments, its history, and the sources of a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from refold.avro.envelope import check_entity
from refold.avro.errors import InputError, ValidationError
from refold.avro.times import time_text
from refold.explorer.queries.entity import HistoryQuery, StateQuery, WhyQuery
from refold.explorer.queries.operate import MarkersQuery, RebuildQuery
from refold.explorer.queries.query import Query
from refold.explorer.queries.tail import cut_before
from refold.explorer.views.moments import CLOCKS, READS_SEARCHED, moments_of, placed
from refold.explorer.web.charts import graph, lanes
from refold.explorer.web.rendering import entity_link
from refold.explorer.web.view import PageMoved, PageView
from refold.streams.cut import Cut
from refold.streams.entity_index import exists, facts

LISTED = 200
MORE_SEARCHED = 4


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
    records before it agents' reads are looked for.
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
    begin = cut_before(end, view.number("reads") or READS_SEARCHED)
    moments = placed(clock, moments_of(view.log, entity, clock, state["version"], rows, cut, end, begin),
                     MarkersQuery().answer(view.log))  # fmt: skip
    searched = end.records - begin.records
    unsearched = begin.records if clock == "read" else 0
    shown: list[tuple[str, Query]] = [("the state", state_query), ("the history", history_query)]
    field = view.get("field")
    chain: list[dict[str, Any]] = []
    if field:
        why = WhyQuery(f"{entity}.{field}", str(cut))
        chain = why.answer(view.log)
        shown.append((f"why {field}", why))
    sources = [*(each["source"] for each in state["fields"].values()), *(row["source"] for row in rows),
               *(each["source"] for each in chain if each["source"])]  # fmt: skip
    changed = {row["field"] for row in rows if row["version"] == state["version"]}
    return view.render(
        "entity.html", entity, cut, shown, entity=entity, state=state, rows=rows[::-1][:LISTED], total=len(rows),
        moments=moments, clocks=CLOCKS, lanes=lanes(rows), field=field, chain=chain,
        graph=graph(chain) if chain else None, changed=changed, version=state["version"], end=str(end),
        newest=max((row["version"] for row in rows), default=0),
        runs=_runs_among(view, sources, end), searched=searched, unsearched=unsearched,
        more=view.address(reads=searched * MORE_SEARCHED),
        observed_until=None if cut.observed_until is None else time_text(cut.observed_until),
    )  # fmt: skip


def _runs_among(view: PageView, sources: Iterable[Mapping[str, Any]], end: Cut) -> set[str]:
    """Return the runs that the sources name and that the log has. Other processes use run ids of their own."""
    named = {f"run/{each['run']}" for each in sources if each["run"]}
    known: set[str] = set()
    for name in named:
        with suppress(ValidationError):
            check_entity(name)
            known.add(name)
    return {name.removeprefix("run/") for name in view.log.states(sorted(known), end)}
