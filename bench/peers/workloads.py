"""What the peers fold: logs of observations as a refold client writes them, and plain records.

A log's records are refold's own (docs/FORMAT.md): the entity as the key, Confluent-framed Avro, the id in the header
`refold-id`; about 190 bytes together, 1 % of them repeated and 1 % late (workload.disturbed). Plain records are
unframed Avro with a map of five union values, what the peers were first measured on; nothing is repeated or late there.
"""

from __future__ import annotations

import io
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fastavro
from workload import START_MICROS, disturbed, observations, uniform, zipf

SEED = 7
PARTITIONS = 4

PLAIN_SCHEMA = {
    "type": "record",
    "name": "Plain",
    "fields": [
        {"name": "id", "type": {"type": "fixed", "name": "Id", "size": 32}},
        {"name": "entity", "type": "string"},
        {"name": "observed_at", "type": "long"},
        {"name": "run", "type": "string"},
        {"name": "seq", "type": "long"},
        {"name": "fields", "type": {"type": "map", "values": ["null", "boolean", "long", "double", "string"]}},
    ],
}


@dataclass(frozen=True)
class Workload:
    """Observations (before repeats) of so many entities, uniform or by a Zipf law, in so many partitions.

    each_once: every entity comes once, in order, before any is drawn. in_order: nothing is repeated or late.
    """

    key: str
    name: str
    count: int
    entities: int
    zipf: bool = False
    partitions: int = PARTITIONS
    is_plain: bool = False
    each_once: bool = False
    in_order: bool = False

    @property
    def prefix(self) -> str:
        """Of the log, or the plain topic's name; says all that decides about its contents."""
        return f"bench-{self.key}-{self.count}-{self.entities}-{self.partitions}"

    @property
    def topic(self) -> str:
        """Where the records stand."""
        return self.prefix if self.is_plain else f"{self.prefix}.observations"

    def observations(self) -> Iterator[dict[str, Any]]:
        """Keyword arguments for `Log.observe`, in order of arrival."""
        made = observations(self.count, self._draw())
        return made if self.in_order else disturbed(made, SEED)

    def plain(self) -> Iterator[tuple[str, bytes]]:
        """Keys and Avro bytes."""
        schema = fastavro.parse_schema(PLAIN_SCHEMA)
        ids = random.Random(SEED)
        for number, each in enumerate(observations(self.count, self._draw())):
            buffer = io.BytesIO()
            record = {"id": ids.randbytes(32), "entity": each["entity"], "observed_at": START_MICROS + number * 1000,
                      "run": each["source"].run, "seq": each["source"].seq, "fields": each["patch"]}  # fmt: skip
            fastavro.schemaless_writer(buffer, schema, record)
            yield each["entity"], buffer.getvalue()

    def _draw(self) -> Callable[[], int]:
        drawn = (zipf if self.zipf else uniform)(self.entities, SEED)
        if not self.each_once:
            return drawn
        first = itertools.chain(range(self.entities), iter(drawn, None))
        return lambda: next(first)


def plain_schema() -> str:
    """The schema of plain records."""
    return json.dumps(PLAIN_SCHEMA)
