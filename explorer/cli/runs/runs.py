"""`refold runs`: list and search the recorded runs."""

from __future__ import annotations

import sys
from itertools import islice
from typing import Any

import click

from refold.agents.log import AgentLog
from refold.agents.recordings.find import OUTCOMES, RunList, RunRow
from refold.avro.errors import InputError
from refold.avro.times import parse_time
from refold.explorer.cli.options import WHEN, as_json, at, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import NO_TIME, Screen, counted, moment, printable
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.open_runs import UnendedRun
from refold.explorer.queries.run_shapes import row_json, usage_cost
from refold.explorer.queries.runs import RunsQuery, as_tree

LISTED = 50
OPEN_NAMED = 5
COLUMNS = (
    TableColumn("run", "cyan"),
    TableColumn("agent"),
    TableColumn("version", "dim", drop=1),
    TableColumn("started", "dim", is_fixed=True),
    TableColumn("took", "dim", is_fixed=True),
    TableColumn("outcome"),
    TableColumn("steps", is_fixed=True),
    TableColumn("parent", "dim", drop=2),
    TableColumn("title"),
)
USAGE_COLUMNS = (TableColumn("read", is_fixed=True), TableColumn("written", is_fixed=True),
                 TableColumn("cost", is_fixed=True))  # fmt: skip


