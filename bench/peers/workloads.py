"""The peers' input: logs of observations as a refold client writes them, and plain records.

A log's records are in refold's format (docs/FORMAT.md): the entity as the key, Confluent-framed Avro, the id in the
header `refold-id`; about 190 bytes together, 1 % of them repeated and 1 % late (workload.disturbed). Plain records are
unframed Avro with a map of five union values, with which the peers were first measured; none is repeated or late.
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
    """A number of observations (before repeats), entities and partitions; entities are uniform or by a Zipf law.

    each_once: every entity occurs once, in order, before any is drawn. in_order: nothing is repeated or late.
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
        """The log's prefix, or the plain topic's name; it encodes everything that determines the content."""
        return f"bench-{self.key}-{self.count}-{self.entities}-{self.partitions}"

    @property
    def topic(self) -> str:
        """The topic with the records."""
        return self.prefix if self.is_plain else f"{self.prefix}.observations"

    def observations(self) -> Iterator[dict[str, Any]]:
        """Yield keyword arguments for `Log.observe`, in order of arrival."""
        made = observations(self.count, self._draw())
        return made if self.in_order else disturbed(made, SEED)

    def plain(self) -> Iterator[tuple[str, bytes]]:
        """Yield keys and Avro bytes."""
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
    """Return the schema of plain records."""
    return json.dumps(PLAIN_SCHEMA)
