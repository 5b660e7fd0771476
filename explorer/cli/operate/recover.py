"""`refold recover`: rebuild damaged tables."""

from __future__ import annotations

import click

from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.queries.log_target import LogTarget


@click.command()
@as_json
@on_log
def recover(target: LogTarget, as_json: bool) -> int:
    """Delete the entity tables and rebuild them.

    Use it for tables that `refold verify` finds damaged. They are rebuilt from the nearest snapshots and the records
    after them. Recorded observations are not touched.

    \b
    Example
      refold verify || refold recover
    """
    screen = Screen()
    with target.write(make=False) as log:
        point = log.point()
        source = log.recover()
        entities = sum(1 for _ in log.port.stored_entities())
        if as_json:
            screen.json({"entities": entities, "source": source})
            return 0
        screen.point(point)
        screen.say(f"entities     {entities:,}")
        begun = counted(len(source["snapshot_epochs"]), "snapshot")
        screen.say(f"rebuilt      from {begun} and {source['replayed']:,} records")
        for problem in source["fallbacks"]:
            screen.say(problem, "yellow")
    return 0
