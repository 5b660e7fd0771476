"""`refold deadletters retry`, and the results of retries.

Dead letters are selected by position, or by reason, type and point.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, Command, as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.deadletters import DeadLetterFilter
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import position_json
from refold.streams.client import Log
from refold.streams.deadletters import REASONS, DeadLetterView, dead_letters_at
from refold.streams.log.port import Position
from refold.streams.open import is_kafka

if TYPE_CHECKING:
    from refold.streams.log.kafka.deadletter_retry import RetryReady, RetryReport
    from refold.streams.log.kafka.log import KafkaLog


POSITION = re.compile(r"(\d{1,5})=(\d{1,18})\Z", re.ASCII)


def chosen_by(command: Command) -> Command:
    """Add --reason, --type, --since and --until, passed as `reasons`, `type_name`, `since` and `until`."""
    for option in (
        click.option("--until", metavar="WHEN", help="Only those recorded up to this point."),
        click.option("--since", metavar="WHEN", help="Only those recorded after this point."),
        click.option("--type", "type_name", metavar="TYPE", help="Only those of a type, if the type is known."),
        click.option("--reason", "reasons", type=click.Choice(REASONS), multiple=True,
                     help="Only those with this reason; may be repeated."),
    ):  # fmt: skip
        command = option(command)
    return command


def positions_of(given: Sequence[str]) -> list[Position]:
    """Parse each PARTITION=OFFSET.

    Raises:
        InputError: A text has another form.
    """
    found = [(each, POSITION.match(each)) for each in given]
    for text, match in found:
        if match is None:
            raise InputError(
                f"{text!r:.80}: a dead letter is named by its record's PARTITION=OFFSET, as `refold deadletters list` "
                "shows it"
            )
    return [Position(int(match[1]), int(match[2])) for _, match in found if match is not None]


COLUMNS = (TableColumn("position", "cyan", is_fixed=True), TableColumn("entity"), TableColumn("retry"))
WAIT_S = 30.0


@click.command(epilog=WHEN)
@click.argument("positions", metavar="[POSITION]...", nargs=-1)
@chosen_by
@click.option("--all", "all_", is_flag=True, help="All dead letters.")
@click.option("--again", is_flag=True, help="Also those that were retried before.")
@click.option("--dry-run/--apply", "is_dry", default=True, help="Print what would be appended [default], or append it.")
@click.option("--wait", "wait_s", type=click.FloatRange(0, 3600), default=WAIT_S, show_default=True, metavar="SECONDS",
              help="How long to wait for the workers' decision.")  # fmt: skip
@as_json
@on_log
def retry(
    target: LogTarget, positions: tuple[str, ...], reasons: tuple[str, ...], type_name: str | None, since: str | None,
    until: str | None, all_: bool, again: bool, is_dry: bool, wait_s: float, as_json: bool,
) -> int:  # fmt: skip
    """Append the records of dead letters again, to be decided again.

    A verdict is final; a retry is a new record with the same bytes. Its key is the entity of the observation in it, so
    it may be appended to another partition. Its header refold-retry-of names the record that it repeats. A record that
    would get a verdict again is not appended: first mend the cause, such as by registering a definition. Without
    --apply nothing is appended.

    Each dead letter is retried once; to check that, the command reads all records since then. --again repeats a retry.
    Nothing is ever counted twice: if the same observation is in the log already, from a retry or from its producer,
    another copy changes nothing.

    Exits with 1 when a record would be, or was, refused again.

    \b
    Examples
      refold deadletters retry 3=1041 3=1044
      refold deadletters retry --reason no_such_id --type ticket --apply
      refold deadletters retry --all --since @deploy-1 --apply
    """
    chosen = DeadLetterFilter(reasons, type_name, since, until)
    if positions and (all_ or chosen.is_limited):
        raise InputError("give either POSITIONs, or --reason, --type, --since, --until, --all")
    if not (positions or all_ or chosen.is_limited):
        raise InputError(
            "which ones? Name them by PARTITION=OFFSET, or choose them with --reason, --type, --since, --until; "
            "--all for all there are"
        )
    named = positions_of(positions)
    screen = Screen()
    if is_dry or not is_kafka(target.url):
        with target.read() as log:
            found = dead_letters_at(log.port, named) if named else list(chosen.among(log))
            reports, _ = _plan(log, found, again=again)
    else:
        with target.write(make=False) as log:
            found = dead_letters_at(log.port, named) if named else list(chosen.among(log))
            reports, ready = _plan(log, found, again=again)
            reports = _carried_out(log, reports, ready, wait_s)
    if as_json:
        screen.json({"applied": not is_dry, "deadletters": [report_json(each) for each in reports]})
    else:
        _show(screen, reports, is_dry=is_dry)
    return int(any("refused" in (each.outcome, each.fate) for each in reports))


def kafka_port(log: Log) -> KafkaLog:
    """Return the log's port on Kafka.

    Raises:
        InputError: The log is not on Kafka.
    """
    if not is_kafka(log.port.url):
        raise InputError(
            f"{log.port.url}: an embedded log refuses invalid records at write, so there is nothing to retry, and an "
            "archive does not know what became of its dead letters; ask the log on Kafka"
        )
    from refold.streams.log.kafka.log import KafkaLog

    assert isinstance(log.port, KafkaLog)
    return log.port


def never_retried(log: Log, found: Iterable[DeadLetterView]) -> list[DeadLetterView]:
    """Return the dead letters that were not retried yet."""
    reports, _ = _plan(log, list(found), again=False)
    return [each.letter for each in reports if each.outcome != "retried"]


def retry_status(log: Log, letter: DeadLetterView) -> RetryReport:
    """Report whether a dead letter was retried and with which result, or else what a retry would do."""
    (report,), _ = _plan(log, [letter], again=False)
    return report


def _plan(
    log: Log, found: Sequence[DeadLetterView], *, again: bool
) -> tuple[list[RetryReport], dict[Position, RetryReady]]:
    port = kafka_port(log)
    from refold.streams.log.kafka.deadletter_retry import retry_plan  # Kafka's client takes long to import

    return retry_plan(port, found, again=again)


def _carried_out(
    log: Log, reports: Sequence[RetryReport], ready: Mapping[Position, RetryReady], wait_s: float
) -> list[RetryReport]:  # fmt: skip
    from refold.streams.log.kafka.deadletter_retry import carry_out

    return carry_out(kafka_port(log), reports, ready, wait_s)


def report_json(report: RetryReport) -> dict[str, Any]:
    """Return the report for `--json`."""
    at = None if report.at is None else position_json(report.at)
    return {"position": position_json(report.letter.position), "entity": report.letter.entity or None,
            "outcome": report.outcome, "at": at, "fate": report.fate, "text": report.text}  # fmt: skip


def _show(screen: Screen, reports: Sequence[RetryReport], *, is_dry: bool) -> None:
    screen.table(COLUMNS, [[str(each.letter.position), each.letter.entity or "-", each.text] for each in reports])
    counts = Counter(each.outcome for each in reports)
    waiting = sum(each.fate == "waiting" for each in reports)
    words = {
        "ready": "would be appended", "appended": "appended", "refused": "would be refused again",
        "retried": "retried before (--again repeats them)",
    }  # fmt: skip
    parts = [f"{counts[outcome]:,} {text}" for outcome, text in words.items() if counts[outcome]]
    screen.say("; ".join(parts) if parts else "no dead letters match")
    if waiting:
        screen.say(
            f"{waiting:,} wait for a worker's decision: see that one runs, then `refold deadletters show` says it"
        )
    if is_dry and counts["ready"]:
        screen.say("nothing was appended, this was a dry run; append with --apply")
