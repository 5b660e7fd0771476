"""`refold verify`: compare what is stored with a full replay of the log."""

from __future__ import annotations

import click

from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.progress import reading
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.doctor.findings import foreign_text, passed_over_text, set_aside_text
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import verdict_json
from refold.streams.point import Point
from refold.streams.runtime import tune_garbage_collector


@click.command()
@as_json
@on_log
def verify(target: LogTarget, as_json: bool) -> int:
    """Replay the whole log and compare with what is stored.

    Every table, index, change, snapshot and content is compared. Exits with 1 when something differs, and names it. For
    a log on Kafka the workers compare their own tables; the output names what could not be compared. Records that
    refold did not write, and damaged records that are set aside, are counted, and are no mismatch: every reader skips
    them. A large embedded log is verified by several processes. Progress is a bar on a terminal; else a line on
    standard error every 5 seconds, and none with --json.

    \b
    Example
      refold verify --log file:.refold
    """
    screen = Screen()
    with target.read() as log:
        with reading("Verifying", "records", lines=not as_json) as progress, tune_garbage_collector():
            verdict = log.verify(progress)
        point = Point(verdict.cut)
        if as_json:
            screen.json(verdict_json(point, verdict))
            return 0 if verdict.ok else 1
        screen.point(point)
        screen.say(f"observations {verdict.observations:,}")
        screen.say(f"entities     {verdict.entities:,}")
        screen.say(f"root         {verdict.root or '-'}", "bold")
        looked_at = "everything that was compared" if verdict.unchecked else "everything stored"
        screen.say(
            f"OK: {looked_at} matches a full replay of the log"
            if verdict.ok
            else counted(len(verdict.mismatches), "mismatch", "mismatches"),
            "green" if verdict.ok else "red",
        )
        for each in verdict.unchecked:
            screen.say(each, "yellow")
        for foreign in verdict.foreign:
            screen.say(foreign_text(foreign), "yellow")
        for aside in verdict.set_aside:
            screen.say(set_aside_text(aside), "yellow")
        for passed in verdict.passed_over:
            screen.say(passed_over_text(passed), "yellow")
        rows = [[each.place, each.entity or "-", each.field or "-", each.problem] for each in verdict.mismatches]
        screen.table([TableColumn(header) for header in ("place", "entity", "field", "problem")], rows)
    return 0 if verdict.ok else 1
