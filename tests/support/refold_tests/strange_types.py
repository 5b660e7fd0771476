"""Definitions that name unregistered code, and how a foreign program writes them into `.schemas`."""

from __future__ import annotations

from collections.abc import Mapping

from refold.avro.definition import TypeDefinition, parse
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.offsets import KafkaPartition
from refold.streams.log.kafka.schemas import schema_record
from refold_tests.sample_types import THING


def naming(type_name: str, function: str, source: str = "00" * 32, version: int = 1) -> TypeDefinition:
    """Return a definition as a foreign program writes it. The field that the code folds closes it."""
    code = {"name": function, "version": version, "source": source}
    field = {"name": "last", "type": "string", "refold.reducer": "custom", "refold.function": function,
             "refold.code": code}  # fmt: skip
    return parse({"type": "record", "name": type_name, "fields": [field], "refold.closed_by": "last"})


def other_code(source: str = "00" * 32, version: int = 2, **fields: Mapping[str, object]) -> TypeDefinition:
    """Return THING with other code and some more fields, under the same name."""
    found = [each | {"refold.code": {**each["refold.code"], "version": version, "source": source}}
             if "refold.code" in each else each for each in THING.document["fields"]]  # fmt: skip
    found += [{"name": name, **given} for name, given in fields.items()]
    return parse({**THING.document, "fields": found})


def put_definition(log: KafkaLog, definition: TypeDefinition) -> None:
    """Write a definition into `.schemas` without refold's checks, as a producer may."""
    sent = schema_record(KafkaPartition(log.topics.schemas, 0), definition, None)
    producer = log.clients.producer()
    producer.produce(log.topics.schemas, value=sent.value, headers=sent.headers, partition=0)
    assert producer.flush(60) == 0
    log.refresh()
