"""`refold quarantine`: set definitions and damaged records aside, or count them again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from refold.avro.errors import InputError
from refold.avro.quarantine import CHANGES, GIVE_UP_KEYS, KEYS, OBSERVATIONS, SCHEMAS, TOPICS
from refold.avro.times import millis_text
from refold.explorer.cli.options import InOrder, as_json, merged, on_log, place_options
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.log_target import LogTarget
from refold.streams.open import is_kafka, resolved_url

if TYPE_CHECKING:
    from refold.streams.log.kafka.log import KafkaLog
    from refold.streams.log.kafka.quarantine import Entry, RecordEntry
    from refold.streams.log.kafka.url import Address

POSITION = (
    "POSITION is 0=OFFSET of a definition in .schemas, as `refold quarantine list` shows it, or TOPIC/PARTITION/OFFSET "
    "of a damaged record, as the error that it causes names it."
)
_POSITION = re.compile(r"(?:(.+)/(\d{1,6})/|0=)(\d{1,18})\Z")
FORMS = (
    "give 0=OFFSET of a definition, as `refold quarantine list` shows it, or TOPIC/PARTITION/OFFSET of a damaged "
    "record, as the error names it"
)
RECORDS = (OBSERVATIONS, CHANGES)
"""The topics in which single records may be set aside."""
COST = (
    "every earlier key is unusable from then on, because it may have destroyed any of them; content sealed with them "
    "cannot be read, as if it were erased, until the brokers' data is restored and the batch is counted again"
)
COLUMNS = (
    TableColumn("position", "cyan", is_fixed=True), TableColumn("of"), TableColumn("is", is_fixed=True),
    TableColumn("registered", "dim", is_fixed=True),
    TableColumn("decided", "dim", is_fixed=True), TableColumn("fingerprint", piped_only=True),
)  # fmt: skip
dry_run = click.option("--dry-run", is_flag=True, help="Check everything, write nothing.")


@click.group(cls=InOrder, invoke_without_command=True)
@place_options
@click.pass_context
def quarantine(
    context: click.Context, log_url: str | None, types: tuple[str, ...], owner_timeout: float | None,
    worker_url: str | None,
) -> int:  # fmt: skip
    """Set a harmful definition or a damaged record aside.

    Every producer may register definitions in a log on Kafka. A definition that cannot be read needs no action: every
    reader skips it. A definition that can be read is in effect, and may be harmful: it changed a type in an unwanted
    way, or has the id that the Schema Registry gave to another schema. An administrator sets it aside.

    From that position of `.schemas` on, the definition before it is in effect again, and workers fold the type's
    entities again by it. Answers for earlier points do not change. No observation is lost: if an observation is written
    by the definition, the definition is needed, and the command refuses.

    A record of .observations or .changes is damaged if a disk or a broker lost its bytes: a reader that needs it ends
    with an error, and a worker waits. The error names the record and this command. After an observation is set aside,
    the log answers as if it had never been recorded, at every point. Restore the brokers' data instead if you can. A
    record that can be read is never set aside: correct a wrong observation by another one.

    Producers send records in compressed batches. If a batch is too damaged to be unpacked, all of its records are set
    aside together, and counted again together. The same holds for such a batch of .schemas, .deadletters or partition 0
    of .manifests: the definitions, verdicts, markers and rulings in it are unknown from then on. A batch of .keys needs
    --give-up-keys: it may have destroyed any earlier key, so no earlier key is used from then on, and content sealed
    with one cannot be read. Every reader skips a damaged batch of any other topic.

    Setting aside and counting again are records in the log. They need the rights of the role admin; a producer cannot
    write them.

    \b
    Examples
      refold quarantine list --log kafka://127.0.0.1:9092/agents
      refold quarantine add 0=41 --dry-run
      refold quarantine add 0=41
      refold quarantine add agents.observations/3/1204
      refold quarantine remove agents.observations/3/1204
    """
    context.obj = merged(context.find_object(LogTarget) or LogTarget(), log_url, types, owner_timeout, worker_url)
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return 0


@quarantine.command("list")
@as_json
@on_log
def list_(target: LogTarget, as_json: bool) -> int:
    """List every definition of the log, and every damaged record with a ruling: whether it is set aside.

    \b
    Example
      refold quarantine list --json
    """
    screen = Screen()
    with _open_log(target, is_writing=False, is_lenient=True) as log:
        from refold.streams.log.kafka.quarantine import entries, record_entries

        found, records = entries(log), record_entries(log)
    if as_json:
        screen.json([*(_json(each) for each in found), *(_record_json(each) for each in records)])
        return 0
    rows = [[f"0={each.offset}", each.type_name, "set aside" if each.is_aside else "in effect",
             moment(each.registered_at * 1000), "-" if each.decided_at is None else moment(each.decided_at * 1000),
             each.fingerprint.hex()] for each in found]  # fmt: skip
    rows += [[f"{each.topic}/{each.partition}/{each.offset}", _subject_of(each),
              "set aside" if each.is_aside else "counted again", "-", moment(each.decided_at * 1000), "-"]
             for each in records]  # fmt: skip
    screen.table(COLUMNS, rows)
    return 0


@quarantine.command(epilog=POSITION)
@click.argument("position")
@dry_run
@click.option(
    GIVE_UP_KEYS, is_flag=True, help="For a batch of .keys: what was sealed before it cannot be read from then on."
)
@as_json
@on_log
def add(target: LogTarget, position: str, dry_run: bool, give_up_keys: bool, as_json: bool) -> int:
    """Set a definition or a damaged record aside.

    For a definition it reads the log once, to check that no observation is written by it. A record has to be damaged.

    \b
    Examples
      refold quarantine add 0=41 --dry-run
      refold quarantine add 0=41
      refold quarantine add agents.observations/3/1204
    """
    if give_up_keys != _is_of_keys(target, position):
        raise InputError(
            f"{position!r:.80}: {GIVE_UP_KEYS} goes with a batch of .keys" if give_up_keys else
            f"{position!r:.80}: with a batch of .keys {COST}. If you want that, add {GIVE_UP_KEYS}"
        )  # fmt: skip
    return _decide(target, position, is_lifted=False, is_dry=dry_run, as_json=as_json)


@quarantine.command(epilog=POSITION)
@click.argument("position")
@dry_run
@as_json
@on_log
def remove(target: LogTarget, position: str, dry_run: bool, as_json: bool) -> int:
    """Count a definition or a record again that was set aside.

    A definition is registered again, and becomes its type's newest. That is refused if it is not allowed after the
    definitions that are in effect now. A record counts again: if it is still damaged, every reader that needs it fails
    at it again.

    \b
    Examples
      refold quarantine remove 0=41
      refold quarantine remove agents.observations/3/1204
    """
    return _decide(target, position, is_lifted=True, is_dry=dry_run, as_json=as_json)


def _decide(target: LogTarget, position: str, *, is_lifted: bool, is_dry: bool, as_json: bool) -> int:
    screen = Screen()
    match = _POSITION.match(position)
    if match is None:
        raise InputError(f"{position!r:.80}: {FORMS}")
    now_ms, offset = time.time_ns() // 1_000_000, int(match[3])
    topic = _topic(target, match[1], position)
    is_definition = match[1] is None or (topic == SCHEMAS and _is_readable(target, offset))
    with _open_log(target, is_writing=not is_dry, is_lenient=not is_definition and topic not in RECORDS) as log:
        if not is_definition:
            record = _decide_record(log, topic, int(match[2]), offset, now_ms, is_lifted=is_lifted, apply=not is_dry)
            shown = _record_json(record)
            at = f"{topic}/{record.partition}/{record.offset}"
            what = f"the record at {at}" if record.records == 1 else f"the batch of {record.records} records at {at}"
            what += f" ({record.why})" if record.why else ""
        else:
            from refold.streams.log.kafka.quarantine import restore_definition, set_aside

            done = (restore_definition if is_lifted else set_aside)(log, offset, now_ms, apply=not is_dry)
            shown, what = _json(done), f"the definition of {done.type_name} at 0={offset}"
    if as_json:
        screen.json({"dry_run": is_dry, **shown})
        return 0
    said = "taken back" if is_lifted else "set aside"
    screen.say(f"{what} {f'would be {said}; nothing was written' if is_dry else f'is {said}'}")
    if topic == KEYS and not is_lifted:
        screen.say(COST)
    return 0


def _is_of_keys(target: LogTarget, position: str) -> bool:
    match = _POSITION.match(position)
    return match is not None and match[1] is not None and _topic(target, match[1], position) == KEYS


def _topic(target: LogTarget, given: str | None, position: str) -> str:
    """Return the topic of a position, from the topic's whole name or its last part."""
    if given is None:
        return SCHEMAS
    found = given.removeprefix(f"{_address(target).prefix}.")
    if found not in TOPICS:
        raise InputError(f"{position!r:.80}: {FORMS}")
    return found


