"""`refold init`: the log, made before anybody records."""

from __future__ import annotations

import click

from refold.explorer.cli.options import Place, as_json, on_log
from refold.explorer.cli.screen import Screen
from refold.streams.open import given_url


@click.command("init")
@as_json
@on_log
def init(place: Place, as_json: bool) -> int:
    """Make the log where there is none, and say what is there.

    Whoever records, and every worker, makes it too. This is for where they may not: on Kafka, where only some users may
    make topics, and in a deployment, before anything else starts. It may run again, and beside others.

    \b
    Examples
      refold init --log 'kafka://127.0.0.1:9092/agents?partitions=32'
      refold init --json
    """
    screen = Screen()
    url = given_url(place.url)
    was_there = place.exists()
    with place.write() as log:
        log_id, partitions = log.port.log_id.hex(), log.port.partitions
    if as_json:
        screen.json({"log": url, "log_id": log_id, "partitions": partitions, "made": not was_there})
    else:
        done = "was there already" if was_there else "made"
        screen.say(f"{url}: {done}; {partitions} partitions, log id {log_id}")
    return 0
