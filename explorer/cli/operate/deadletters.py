"""`refold deadletters`: the records that are not observations, and why.

This module formats dead letters as JSON and as text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from refold.avro.ids import identify
from refold.avro.json_line import to_line
from refold.avro.registry import Registry
from refold.avro.times import millis_text
from refold.explorer.cli.operate.retry import chosen_by, never_retried, positions_of, report_json, retry, retry_status
from refold.explorer.cli.options import WHEN, InOrder, as_json, merged, on_log, place_options
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, counted, moment
from refold.explorer.queries.deadletters import DeadLetterFilter, letter_json, letters_json, newest_of
from refold.explorer.queries.log_target import LogTarget
from refold.streams.deadletters import DeadLetterView, dead_letters_at
from refold.streams.open import is_kafka

SHOWN_BYTES = 512
ROW_BYTES = 16


def whole_json(letter: DeadLetterView, registry: Registry) -> dict[str, Any]:
    """Return the whole dead letter in JSON: bytes in hex, and the decoded observation if a schema can decode it."""
    verdict = letter.verdict
    return {
        **letter_json(letter),
        "key": None if verdict.key is None else verdict.key.hex(),
        "headers": [[name, value.hex() if isinstance(value, bytes) else value] for name, value in verdict.headers],
        "schema_id": letter.wire_id,
        "value": None if verdict.value is None else verdict.value.hex(),
        "observation": _line(letter, registry),
    }


def show_letter(screen: Screen, letter: DeadLetterView, registry: Registry) -> None:
    """Print the whole dead letter as text."""
    verdict = letter.verdict
    screen.say(f"{letter.position}: {verdict.reason}", "bold")
    screen.say(f"why          {verdict.detail}")
    screen.say(f"what to do   {letter.remedy}", "yellow")
    screen.say(f"appended     {millis_text(verdict.timestamp)}")
    screen.say(f"dead letter  {letter.position._replace(offset=letter.number)} of .deadletters")
    if letter.retry_of is not None:
        screen.say(f"retry of     {letter.retry_of}")
    screen.say(f"key          {_bytes_text(verdict.key)}")
    for name, value in verdict.headers:
        screen.say(f"header       {name}: {value.hex() if isinstance(value, bytes) else _bytes_text(value)}")
    screen.say(f"schema       {_schema(letter, registry)}")
    line = _line(letter, registry)
    if line is not None:
        screen.say(f"observation  {json.dumps(line, ensure_ascii=False)}")
    value = verdict.value
    screen.say(f"value        {'none' if value is None else counted(len(value), 'byte')}")
    shown = SHOWN_BYTES if screen.is_terminal else len(value or b"")
    for start in range(0, min(len(value or b""), shown), ROW_BYTES):
        row = (value or b"")[start : start + ROW_BYTES]
        text = "".join(chr(each) if 32 <= each < 127 else "." for each in row)
        screen.say(f"  {start:08x}  {row.hex(' '):<{3 * ROW_BYTES - 1}}  {text}")
    if shown < len(value or b""):
        screen.say(f"  and {counted(len(value or b'') - shown, 'byte')} more; --json has all of them")


def _line(letter: DeadLetterView, registry: Registry) -> dict[str, Any] | None:
    version = None if letter.observation is None else registry.writer(letter.verdict.value or b"")
    if letter.observation is None or version is None:
        return None
    return to_line(letter.observation, identify(letter.observation), version.definition)


def _schema(letter: DeadLetterView, registry: Registry) -> str:
    if letter.wire_id is None:
        return "its bytes name none"
    version = registry.writer(letter.verdict.value or b"")
    if version is None:
        return f"id {letter.wire_id}, which this log does not hold"
    return f"id {letter.wire_id}, of the type {version.definition.name}"


def _bytes_text(given: bytes | str | None) -> str:
    """Return bytes as text if they are UTF-8, else in hex."""
    if given is None:
        return "none"
    if isinstance(given, str):
        return given
    try:
        return given.decode()
    except UnicodeDecodeError:
        return f"0x{given.hex()}"


COLUMNS = (
    TableColumn("position", "cyan", is_fixed=True),
    TableColumn("appended", "dim", is_fixed=True),
    TableColumn("type"),
    TableColumn("entity"),
    TableColumn("reason", is_fixed=True),
    TableColumn("detail"),
)
LISTED = 100


@click.group(cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def deadletters(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """List records that are not observations, and retry them.

    Anybody may write to a log's topic on Kafka. A worker records a verdict for a record that is not an observation.
    This dead letter holds the record's bytes, its position, and the reason. Every fold skips the record, permanently.
    After you mend the cause you can retry it: the record is appended again, and decided again.

    \b
    Reasons
      misplaced       its key is not its observation's entity, or its partition not the key's
      misidentified   its header refold-id is not its observation's id
      undecodable     its bytes are not an observation
      no_such_id      its bytes name a schema that this log does not hold
      foreign_schema  the Schema Registry has that schema for another purpose
      held            its type or version names custom code that the worker was not given

    An embedded log refuses such records at write, so it has no dead letters. The archive of a log on Kafka has the dead
    letters of that log.

    \b
    Examples
      refold deadletters list --log kafka://127.0.0.1:9092/agents
      refold deadletters show 3=1041
      refold deadletters retry --reason no_such_id --apply
    """
    context.obj = merged(context.find_object(LogTarget) or LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@deadletters.command("list", epilog=WHEN)
@chosen_by
@click.option("--waiting", is_flag=True,
              help="Only those that were never retried; this reads all records since then.")  # fmt: skip
@click.option("--limit", type=click.IntRange(0), default=LISTED, show_default=True, metavar="N",
              help="Show at most the newest N; 0: all. All are counted.")  # fmt: skip
@as_json
@on_log
def list_(
    target: LogTarget,
    reasons: tuple[str, ...],
    type_name: str | None,
    since: str | None,
    until: str | None,
    waiting: bool,
    limit: int,
    as_json: bool,
) -> int:
    """List dead letters: where, when, which type, and why.

    \b
    Examples
      refold deadletters list
      refold deadletters list --reason misplaced --since @deploy-1
      refold deadletters list --waiting --json
    """
    screen = Screen()
    chosen = DeadLetterFilter(reasons, type_name, since, until)
    with target.read() as log:
        found: Iterable[DeadLetterView] = chosen.among(log)
        if waiting:
            found = never_retried(log, found)
        counts, shown = newest_of(found, limit)
        if as_json:
            screen.json(letters_json(counts, shown))
            return 0
        rows = [[str(each.position), moment(each.verdict.timestamp * 1000), each.type_name or "-", each.entity or "-",
                 each.verdict.reason, each.verdict.detail] for each in shown]  # fmt: skip
        screen.table(COLUMNS, rows)
        if not shown:
            screen.say(_empty_text(target, is_limited=waiting or chosen.is_limited))
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
def show(target: LogTarget, position: str, as_json: bool) -> int:
    """Show everything about one dead letter: the record, its bytes, why, and what to do.

    On Kafka it also says whether the record was retried, and the result. For that it reads all records since then.

    \b
    Examples
      refold deadletters show 3=1041
      refold deadletters show 3=1041 --json
    """
    screen = Screen()
    with target.read() as log:
        (letter,) = dead_letters_at(log.port, positions_of([position]))
        status = retry_status(log, letter) if is_kafka(target.url) else None
        if as_json:
            screen.json(
                {**whole_json(letter, log.port.registry), "retry": None if status is None else report_json(status)}
            )
            return 0
        show_letter(screen, letter, log.port.registry)
        if status is not None:
            screen.say(f"retry        {status.text}")
    return 0


deadletters.add_command(retry)


def _empty_text(target: LogTarget, *, is_limited: bool) -> str:
    """Return why there is nothing to list."""
    if is_limited:
        return "no dead letters match"
    if is_kafka(target.url):
        return "no dead letters: every record that workers decided is an observation"
    return "no dead letters: an embedded log refuses such records at write"
