"""`refold tail`: changes as they are recorded."""

from __future__ import annotations

import click

from refold.explorer.cli.ask.history import place_of
from refold.explorer.cli.options import WHEN, as_json, on_log
from refold.explorer.cli.output.formatting import ValueFormatter
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import change_json, change_rows
from refold.explorer.queries.tail import ShownChanges
from refold.streams.changes import Change, MutationFormatter


@click.command(epilog=WHEN)
@click.option("--from", "from_", metavar="WHEN", help="Start after this point [the beginning; with --follow: now].")
@click.option("--follow", "--live", "-f", is_flag=True, help="Continue as changes happen, until interrupted.")
@as_json
@on_log
def tail(target: LogTarget, from_: str | None, follow: bool, as_json: bool) -> int:
    """Print changes as they happen.

    Each line is one mutation, or one change with --json. Changes of one entity are in order. Entities of different
    partitions are printed one partition after the other.

    \b
    Examples
      refold tail --from @deploy-1
      refold tail --follow --json
    """
    screen = Screen()
    with target.read() as log:
        formatter = ValueFormatter({})

        def refresh() -> None:
            nonlocal formatter
            formatter = ValueFormatter(log.types)

        shown = ShownChanges(log, refresh)
        for change in log.changes(from_ or ("now" if follow else None), live=follow):
            partition = log.port.partition_of(change.entity)
            if as_json:
                screen.json_line(change_json(change, shown.of(change), partition))
            else:
                _show(screen, change, shown.of(change), partition, formatter)
            if follow:
                screen.flush()
    return 0


def _show(screen: Screen, change: Change, shown: MutationFormatter, partition: int, formatter: ValueFormatter) -> None:
    if change.redefined:
        screen.say(f"{change.entity} v{change.to_version} has another state by a new definition of its type")
        return
    for row in change_rows(change, shown, partition):
        old, new = (formatter.element(row.entity, row.field, value) for value in (row.old, row.new))
        screen.say(
            f"{moment(row.recorded_at * 1000)} {row.entity} v{row.version} {place_of(row)}: "
            f"{screen.cell(old)} -> {screen.cell(new)} by {row.source.agent or '-'}"
        )
