"""`refold rewind`: set a consumer group's offsets to a point of the log."""

from __future__ import annotations

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, as_json, on_log
from refold.explorer.cli.output.fitting import TableColumn
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import point_json
from refold.streams.open import is_kafka, resolved_url

COLUMNS = (
    TableColumn("partition", is_fixed=True),
    TableColumn("before", is_fixed=True),
    TableColumn("after", is_fixed=True),
)
TOPICS = ("observations", "changes")


@click.command(epilog=WHEN)
@click.argument("group")
@click.option("--to", metavar="WHEN", required=True, help="The point after which the group continues to read.")
@click.option(
    "--topic", type=click.Choice(TOPICS), default="observations", show_default=True, help="The topic the group reads."
)
@click.option("--dry-run/--apply", "is_dry", default=True, help="Print what would be set [default], or set it.")
@as_json
@on_log
def rewind(target: LogTarget, group: str, to: str, topic: str, is_dry: bool, as_json: bool) -> int:
    """Set a consumer group's offsets to a point of the log.

    Without --apply it sets nothing, and prints what it would set. It refuses a group with live members, and the group
    of the log's own workers.

    \b
    Examples
      refold rewind billing --to @deploy-1
      refold rewind billing --to 2026-11-21T03:12:00Z --topic changes --apply
    """
    if not is_kafka(target.url):
        raise InputError(
            f"{resolved_url(target.url)}: only a log on Kafka has consumer groups; give kafka://HOST:PORT/NAME"
        )
    from refold.streams.log.kafka.log import KafkaLog
    from refold.streams.log.kafka.rewind import rewind as rewind_group

    screen = Screen()
    with target.read() as log:
        assert isinstance(log.port, KafkaLog)
        point = log.point(to)
        moved = rewind_group(log.port, group, point.cut, topic, apply=not is_dry)
        if as_json:
            partitions = [each._asdict() for each in moved]
            screen.json({"group": group, "topic": topic, "applied": not is_dry, "partitions": partitions,
                         **point_json(point)})  # fmt: skip
            return 0
        screen.point(point)
        rows = [[str(each.partition), "-" if each.before is None else str(each.before), str(each.after)]
                for each in moved]  # fmt: skip
        screen.table(COLUMNS, rows)
        screen.say(f"{group}: nothing was set, this was a dry run; set it with --apply" if is_dry else f"{group}: set")
    return 0
