"""Faust's tables on RocksDB, with the work of refold's worker; at least once, because its exactly-once is half as fast.

main.py KIND BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS
"""

from __future__ import annotations

import sys
from typing import Any

import faust
from peers.pyfold import FRAME_BYTES, change_of, fold, fold_plain, new_state, order_of, reader

PARTITIONS = 4
# With these types, the bytes are stored unchanged.
BYTES = {"key_type": bytes, "value_type": bytes}
OPTIONS = {"driver": "rocksdict"}


def main(kind: str, bootstrap: str, topic: str, changes: str, group: str, folder: str, schema: str, ms: str) -> None:
    app = faust.App(
        group,
        broker=f"kafka://{bootstrap}",
        store="rocksdb://",
        datadir=folder,
        broker_commit_interval=int(ms) / 1000,
        broker_max_poll_records=2_000,
        consumer_auto_offset_reset="earliest",
        stream_recovery_delay=0,
        table_standby_replicas=0,
        topic_partitions=PARTITIONS,
        topic_replication_factor=1,
        topic_disable_leader=True,
        web_enabled=False,
        web_bind="127.0.0.1",
    )
    records = app.topic(topic, key_serializer="raw", value_serializer="raw", **BYTES)
    states = app.Table("states", partitions=PARTITIONS, key_type=bytes, options=OPTIONS)
    if kind == "plain":
        read_plain = reader(schema, 0)

        async def plain(stream: Any) -> None:
            async for event in stream.events():
                found = states.get(event.key) or new_state()
                fold_plain(found, read_plain(event.value))
                states[event.key] = found

        app.agent(records)(plain)
    else:
        read = reader(schema, FRAME_BYTES)
        timeline = app.Table("timeline", partitions=PARTITIONS, options=OPTIONS, **BYTES)
        out = app.topic(changes, key_type=bytes, key_serializer="raw", value_serializer="json")

        async def step(stream: Any) -> None:
            async for event in stream.events():
                message, observation, observation_id = event.message, read(event.value), event.headers["refold-id"]
                at = order_of(observation, observation_id)
                order, place = at.hex(), event.key + b"\0" + at
                found = states.get(event.key) or new_state()
                # An observation newer than all others of its entity cannot be known; only the rest is looked up.
                if order <= found["last"] and place in timeline:
                    continue
                timeline[place] = event.value
                mutations = fold(found, observation, order)
                states[event.key] = found
                change = change_of(observation, observation_id, found["version"], message.offset,
                                   int(message.timestamp * 1000), mutations)  # fmt: skip
                out.send_soon(key=event.key, value=change, partition=message.partition)

        app.agent(records)(step)
    faust.Worker(app, loglevel="ERROR", redirect_stdouts=False).execute_from_commandline()


if __name__ == "__main__":
    main(*sys.argv[1:])