def _time(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        parse_time(value, option.opts[0])  # raises an error that names the option
    return value


@click.command(epilog=WHEN)
@click.option(
    "--since", callback=_time, metavar="TIME", help="Begun at this time or later, such as 2026-11-21T03:12:00Z."
)
@click.option("--until", callback=_time, metavar="TIME", help="Begun at this time or earlier.")
@click.option("--text", default="", help="With this text in input, output, messages, calls or results.")
@click.option("--tool", default="", help="That called this tool.")
@click.option("--error", default="", help="That failed or retried, with this in an error's class or message.")
@click.option("--outcome", type=click.Choice(OUTCOMES), help="With this outcome, or not ended yet.")
@click.option("--agent", default="", help="Of this agent.")
@click.option("--user", default="", help="For this user, by the recorded pseudonym.")
@click.option("--tag", default="", help="With this tag.")
@click.option("--parent", default="", metavar="RUN", help="That are forks of this run.")
@click.option("--flagged", is_flag=True, help="That somebody flagged.")
@click.option("--model", default="", help="That asked a model with this in its name.")
@click.option("--indexed", is_flag=True, help="Find --text by the search index, in all runs: by whole words.")
@click.option("--further", is_flag=True, help="Also list captures and transcripts of runs that are listed.")
@click.option("--usage", is_flag=True, help="Show the tokens of model calls, and what they cost.")
@click.option(
    "--limit", type=click.IntRange(1), metavar="N", help=f"At most the newest N [as text {LISTED}, as JSON all]."
)
@click.option(
    "--search-steps",
    type=click.IntRange(0),
    metavar="N",
    help="Read at most N steps for --text, --tool, --error and --model: those of the newest short runs [all].",
)
@at
@as_json
@on_log
def runs(
    target: LogTarget, since: str | None, until: str | None, text: str, tool: str, error: str, outcome: str | None,
    agent: str, user: str, tag: str, parent: str, flagged: bool, model: str, indexed: bool, further: bool, usage: bool,
    limit: int | None, search_steps: int | None, at: str | None, as_json: bool,
) -> int:  # fmt: skip
    """List the runs of agents, the newest first.

    A nested run is listed after the run that started it, indented, in the order of start. A run must match every
    option. Text and errors are searched without regard to case, and only in content that has not expired. With
    --indexed a text is found by the index of `refold run search`, in all runs and by whole words. The cost is from a
    table of prices that REFOLD_PRICES may name; + means that the table lacks some models. A run whose content or key is
    damaged is named at the end, and the exit status is 1. Of a run that has not ended, the last lines say since when
    nothing was recorded of it, and whether its process runs, as far as a supervisor recorded that.

    A session that was recorded several times, by its code, by a proxy and from a transcript, is listed once, as the
    fullest of these; --further lists the others too.

    \b
    Examples
      refold runs
      refold runs --outcome failed --since 2026-11-21T00:00:00Z
      refold runs --tool payments.refund --error timeout
      refold runs --text "order 7" --json
      refold runs --text "order 7" --indexed
      refold runs --usage --model opus
    """
    screen = Screen()
    wanted: dict[str, Any] = {
        "since": since, "until": until, "text": text, "tool": tool, "error": error, "outcome": outcome or "",
        "agent": agent, "user": user, "tag": tag, "parent": parent, "flagged": flagged,
        "model": model,
    }  # fmt: skip
    most = LISTED if limit is None and not as_json else limit
    with target.read() as log:
        if indexed:
            query = RunsQuery(**{**wanted, "text": ""}, usage=usage, further=further, at=at)
            found = _find_by_index(log, query, text, most)
        else:
            query = RunsQuery(**wanted, usage=usage, further=further, limit=most, search_steps=search_steps, at=at)
            found = query.find(log)
        known = query.open_runs(log, found)
    if as_json:
        screen.json([row_json(row, known.get(row.run)) for row in found.rows])
    else:
        rows = as_tree(found.rows)
        if usage:
            cells = [[*given[:-1], *_usage_cells(row), given[-1]] for row, depth in rows
                     for given in [_cells(row, depth, known.get(row.run))]]  # fmt: skip
            screen.table((*COLUMNS[:-1], *USAGE_COLUMNS, COLUMNS[-1]), cells)
        else:
            screen.table(COLUMNS, [_cells(row, depth, known.get(row.run)) for row, depth in rows])
        if not found.rows:
            is_filtered = any(wanted.values())
            screen.say("no run matches" if is_filtered else "no run is recorded in this log yet; see `refold demo`")
        if found.older:
            is_searched = bool(text or tool or error or model)
            if is_searched and search_steps is not None and (most is None or len(found) < most):
                screen.say(f"{counted(found.older, 'run')} not searched, because --search-steps is {search_steps}")
            else:
                screen.say(_older(len(found), found.older, is_searched=is_searched))
        for run, each in islice(known.items(), OPEN_NAMED):
            screen.say(f"{run}: {each.text}")
        if len(known) > OPEN_NAMED:
            screen.say(f"{counted(len(known) - OPEN_NAMED, 'further run')} not ended: --outcome running lists them")
    _warn_unread(found)
    return 1 if found.damaged else 0


def _cells(row: RunRow, depth: int, known: UnendedRun | None) -> list[str]:
    return [
        f"{'  ' * depth}{row.run}",
        row.agent or "-",
        row.version or "-",
        NO_TIME if row.synthetic_time and row.started_at is None else moment(row.started_at)[:19].replace("T", " "),
        took(row.started_at, row.ended_at),
        (row.outcome if known is None else known.outcome) + (", flagged" if row.flagged else ""),
        str(row.steps),
        row.parent or "-",
        "[unreadable]" if row.title is None else row.title or "-",
    ]


def _find_by_index(log: AgentLog, query: RunsQuery, text: str, most: int | None) -> RunList:
    """Return the runs in which the search index finds the words of a text.

    Raises:
        InputError: The text is empty.
    """
    from refold.explorer.cli.runs.search import warn_of_sealed
    from refold.explorer.queries.search import runs_with, sealed_left_out, search_index

    if not text:
        raise InputError("--indexed is for --text: say what to search for")
    with search_index(log, None, has_sealed=None, updates=True) as index:
        runs = runs_with(index, log, text)
        left_out = sealed_left_out(index, text)
    warn_of_sealed(left_out)
    found = query.find(log)
    rows = [row for row in found.rows if row.run in runs]
    found.rows = rows[:most]
    found.older = len(rows) - len(found.rows)
    return found


def _usage_cells(row: RunRow) -> list[str]:
    """Return the tokens read, the tokens written, and the cost. A + means that some models have no known price."""
    usage = row.usage
    if usage is None:
        return ["-", "-", "-"]
    return [f"{usage.tokens.read:,}", f"{usage.tokens.output:,}", usage_cost(usage)]


def took(started_at: int | None, ended_at: int | None) -> str:
    """Return the duration in a readable unit; "-" for a run that has not ended."""
    if not started_at or not ended_at:
        return "-"
    seconds = (ended_at - started_at) / 1_000_000
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _older(shown: int, older: int, *, is_searched: bool) -> str:
    """Return what the limit left out, and how to see it."""
    how = f"--limit {shown + older} shows them, --json all of them"
    if is_searched:
        return f"the newest {shown}; {counted(older, 'older run')} not searched: {how}"
    return f"the newest {shown}; {counted(older, 'older run')} not shown: {how}"


def _warn_unread(found: RunList) -> None:
    for run, why in found.damaged.items():
        print(f"refold: {printable(f'run {run}: {why}')}", file=sys.stderr)
    if found.unread:
        some = ", ".join(found.unread[:3]) + (", ..." if len(found.unread) > 3 else "")
        many = counted(len(found.unread), "run")
        text = f"{many} could not be searched, because the content has expired or is sealed: {some}"
        print(f"refold: {printable(text)}", file=sys.stderr)
