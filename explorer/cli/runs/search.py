"""`refold run search`: full-text search over the turns of all runs."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import NO_TIME, Screen, counted, moment, printable
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.run_shapes import dollars
from refold.sinks.search.find import SearchHit

LISTED = 20
COLUMNS = (
    TableColumn("run", "cyan"),
    TableColumn("step", is_fixed=True),
    TableColumn("at", "dim", is_fixed=True),
    TableColumn("agent", drop=1),
    TableColumn("cost", "dim", is_fixed=True),
    TableColumn("error", "red"),
    TableColumn("text"),
)


@click.command("search")
@click.argument("text", nargs=-1)
@click.option("--tool", default="", help="Whose turn called a tool with this in its name.")
@click.option("--model", default="", help="Whose turn asked a model with this in its name.")
@click.option("--error", default="", help="Whose turn failed with an error with this in its class.")
@click.option("--agent", default="", help="Of this agent.")
@click.option("--since", metavar="TIME", help="Begun at this time or later, such as 2026-11-21T03:12:00Z.")
@click.option("--until", metavar="TIME", help="Begun then or before.")
@click.option("--min-cost", type=click.FloatRange(0), metavar="USD", help="Whose turn cost this much or more.")
@click.option("--max-cost", type=click.FloatRange(0), metavar="USD", help="Whose turn cost this much or less.")
@click.option("--limit", type=click.IntRange(1), default=LISTED, show_default=True, metavar="N", help="The newest N.")
@click.option("--sealed/--no-sealed", "has_sealed", default=None,
              help="Whether sealed content is in the index [as it was made; at first it is not].")  # fmt: skip
@click.option("--index", "path", type=click.Path(dir_okay=False, path_type=Path), metavar="PATH",
              help="The index's file [the log's own, in ~/.local/state/refold/search].")  # fmt: skip
@click.option("--update/--no-update", "updates", default=True, help="Bring the index up to the log's end first [this].")
@as_json
@on_log
def search_turns(
    target: LogTarget, text: tuple[str, ...], tool: str, model: str, error: str, agent: str, since: str | None,
    until: str | None, min_cost: float | None, max_cost: float | None, limit: int, has_sealed: bool | None,
    path: Path | None, updates: bool, as_json: bool,
) -> int:  # fmt: skip
    """Find turns of all runs by what they say, the newest first.

    A turn has to have every word of TEXT, in any case of letters; words in quotes have to follow one another. A turn is
    a step, or what a run was given and came to (step "-"), or an imported conversation. All that is asked for has to
    hold.

    It is found by an index, an SQLite file that is made and kept up by this command, or by `refold sink search
    --follow`. The index is of one cut, which is printed; removed, it is made again. Sealed content is in it only with
    --sealed, which is remembered: its words are then hashes that cannot be made without the run's key. What has expired
    is not found.

    \b
    Examples
      refold run search refund
      refold run search '"order 7"' --tool payments.refund
      refold run search --sealed timeout --model opus --min-cost 0.5
      refold run search --error Timeout --since 2026-11-21T00:00:00Z --json
    """
    from refold.explorer.queries.search import search_conditions, search_index, searched

    screen = Screen()
    wanted = search_conditions(
        since, until, text=" ".join(text), tool=tool, model=model, error=error, agent=agent, min_cost_usd=min_cost,
        max_cost_usd=max_cost,
    )  # fmt: skip
    with target.read() as log, search_index(log, path, has_sealed=has_sealed, updates=updates) as index:
        answer = searched(index, log, wanted, limit)
    if as_json:
        screen.json(answer.json())
    else:
        if answer.hits:
            screen.table(COLUMNS, [_cells(each) for each in answer.hits])
        else:
            screen.say("no turn is like that")
        screen.say(f"by the index at cut {answer.cut}", "dim")
    warn_of_sealed(answer.sealed_left_out)
    if answer.unread:
        _warn(f"{counted(len(answer.unread), 'turn')} could not be read, and may be like that")
    return 0


def warn_of_sealed(left_out: int) -> None:
    """Print a warning that some turns are not in the index, because their content is sealed."""
    if left_out:
        turns = counted(left_out, "turn")
        _warn(
            f"{turns} have sealed content, which is not in the index: `refold run search --sealed TEXT` puts it there, "
            "as hashes"
        )


def _cells(hit: SearchHit) -> list[str]:
    found = hit.found
    return [
        hit.run or found.owner,
        str(found.step) if found.step else "-",
        moment(found.at)[:19].replace("T", " ") if found.at else NO_TIME,
        hit.agent or "-",
        "-" if found.cost_usd is None else dollars(found.cost_usd),
        found.error.rpartition(".")[2] or "-",
        hit.snippet or "-",
    ]


def _warn(text: str) -> None:
    print(f"refold: {printable(text)}", file=sys.stderr)
