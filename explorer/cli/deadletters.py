"""`refold deadletters`: the records that are no observations, and why."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator

import click

from refold.explorer.cli.choosing import Chosen, at_positions, chosen_by, positions_of
from refold.explorer.cli.letter import letter_json, show_letter, whole_json
from refold.explorer.cli.options import WHEN, InOrder, Place, as_json, merged, on_log, place_options
from refold.explorer.cli.retrying import never_retried, retry, told_of
from refold.explorer.cli.screen import Column, Screen, counted, moment
from refold.streams.deadletters import Letter
from refold.streams.open import is_kafka

COLUMNS = (
    Column("position", "cyan", is_fixed=True),
    Column("appended", "dim", is_fixed=True),
    Column("type"),
    Column("entity"),
    Column("reason", is_fixed=True),
    Column("detail"),
)
LISTED = 100


@click.group(cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def deadletters(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Look at records that are no observations, and retry them.

    Anybody may write to a log's topic on Kafka. A record there that is no observation gets a verdict from a worker, its
    dead letter: its bytes, its place, and why. Every fold passes over it, for good. What can be mended is retried: the
    record is appended again, and decided again.

    \b
    Reasons
      misplaced       its key is not its observation's entity, or its partition not that key's
      misidentified   its header refold-id is not its observation's id
      undecodable     its bytes are no observation
      no_such_id      its bytes name a schema that this log does not hold
      foreign_schema  the Schema Registry has that schema for something else
      held            its type or version names custom code that the worker was not given

    An embedded log refuses what is no observation as it is written, and has no dead letters; the archive of a log on
    Kafka has those of that log.

    \b
    Examples
      refold deadletters list --log kafka://127.0.0.1:9092/agents
      refold deadletters show 3=1041
      refold deadletters retry --reason no_such_id --apply
    """
    context.obj = merged(context.find_object(Place) or Place(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@deadletters.command("list", epilog=WHEN)
@chosen_by
@click.option("--waiting", is_flag=True,
              help="Only those that were never retried; reads what was recorded since, to know.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0), default=LISTED, show_default=True, metavar="N",
              help="Show the newest so many; 0: all. All are counted.")  # fmt: skip
@as_json
@on_log
def list_(
    place: Place, reasons: tuple[str, ...], type_name: str | None, since: str | None, until: str | None, waiting: bool,
    limit: int, as_json: bool,
) -> int:  # fmt: skip
    """List dead letters: where, when, of what, and why.

    \b
    Examples
      refold deadletters list
      refold deadletters list --reason misplaced --since @deploy-1
      refold deadletters list --waiting --json
    """
    screen = Screen()
    chosen = Chosen(reasons, type_name, since, until)
    with place.read() as log:
        found: Iterable[Letter] = chosen.among(log)
        if waiting:
            found = never_retried(log, found)
        counts: Counter[str] = Counter()
        shown = _newest(_counted(found, counts), limit)
        if as_json:
            listed = [letter_json(each) for each in shown]
            screen.json({"count": counts.total(), "reasons": dict(counts.most_common()), "deadletters": listed})
            return 0
        rows = [[str(each.position), moment(each.verdict.timestamp * 1000), each.type_name or "-", each.entity or "-",
                 each.verdict.reason, each.verdict.detail] for each in shown]  # fmt: skip
        screen.table(COLUMNS, rows)
        if not shown:
            screen.say(_none(place, is_limited=waiting or chosen.is_limited))
            return 0
        by_reason = ", ".join(f"{count:,} {reason}" for reason, count in counts.most_common())
        screen.say(f"{counted(counts.total(), 'dead letter')}: {by_reason}")
        if len(shown) < counts.total():
            screen.say(f"{counts.total() - len(shown):,} older ones are not shown; --limit 0 shows all")
    return 0


@deadletters.command(epilog="POSITION is PARTITION=OFFSET of the record, as `refold deadletters list` shows it.")
@click.argument("position")
@as_json
@on_log
def show(place: Place, position: str, as_json: bool) -> int:
    """Show everything about one dead letter: the record, its bytes, why, and what to do.

    On Kafka it also says whether the record was retried, and what became of that; to know, it reads what was recorded
    since.

    \b
    Examples
      refold deadletters show 3=1041
      refold deadletters show 3=1041 --json
    """
    screen = Screen()
    with place.read() as log:
        (letter,) = at_positions(log, positions_of([position]))
        told = told_of(log, letter) if is_kafka(place.url) else None
        if as_json:
            screen.json({**whole_json(letter, log.port.registry), "retry": None if told is None else told.json()})
            return 0
        show_letter(screen, letter, log.port.registry)
        if told is not None:
            screen.say(f"retry        {told.text}")
    return 0


deadletters.add_command(retry)


def _counted(found: Iterable[Letter], counts: Counter[str]) -> Iterator[Letter]:
    for each in found:
        counts[each.verdict.reason] += 1
        yield each


def _newest(found: Iterable[Letter], limit: int) -> list[Letter]:
    """The newest, so many of them, in the order of their positions; the others are let go of as they come."""
    newest = found
    if limit:
        newest = heapq.nlargest(limit, found, key=lambda each: (each.verdict.timestamp, each.position))
    return sorted(newest, key=lambda each: each.position)


def _none(place: Place, *, is_limited: bool) -> str:
    """Why there is nothing to list."""
    if is_limited:
        return "no dead letters are like that"
    if is_kafka(place.url):
        return "no dead letters: every record that workers decided is an observation"
    return "no dead letters: an embedded log refuses what is no observation as it is written"
