"""`refold doctor`: is this log fit to be used here, and if not, what to do.

The examinations behind `refold doctor`; each gives findings and none of them raises.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import click

from refold.avro.errors import OwnerGone, OwnerSilent, RefoldError, StorageError
from refold.explorer.cli.operate.doctor_findings import Finding, Looking, disk, inside, nearest
from refold.explorer.cli.operate.doctor_kafka import on_kafka
from refold.explorer.cli.operate.doctor_libraries import libraries
from refold.explorer.cli.options import LogTarget, as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.streams.log.file.client import Client
from refold.streams.log.kafka.access import ROLES
from refold.streams.open import file_path, is_kafka
from refold.streams.rocks.layout import FORMAT_NUMBER


def examine(place: LogTarget, looking: Looking) -> list[Finding]:
    """Every finding about a log and this machine."""
    findings = list(libraries(with_kafka=is_kafka(place.url)))
    if is_kafka(place.url):
        return [*findings, *(on_kafka(place, looking) if _has_client() else ())]
    try:
        path = file_path(place.url)
        exists = place.exists()
    except RefoldError as error:
        return [
            *findings,
            Finding("log", False, str(error), "name another place with --log, or install the release it says"),
        ]
    findings += disk(path if exists else nearest(path), is_log=exists)
    if not exists:
        return [*findings, Finding("log", True, f"{path}: none yet; the first observation makes it")]
    findings.append(Finding("format", True, f"{path}: file format {FORMAT_NUMBER}, which this release reads"))
    findings += _owner(path, place.owner_timeout_s)
    findings += inside(place, looking, "restore the log from a copy, or import an export of it")
    return findings


def _owner(path: Path, timeout_s: float) -> Iterator[Finding]:
    try:
        with Client(path, timeout_s) as owner:
            owner.call("flush", None)
    except OwnerGone:
        yield Finding("owner", True, "no process owns the log; the next one that writes will")
    except OwnerSilent as error:
        yield Finding(
            "owner",
            False,
            str(error),
            "continue that process (kill -CONT) or end it; reading goes on meanwhile",
        )
    except StorageError as error:
        yield Finding(
            "owner",
            False,
            str(error),
            "end the process that owns the log; the next one that writes takes over",
        )
    else:
        yield Finding("owner", True, "a process owns the log, and answers")


def _has_client() -> bool:
    """Whether Kafka's client can be imported; that it is missing is said among the libraries."""
    return importlib.util.find_spec("confluent_kafka") is not None


@click.command()
@click.option("--role", multiple=True, type=click.Choice(ROLES),
              help="On Kafka: whether this user may do what the role needs; may be repeated.")  # fmt: skip
@click.option("--keys", is_flag=True, help="With --role: also in the topic of the log's key ring.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR",
              help="On Kafka: a worker's folder, whether it has room.")  # fmt: skip
@as_json
@on_log
def doctor(place: LogTarget, role: tuple[str, ...], keys: bool, data: Path | None, as_json: bool) -> int:
    """Check a log and its environment, and say what to fix.

    In a folder: format, owner, room on the disk, clock, types, libraries. On Kafka: settings, brokers, topics
    and each of their settings, which workers are alive and how far their group is behind, the Schema Registry, this
    user's rights for a role, clock, types, libraries.
    It reads only; `refold verify` is what checks the recorded data. Exits with 1 when there is a problem, and
    says what to do about it.

    \b
    Examples
      refold doctor --log file:.refold
      refold doctor --log kafka://127.0.0.1:9092/agents --role worker --data /var/lib/refold
    """
    screen = Screen()
    findings = examine(place, Looking(role, keys, data))
    problems = sum(not each.ok for each in findings)
    if as_json:
        screen.json({"ok": not problems, "findings": [each._asdict() for each in findings]})
        return 1 if problems else 0
    rows = [["ok" if each.ok else "PROBLEM", each.subject, each.finding] for each in findings]
    screen.table((TableColumn("", is_fixed=True), TableColumn("examined", "cyan"), TableColumn("found")), rows)
    for each in findings:
        if not each.ok:
            screen.say()
            screen.say(f"{each.subject}: {each.remedy}", "yellow")
    return 1 if problems else 0
