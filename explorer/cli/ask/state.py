"""`refold state`: one entity at a point in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from refold.avro.definition import FieldDefinition
from refold.avro.observation import Source
from refold.explorer.cli.options import WHEN_OF_ENTITY, as_json, at, clock, entity, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import ObservedText, Screen, moment, observed_texts
from refold.explorer.queries.entity import opened_state_json
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.sealed import Opener
from refold.reducers.conflicts import Conflicts
from refold.streams.changes import MutationFormatter
from refold.streams.view import EntityView, Holder

COLLECTIONS = ("union", "append", "map")
BY = (TableColumn("by", "dim"), TableColumn("observation", "dim", is_fixed=True))
FIELDS = (
    TableColumn("field", "cyan"),
    TableColumn("value"),
    TableColumn("observed", "dim", is_fixed=True),
    TableColumn("recorded", "dim", piped_only=True),
    *BY,
)
LINKS = (TableColumn("relation", "cyan"), TableColumn("target"), TableColumn("valid", "dim"), BY[1])
CONFLICTS = (TableColumn("field", "yellow"), TableColumn("said"), *BY)


@click.command(epilog=WHEN_OF_ENTITY)
@entity
@at
@clock
@as_json
@on_log
def state(target: LogTarget, entity: str, at: str | None, clock: str, as_json: bool) -> int:
    """Show an entity as it was, and what put each value there.

    \b
    Examples
      refold state tool_config/acme
      refold state tool_config/acme --at 2026-11-21T03:12:00Z
      refold state agent_session/s-17 --at v46
      refold state run/8f2c --at run:8f2c#3 --json
    """
    screen = Screen()
    with target.read() as log:
        point = log.point(at, entity, clock)
        view = log.state(entity, point.cut)
        if as_json:
            screen.json(opened_state_json(log, point, view))
            return 0
        screen.point(point)
        observed = observed_texts(log, _sources(view), point.cut)
        _show(
            screen,
            view,
            observed,
            ValueFormatter({view.definition.definition.name: view.definition.definition}, Opener(log).value),
        )
    return 0


def _sources(view: EntityView) -> Iterator[Source]:
    """Yield the source of every observation that set one of an entity's values."""
    for name in view.shown():
        yield view.holder(name).source
        if view.definition.definition.by_first_name[name].reducer in COLLECTIONS:
            yield from (holder.source for _, _, holder in view.element_holders(name))


def _show(screen: Screen, view: EntityView, observed: ObservedText, formatter: ValueFormatter) -> None:
    screen.say(f"{view.entity} matches v{view.version}, state hash {screen.id(view.state_hash)}", "bold")
    screen.say()
    rows: list[list[str]] = []
    shown = MutationFormatter(view.definition.definition, python=False)
    for name, value in view.shown().items():
        field = view.definition.definition.by_first_name[name]
        if field.reducer in COLLECTIONS:
            for label, element, holder in _elements(view, shown, field):
                rows.append([label, formatter.element(view.entity, name, element), *_holder(screen, observed, holder)])
        else:
            rows.append(
                [name, formatter.field(view.entity, name, value), *_holder(screen, observed, view.holder(name))]
            )
    screen.table(FIELDS, rows)
    links = [[each["relation"], each["target"], _validity(each), screen.id(each["by"].hex())] for each in view.links]
    if links:
        screen.say()
        screen.table(LINKS, links)
    _show_conflicts(screen, view, shown, formatter, view.conflicts)


def _elements(view: EntityView, shown: MutationFormatter, field: FieldDefinition) -> list[tuple[str, Any, Holder]]:
    """Return each element of a collection as field.key, field[position] or field[]."""
    name = field.first_name
    found = []
    for position, (key, element, holder) in enumerate(view.element_holders(name)):
        label = {"map": f"{name}.{key}", "append": f"{name}[{position}]"}.get(field.reducer, f"{name}[]")
        found.append((label, shown.value(name, element), holder))
    return found


def _holder(screen: Screen, observed: ObservedText, holder: Holder) -> list[str]:
    return [
        observed(holder.observed_at, holder.source),
        moment(holder.recorded_at * 1000),
        holder.source.agent or "-",
        screen.id(holder.observation_id),
    ]


def _validity(link: dict[str, Any]) -> str:
    sides = [
        f"{side.removeprefix('valid_')} {moment(link[side])}"
        for side in ("valid_from", "valid_to")
        if link.get(side) is not None
    ]
    return " ".join(sides) or "-"


def _show_conflicts(
    screen: Screen, view: EntityView, shown: MutationFormatter, formatter: ValueFormatter, conflicts: Conflicts
) -> None:
    if not conflicts.total:
        return
    screen.say()
    screen.say(f"{conflicts.total} in conflict: agents whose last word differs from what won", "yellow")
    rows = [
        [
            each.field if each.key is None else f"{each.field}.{each.key}",
            formatter.element(view.entity, each.field, shown.value(each.field, each.value)),
            each.agent or "-",
            screen.id(each.observation.hex()),
        ]
        for each in conflicts.losers
    ]
    screen.table(CONFLICTS, rows)
