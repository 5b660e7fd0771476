"""Pathway doing the work of refold's worker, as far as it can: states in memory, changes at least once.

main.py KIND BOOTSTRAP TOPIC CHANGES GROUP FOLDER SCHEMA COMMIT_MS THREADS
"""

from __future__ import annotations

import base64
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import orjson
import pathway
from peers.pyfold import FRAME_BYTES, change_of, fold, new_state, order_of, reader


@dataclass
class Entity:
    """An entity's state and timeline. The engine keeps it in memory."""

    state: dict[str, Any] = field(default_factory=new_state)
    timeline: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Folded:
    """An entity after a batch, and the changes of that batch. A batch makes a new one, which the engine sees."""

    entity: Entity
    changes: tuple[bytes, ...]


def main(
    kind: str, bootstrap: str, topic: str, changes: str, group: str, _folder: str, schema: str, ms: str, threads: str
) -> None:
    if kind != "same":
        raise SystemExit("Pathway writes nothing on the plain fold, and commits nothing: it cannot be measured")
    os.environ["PATHWAY_THREADS"] = threads
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    received = pathway.io.kafka.read(
        settings, topic, format="raw", autogenerate_key=True, with_metadata=True, autocommit_duration_ms=int(ms),
        max_backlog_size=50_000,
    )  # fmt: skip
    read = reader(schema, FRAME_BYTES)

    @pathway.reducers.stateful_many
    def folded(before: Any, rows: list[tuple[list[Any], int]]) -> Any:
        entity = Entity() if before is None else before.value.entity
        # The rows of a batch are in no order; an entity's records are in one partition.
        arrived = sorted(((row[1].value, row[0]) for row, _count in rows), key=lambda each: each[0]["offset"])
        found = []
        for record, value in arrived:
            observation_id = base64.b64decode(dict(record["headers"])["refold-id"])
            observation = read(value)
            order = order_of(observation, observation_id).hex()
            if order <= entity.state["last"] and order in entity.timeline:
                continue
            entity.timeline[order] = value
            mutations = fold(entity.state, observation, order)
            at = record["timestamp_millis"]
            version = entity.state["version"]
            change = change_of(observation, observation_id, version, record["offset"], at, mutations)
            found.append(orjson.dumps(change))
        return pathway.PyObjectWrapper(Folded(entity, tuple(found)))

    entities = received.groupby(pathway.this.key).reduce(
        pathway.this.key, folded=folded(pathway.this.data, pathway.this._metadata)
    )
    stream = entities.to_stream()
    sent = stream.filter(pathway.this.is_upsert).select(
        pathway.this.key,
        change=pathway.apply_with_type(lambda each: each.value.changes, tuple[bytes, ...], pathway.this.folded),
    )
    single = sent.flatten(pathway.this.change)
    pathway.io.kafka.write(
        single, {"bootstrap.servers": bootstrap}, changes, format="raw", key=single.key, value=single.change
    )
    pathway.run(monitoring_level=pathway.MonitoringLevel.NONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