def _is_readable(target: LogTarget, offset: int) -> bool:
    """Return whether a batch at an offset of `.schemas` can be read and is not set aside. Then it is a definition."""
    with _open_log(target, is_writing=False, is_lenient=True) as log:
        from refold.streams.log.kafka.offsets import KafkaPartition

        if offset in log.registry.rulings.of(SCHEMAS, 0):
            return False
        schemas = KafkaPartition(log.topics.schemas, 0)
        end = log.offsets.ends([schemas])[schemas]
        return offset >= end or log.reading.unreadable_at(schemas, offset, end) is None


def _decide_record(
    log: KafkaLog, topic: str, partition: int, offset: int, now_ms: int, *, is_lifted: bool, apply: bool
) -> RecordEntry:
    from refold.streams.log.kafka.quarantine import restore_record, set_record_aside

    decide = restore_record if is_lifted else set_record_aside
    return decide(log, topic, partition, offset, now_ms, apply=apply)


def _address(target: LogTarget) -> Address:
    from refold.streams.log.kafka.url import parse_url

    if not is_kafka(target.url):
        raise InputError(
            f"{resolved_url(target.url)}: only a log on Kafka has definitions of other users, and damaged records that "
            "can be set aside; give kafka://HOST:PORT/NAME"
        )
    return parse_url(resolved_url(target.url))


