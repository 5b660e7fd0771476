"""The limit: one consumer that fetches, decodes with fastavro and commits what it has decoded, and does nothing else.

bare.py KIND BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS
"""

from __future__ import annotations

import io
import json
import signal
import sys
import time
from pathlib import Path

import fastavro
from confluent_kafka import Consumer

FETCHED_AT_ONCE = 2_000
FRAME = {"same": 5, "plain": 0}


def main(kind: str, bootstrap: str, topic: str, _changes: str, group: str, _folder: str, schema: str, ms: str) -> None:
    parsed = fastavro.parse_schema(json.loads(Path(schema).read_text(encoding="utf-8")))
    frame, commit_s = FRAME[kind], int(ms) / 1000
    consumer = Consumer({
        "bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False,
    })  # fmt: skip
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    consumer.subscribe([topic])
    committed_at, is_new = time.monotonic(), False
    while not ending:
        for message in consumer.consume(FETCHED_AT_ONCE, 0.1):
            body = io.BytesIO(message.value() or b"")
            body.seek(frame)
            fastavro.schemaless_reader(body, parsed, None)
            is_new = True
        if is_new and time.monotonic() - committed_at >= commit_s:
            consumer.commit(asynchronous=True)
            committed_at, is_new = time.monotonic(), False
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
