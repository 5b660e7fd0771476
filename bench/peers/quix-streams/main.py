"""Quix Streams with exactly-once and RocksDB state with a changelog, with the work of refold's worker.

main.py KIND BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS
"""

from __future__ import annotations

import sys
from typing import Any

from peers.pyfold import FRAME_BYTES, change_of, fold, fold_plain, new_state, order_of, reader
from quixstreams import Application, State, message_context

STATE = "state"


def main(kind: str, bootstrap: str, topic: str, changes: str, group: str, folder: str, schema: str, ms: str) -> None:
    app = Application(
        broker_address=bootstrap,
        consumer_group=group,
        auto_offset_reset="earliest",
        commit_interval=int(ms) / 1000,
        processing_guarantee="exactly-once",
        state_dir=folder,
        loglevel="WARNING",
    )
    records = app.dataframe(app.topic(topic, key_deserializer="bytes", value_deserializer="bytes"))
    if kind == "plain":
        read_plain = reader(schema, 0)

        def plain(value: bytes, state: State) -> None:
            found = state.get(STATE) or new_state()
            fold_plain(found, read_plain(value))
            state.set(STATE, found)

        records.update(plain, stateful=True)
    else:
        read = reader(schema, FRAME_BYTES)

        def step(value: bytes, _key: Any, recorded_at: int, headers: Any, state: State) -> dict[str, Any] | None:
            observation, observation_id = read(value), dict(headers)["refold-id"]
            place = order_of(observation, observation_id)
            order = place.hex()
            found = state.get(STATE) or new_state()
            # An observation newer than all others of its entity cannot be known; only the rest is looked up.
            if order <= found["last"] and state.exists(place):
                return None
            state.set_bytes(place, value)
            mutations = fold(found, observation, order)
            state.set(STATE, found)
            return change_of(
                observation, observation_id, found["version"], message_context().offset, recorded_at, mutations
            )

        found = records.apply(step, stateful=True, metadata=True).filter(lambda change: change is not None)
        found.to_topic(app.topic(changes, key_serializer="bytes", value_serializer="json"))
    app.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
