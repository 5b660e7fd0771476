"""Any client of the registry reads what refold writes: confluent-kafka's AvroDeserializer, and Avro in Java."""

from __future__ import annotations

import base64
import io
import json
import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

import fastavro
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from refold.avro.codec import FRAME_BYTES, RecordCodec, framed_id
from refold.avro.registry import TypeVersion
from refold.streams.change_codec import ChangeCodec
from refold.streams.registry.ids import SchemaIds
from refold.streams.registry.settings import RegistrySettings
from refold_tests.java import run_java
from refold_tests.shipped_types import samples


class Message(NamedTuple):
    """Framed bytes, the topic to which they belong, and the codec that wrote them."""

    data: bytes
    topic: str
    codec: RecordCodec


@pytest.fixture(scope="module")
def messages(schema_registry: str, tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    """Messages of every shipped type, with the registry's ids."""
    prefix = f"t{uuid.uuid4().hex[:12]}"
    found = []
    with SchemaIds(RegistrySettings((schema_registry,))) as ids:
        for definition, observations, changes in samples(tmp_path_factory.mktemp("shipped"), seed=1):
            wire_ids = ids.register(prefix, definition)
            version = TypeVersion(definition, 0, 0, wire_ids)
            feed = ChangeCodec(version)
            for observation in observations:
                found.append(
                    Message(version.codec.encode_observation(observation), f"{prefix}.observations", version.codec)
                )
            for change in changes:
                found.append(Message(feed.encode(change), f"{prefix}.changes", version.changes))
            assert {framed_id(each.data) for each in found[-len(observations) - len(changes) :]} == {*wire_ids[:2]}
    return found


def test_confluents_deserializer_reads_observations_and_changes(schema_registry: str, messages: list[Message]) -> None:
    # Without a time limit the client waits for ever if an answer is lost, as one was; with it, it asks again.
    with SchemaRegistryClient({"url": schema_registry, "timeout": 30}) as client:
        deserialize = AvroDeserializer(client)
        for data, topic, codec in messages:
            found = deserialize(data, SerializationContext(topic, MessageField.VALUE))
            own = fastavro.parse_schema(json.loads(codec.text))
            assert found == fastavro.schemaless_reader(io.BytesIO(data[FRAME_BYTES:]), own, None)


def test_java_reads_observations_and_changes(schema_registry: str, messages: list[Message]) -> None:
    given = "".join(f"{base64.b64encode(each.data).decode()}\n" for each in messages)
    said = run_java("refold.ReadMessages", schema_registry, given=given).removesuffix("\n").split("\n")
    assert len(said) == len(messages)
    for line, message in zip(said, messages, strict=True):
        assert json.loads(line) == plain(message.codec.decode(message.data))


def plain(value: Any) -> Any:
    """A datum as ReadMessages prints it."""
    if isinstance(value, Mapping):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return f"0x{value.hex()}" if isinstance(value, bytes) else value
