"""`refold doctor`: whether this log can be used on this machine, and if not, what to do."""

from __future__ import annotations

from pathlib import Path

import click

from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.explorer.doctor.examine import examine
from refold.explorer.doctor.findings import CheckSettings
from refold.explorer.queries.log_target import LogTarget
from refold.streams.log.kafka.access import ROLES


@click.command()
@click.option("--role", multiple=True, type=click.Choice(ROLES),
              help="On Kafka: check whether this user has the rights of the role; may be repeated.")  # fmt: skip
@click.option("--keys", is_flag=True, help="With --role: also check the topic of the log's key ring.")
@click.option("--data", type=click.Path(path_type=Path), metavar="DIR",
              help="On Kafka: a worker's folder; check whether it has room.")  # fmt: skip
@as_json
@on_log
def doctor(target: LogTarget, role: tuple[str, ...], keys: bool, data: Path | None, as_json: bool) -> int:
    """Check a log and its environment, and say what to fix.

    In a folder it checks format, owner, room on the disk, clock, types and libraries. On Kafka it checks settings,
    brokers, topics and each of their settings, which workers are alive and how far their group lags, the Schema
    Registry, this user's rights for a role, clock, types and libraries. It only reads. `refold verify` checks the
    recorded data. Exits with 1 when there is a problem, and prints how to fix it.

    \b
    Examples
      refold doctor --log file:.refold
      refold doctor --log kafka://127.0.0.1:9092/agents --role worker --data /var/lib/refold
    """
    screen = Screen()
    findings = examine(target, CheckSettings(role, keys, data))
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
