"""`refold rebuild` and `refold verify`: the whole log, folded again."""

from __future__ import annotations

import re

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, Place, as_json, at, clock, on_log
from refold.explorer.cli.progress import counting
from refold.explorer.cli.screen import Column, Screen, counted
from refold.explorer.cli.shapes import rebuild_json, verdict_json

ROOT = re.compile(r"[0-9a-f]{64}\Z")


@click.command(epilog=WHEN)
@at
@clock
@click.option("--full", is_flag=True, help="Replay from the beginning; in this release every rebuild does.")
@click.option("--expect-root", metavar="HEX", help="Exit with 1 unless the root is this one.")
@as_json
@on_log
def rebuild(place: Place, at: str | None, clock: str, full: bool, expect_root: str | None, as_json: bool) -> int:
    """Rebuild every entity as it was; print the root over all.

    Two logs with the same observations have the same root, whatever their order, repeats and partitions.

    \b
    Examples
      refold rebuild
      refold rebuild --at 2026-11-21T03:12:00Z --json
      refold rebuild --log file:copy --expect-root 5f0c...
    """
    expected = None if expect_root is None else expect_root.strip().lower()
    if expected is not None and not ROOT.match(expected):
        raise InputError(f"--expect-root {expect_root!r:.80}: a root has 64 hexadecimal digits")
    screen = Screen()
    with place.read() as log:
        point = log.point(at, None, clock)
        with counting("Replaying", point.cut.records, "records") as progress:
            view = log.rebuild(point.cut, progress=progress)
        differs = expected is not None and view.root != expected
        if as_json:
            screen.json(rebuild_json(point, view))
            return int(differs)
        screen.point(point)
        screen.say(f"observations {view.observations:,}")
        screen.say(f"entities     {len(view):,}")
        screen.say(f"root         {view.root}", "bold")
        if expected is not None:
            screen.say(
                f"expected     {expected}: {'another' if differs else 'the same'}",
                "red" if differs else "green",
            )
        source = view.source
        reopened = f"{source['reopened']:,} entities folded from nothing, {source['scanned']:,} records read again"
        screen.say(f"by full replay of {source['replayed']:,} records; {reopened}")
    return int(differs)


@click.command()
@as_json
@on_log
def verify(place: Place, as_json: bool) -> int:
    """Fold the whole log again and compare with what is stored.

    Every table, index, change and content is compared. Exits with 1 when something is not as it should
    be, and names it.

    \b
    Example
      refold verify --log file:.refold
    """
    screen = Screen()
    with place.read() as log:
        point = log.point()
        with counting("Verifying", point.cut.records, "records") as progress:
            verdict = log.verify(progress)
        if as_json:
            screen.json(verdict_json(point, verdict))
            return 0 if verdict.ok else 1
        screen.point(point)
        screen.say(f"observations {verdict.observations:,}")
        screen.say(f"entities     {verdict.entities:,}")
        screen.say(f"root         {verdict.root or '-'}", "bold")
        screen.say(
            "everything stored is what the log folds to"
            if verdict.ok
            else counted(len(verdict.mismatches), "mismatch", "mismatches"),
            "green" if verdict.ok else "red",
        )
        rows = [[each.place, each.entity or "-", each.field or "-", each.problem] for each in verdict.mismatches]
        screen.table([Column(header) for header in ("place", "entity", "field", "problem")], rows)
    return 0 if verdict.ok else 1
