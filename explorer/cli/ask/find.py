"""`refold find`: the entities that contain a text."""

from __future__ import annotations

import click

from refold.explorer.cli.options import WHEN, as_json, at, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted
from refold.explorer.queries.find import FindQuery
from refold.explorer.queries.log_target import LogTarget

COLUMNS = (TableColumn("entity", "bold"), TableColumn("version", is_fixed=True), TableColumn("found in"))


@click.command(epilog=WHEN)
@click.argument("text", required=False, default="")
@click.option("--type", "type_name", default="", metavar="TYPE", help="Only entities of this type.")
@at
@as_json
@on_log
def find(target: LogTarget, text: str, type_name: str, at: str | None, as_json: bool) -> int:
    """Find the entities whose id or values hold a text.

    The search for TEXT ignores case. Without TEXT every entity is listed. Runs and their steps, calls and effects are
    left out, unless --type names their type: use `refold runs --text` to find runs by their content. The command reads
    every entity that it searches.

    \b
    Examples
      refold find acme
      refold find "rate limit" --type runbook --at @deploy-1
    """
    screen = Screen()
    with target.read() as log:
        found = FindQuery(text, type_name, at).answer(log)
    if as_json:
        screen.json(found)
        return 0
    screen.table(COLUMNS, [[each["entity"], f"v{each['version']}", _places(each)] for each in found])
    screen.say(counted(len(found), "entity", "entities"))
    return 0


def _places(found: dict[str, list[str]]) -> str:
    unread = [f"{each} cannot be read" for each in found.get("unread", ())]
    return ", ".join([*found["found_in"], *unread]) or "-"
