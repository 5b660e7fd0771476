"""`refold doctor`: is this log fit to be used here, and if not, what to do."""

from __future__ import annotations

import click

from refold.explorer.cli.health import examine
from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.screen import Column, Screen


@click.command()
@as_json
@on_log
def doctor(place: Place, as_json: bool) -> int:
    """Examine a log and its surroundings.

    Format, owner, room on the disk, clock, types, libraries. It reads only; `refold verify` is what
    checks the recorded data. Exits with 1 when there is a problem, and says what to do about it.

    \b
    Example
      refold doctor --log file:.refold
    """
    screen = Screen()
    findings = examine(place)
    problems = sum(not each.ok for each in findings)
    if as_json:
        screen.json({"ok": not problems, "findings": [each._asdict() for each in findings]})
        return 1 if problems else 0
    rows = [["ok" if each.ok else "PROBLEM", each.subject, each.finding] for each in findings]
    screen.table((Column("", is_fixed=True), Column("examined", "cyan"), Column("found")), rows)
    for each in findings:
        if not each.ok:
            screen.say()
            screen.say(f"{each.subject}: {each.remedy}", "yellow")
    return 1 if problems else 0
