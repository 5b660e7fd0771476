"""`refold history` and `refold diff`: what changed, when, and by whom."""

from __future__ import annotations

from collections.abc import Sequence

import click

from refold.explorer.cli.options import WHEN_OF_ENTITY, as_json, clock, entity, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import ObservedText, Screen, counted, moment, observed_texts
from refold.explorer.queries.entity import opened_rows_json
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.sealed import Opener
from refold.reducers.links import FIELD as LINKS
from refold.streams.changes import Row


@click.command(epilog=WHEN_OF_ENTITY)
@entity
@click.option("--since", metavar="WHEN", help="Only changes after this point.")
@click.option("--until", metavar="WHEN", help="Only changes up to this point [now].")
@clock
@as_json
@on_log
def history(target: LogTarget, entity: str, since: str | None, until: str | None, clock: str, as_json: bool) -> int:
    """List what changed in an entity: old, new, when, by whom.

    \b
    Examples
      refold history tool_config/acme
      refold history tool_config/acme --since @deploy-1
      refold history run/8f2c --since 2026-11-21T03:00:00Z --until 2026-11-21T04:00:00Z --clock observed
    """
    screen = Screen()
    with target.read() as log:
        last = log.point(until, entity, clock)
        first = None if since is None else log.point(since, entity, clock)
        rows = log.history(
            entity, since=None if first is None else first.cut, until=last.cut, clock=clock, python=False
        )
        if as_json:
            screen.json(opened_rows_json(log, rows, last.cut))
            return 0
        if first is not None:
            screen.point(first, "since")
        screen.point(last, "until")
        observed = observed_texts(log, (row.source for row in rows), last.cut)
        _show(screen, rows, ValueFormatter(log.types, Opener(log).value), observed, clock, whole_log=False)
        if not rows:
            screen.say(f"nothing changed in {entity} between these points")
    return 0


@click.command(epilog=WHEN_OF_ENTITY)
@click.argument("a", metavar="WHEN")
@click.argument("b", metavar="WHEN")
@click.argument("entity", metavar="[TYPE/ID]", required=False)
@clock
@as_json
@on_log
def diff(target: LogTarget, a: str, b: str, entity: str | None, clock: str, as_json: bool) -> int:
    """Show what changed between two points.

    Without an entity, it compares the whole log. Exits with 1 when something differs, and with 0 when nothing does, as
    diff(1) does.

    \b
    Examples
      refold diff @deploy-1 now
      refold diff v3 v7 tool_config/acme
      refold diff 2026-11-21T03:00:00Z 2026-11-21T03:12:00Z --json
    """
    screen = Screen()
    with target.read() as log:
        before, after = log.point(a, entity, clock), log.point(b, entity, clock)
        rows = log.diff(before.cut, after.cut, entity, python=False)
        if as_json:
            screen.json(opened_rows_json(log, rows, after.cut))
            return 1 if rows else 0
        screen.point(before, "from")
        screen.point(after, "to")
        observed = observed_texts(log, (row.source for row in rows), after.cut)
        _show(screen, rows, ValueFormatter(log.types, Opener(log).value), observed, clock, whole_log=entity is None)
        if rows:
            entities = len({row.entity for row in rows})
            screen.say(f"{counted(len(rows), 'difference')} in {counted(entities, 'entity', 'entities')}")
        else:
            screen.say("no difference")
    return 1 if rows else 0


def _show(
    screen: Screen,
    rows: Sequence[Row],
    formatter: ValueFormatter,
    observed: ObservedText,
    clock: str,
    *,
    whole_log: bool,
) -> None:
    screen.say()
    columns = [
        TableColumn("version", "dim", is_fixed=True),
        TableColumn("field", "cyan"),
        TableColumn("old", "red"),
        TableColumn("new", "green"),
        TableColumn("observed", "dim", is_fixed=True, piped_only=clock != "observed"),
        TableColumn("recorded", "dim", is_fixed=True, piped_only=clock != "recorded"),
        TableColumn("by"),
        TableColumn("position", "dim", piped_only=True),
        TableColumn("observation", "dim", is_fixed=True),
    ]
    table = [
        [
            f"v{row.version}",
            place_of(row),
            formatter.element(row.entity, row.field, row.old),
            formatter.element(row.entity, row.field, row.new),
            observed(row.observed_at, row.source),
            moment(row.recorded_at * 1000),
            row.source.agent or "-",
            f"{row.partition}={row.offset}",
            screen.id(row.by),
        ]
        for row in rows
    ]
    if whole_log:
        columns = [TableColumn("entity", "bold"), *columns]
        table = [[row.entity, *cells] for row, cells in zip(rows, table, strict=True)]
    screen.table(columns, table)
    if rows:
        screen.say()


def place_of(row: Row) -> str:
    """Return the name of the changed field, and the key in it."""
    if row.field == LINKS:
        return f"{row.field}: {row.key[0]} {row.key[1]}"
    if isinstance(row.key, str):
        return f"{row.field}.{row.key}"
    return f"{row.field}[]" if row.op in ("add", "remove") else row.field