@contextmanager
def _open_log(target: LogTarget, *, is_writing: bool, is_lenient: bool = False) -> Iterator[KafkaLog]:
    """Open the log. is_lenient: skip batches that cannot be read, in topics other than .observations and .changes."""
    address = _address(target)
    from refold.streams.log.kafka.log import KafkaLog

    if is_lenient:
        with closing(KafkaLog(address, read_only=not is_writing, is_lenient=True)) as lenient:
            yield lenient
        return
    with target.write(make=False) if is_writing else target.read() as log:
        assert isinstance(log.port, KafkaLog)
        yield log.port


def _subject_of(entry: RecordEntry) -> str:
    """Return the entity or batch that a ruling is about, for the list."""
    return entry.entity or ("-" if entry.records == 1 else f"a batch of {entry.records} records")


def _record_json(entry: RecordEntry) -> dict[str, Any]:
    return {
        "topic": entry.topic,
        "position": {"partition": entry.partition, "offset": entry.offset},
        "records": entry.records,
        "entity": entry.entity or None,
        "aside": entry.is_aside,
        "decided_at": millis_text(entry.decided_at),
        "why": entry.why or None,
    }


def _json(entry: Entry) -> dict[str, Any]:
    return {
        "topic": SCHEMAS,
        "position": {"partition": 0, "offset": entry.offset},
        "type": entry.type_name,
        "fingerprint": entry.fingerprint.hex(),
        "registered_at": millis_text(entry.registered_at),
        "aside": entry.is_aside,
        "decided_at": None if entry.decided_at is None else millis_text(entry.decided_at),
    }
