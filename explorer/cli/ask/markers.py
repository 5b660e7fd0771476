"""`refold mark` and `refold markers`: named points of the log."""

from __future__ import annotations

import click

from refold.explorer.cli.options import WHEN, as_json, at, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import marker_json, point_json
from refold.streams.cut import FOLD_VERSION, read_cut
from refold.streams.point import Point

COLUMNS = (
    TableColumn("marker", "cyan"),
    TableColumn("marked", "dim", is_fixed=True),
    TableColumn("records below"),
    TableColumn("short", is_fixed=True),
    TableColumn("cut", piped_only=True),
)


@click.command(epilog=WHEN)
@click.argument("name")
@at
@click.option("--replace", is_flag=True, help="Move the marker if it exists.")
@as_json
@on_log
def mark(target: LogTarget, name: str, at: str | None, replace: bool, as_json: bool) -> int:
    """Name a point in the log; use it later as @NAME. Marking changes no state and no root.

    \b
    Examples
      refold mark deploy-1
      refold mark before-the-incident --at 2026-11-21T03:12:00Z
    """
    screen = Screen()
    with target.write(make=False) as log:
        point = Point(log.mark(name, at, replace=replace))
        if as_json:
            screen.json({"name": name, **point_json(point)})
        else:
            screen.point(point, f"@{name} is")
    return 0


@click.command()
@as_json
@on_log
def markers(target: LogTarget, as_json: bool) -> int:
    """List the markers, oldest first.

    Markers that only another release of refold can answer for are listed too.

    \b
    Example
      refold markers --json
    """
    screen = Screen()
    with target.read() as log:
        found = [(each, Point(read_cut(each.cut))) for each in log.port.markers()]
        if as_json:
            screen.json([marker_json(each) for each in log.port.markers()])
            return 0
        rows = [
            [
                f"@{each.name}",
                moment(each.marked_at * 1000),
                str(point.cut.records),
                point.cut.short,
                str(point.cut),
            ]
            for each, point in found
        ]
        screen.table(COLUMNS, rows)
        if not found:
            screen.say("no markers yet; set one with `refold mark NAME`")
        others = [f"@{each.name}" for each, point in found if point.cut.fold_version != FOLD_VERSION]
        if others and screen.is_terminal:
            screen.say(f"of another fold version, for the release that set them: {', '.join(others)}")
    return 0
