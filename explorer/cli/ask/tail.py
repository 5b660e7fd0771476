"""`refold tail`: changes as they are recorded."""

from __future__ import annotations

import click

from refold.avro.observation import type_of
from refold.avro.registry import TypeVersion
from refold.explorer.cli.ask.history import place_of
from refold.explorer.cli.options import WHEN, as_json, on_log
from refold.explorer.cli.output.formatting import Humane
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import change_json, change_rows
from refold.streams.changes import Change, Shown
from refold.streams.client import Log


@click.command(epilog=WHEN)
@click.option("--from", "from_", metavar="WHEN", help="Start after this point [the beginning; with --follow: now].")
@click.option("--follow", "--live", "-f", is_flag=True, help="Continue as changes happen, until interrupted.")
@as_json
@on_log
def tail(place: LogTarget, from_: str | None, follow: bool, as_json: bool) -> int:
    """Print changes as they happen.

    Each line is one mutation, or one change with --json. Changes of one entity are in order. Entities of different
    partitions are printed one partition after the other.

    \b
    Examples
      refold tail --from @deploy-1
      refold tail --follow --json
    """
    screen = Screen()
    with place.read() as log:
        shown = _Shown(log)
        for change in log.changes(from_ or ("now" if follow else None), live=follow):
            partition = log.port.partition_of(change.entity)
            if as_json:
                screen.json_line(change_json(change, shown.of(change), partition))
            else:
                _show(screen, change, shown, partition)
            if follow:
                screen.flush()
    return 0


class _Shown:
    """How the values of each change are shown: by the definition that the change was folded under."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._known: dict[bytes, Shown] = {}
        self.humane = Humane({})

    def of(self, change: Change) -> Shown:
        if change.definition not in self._known:
            self._known[change.definition] = Shown(self._version(change).definition, python=False)
        return self._known[change.definition]

    def _version(self, change: Change) -> TypeVersion:
        self.humane = Humane(self._log.types)
        versions = self._log.port.registry.versions(type_of(change.entity))
        return next((each for each in versions if each.definition.fingerprint == change.definition), versions[-1])


def _show(screen: Screen, change: Change, shown: _Shown, partition: int) -> None:
    if change.redefined:
        screen.say(f"{change.entity} v{change.to_version} has another state by a new definition of its type")
        return
    for row in change_rows(change, shown.of(change), partition):
        old, new = (shown.humane.element(row.entity, row.field, value) for value in (row.old, row.new))
        screen.say(
            f"{moment(row.recorded_at * 1000)} {row.entity} v{row.version} {place_of(row)}: "
            f"{screen.cell(old)} -> {screen.cell(new)} by {row.source.agent or '-'}"
        )
