"""`refold init`: create a log before anything is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from refold.explorer.cli.options import as_json, on_log
from refold.explorer.cli.output.screen import Screen
from refold.explorer.queries.log_target import LogTarget
from refold.streams.open import is_kafka, resolved_url

if TYPE_CHECKING:
    from refold.streams.log.port import LogPort


@click.command("init")
@as_json
@on_log
def init(target: LogTarget, as_json: bool) -> int:
    """Create the log if it does not exist, and describe it.

    A producer and a worker create the log too. Use this command where they may not: on Kafka, if only some users may
    create topics, and in a deployment, before anything else starts. It may run again, and several may run at once. A
    log on Kafka that an earlier release created gets its topic for contents too large for a record, unless another
    store is named. If this user may not create it, a warning says so.

    On Kafka it also begins activations: from then on a new version of a type with custom code is pending until a worker
    has that code. Older releases of refold then refuse the log, so upgrade them first. If this user may not write that
    record, a warning says so, the exit status is 0, and the first worker begins activations. With --json, activations
    is true or false; null for a log that is not on Kafka.

    \b
    Examples
      refold init --log 'kafka://127.0.0.1:9092/agents?partitions=32'
      refold init --json
    """
    screen = Screen()
    url = resolved_url(target.url)
    was_there = target.exists()
    activations: bool | None = None
    with target.write() as log:
        log_id, partitions = log.port.log_id.hex(), log.port.partitions
        if is_kafka(target.url):
            activations = _begin_activations(log.port)
        has_new_store = _make_store(log.port)
    if as_json:
        screen.json({
            "log": url, "log_id": log_id, "partitions": partitions, "made": not was_there, "activations": activations,
            "made_store": has_new_store,
        })  # fmt: skip
    else:
        done = "already exists" if was_there else "created"
        screen.say(f"{url}: {done}; {partitions} partitions, log id {log_id}")
        if has_new_store:
            screen.say("its topic for contents was missing: created")
    return 0


def _make_store(port: LogPort) -> bool:
    """Create the topic for contents if it is missing. Returns False, with a warning, if this user may not."""
    from refold.avro.errors import Denied

    try:
        return port.make_store()
    except Denied as denied:
        click.echo(f"warning: the log has no topic for contents: {denied}", err=True)
        return False


def _begin_activations(port: LogPort) -> bool:
    """Begin activations if they are not begun. Returns False, with a warning, if this user may not."""
    from refold.avro.errors import Denied
    from refold.streams.log.kafka.log import KafkaLog

    assert isinstance(port, KafkaLog)
    try:
        port.schemas.begin()
    except Denied as denied:
        click.echo(f"warning: activations are not begun; the first worker will do that: {denied}", err=True)
        return False
    return True
