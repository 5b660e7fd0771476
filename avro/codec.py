"""Bytes of one type's observations and changes: Confluent framing around Avro.

A message is a zero byte, the schema's id (u32 big-endian) and the Avro body.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from typing import Any

import fastavro

from refold.avro.binary import writer
from refold.avro.definition import TypeDefinition
from refold.avro.derive import change_node, observation_node, schema_text, state_node
from refold.avro.envelope import check_decoded
from refold.avro.errors import UndecodableError, ValidationError
from refold.avro.nodes import emit
from refold.avro.observation import Link, Observation, Source
from refold.avro.wire import Adapt, from_wire, to_wire

FRAME_BYTES = 5


def schema_id(text: str) -> int:
    """A schema's id in the embedded registry: the first 31 bits of the SHA-256 of its text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


class RecordCodec:
    """Datums of one derived schema to and from framed bytes."""

    def __init__(self, node: dict[str, Any]) -> None:
        self.text = schema_text(node)
        self.schema_id = schema_id(self.text)
        self._frame = b"\0" + self.schema_id.to_bytes(4, "big")
        self._schema = fastavro.parse_schema(emit(node, logical=False, docs=False))
        self._write = writer(node)

    def encode(self, datum: Mapping[str, Any] | tuple[Any, ...]) -> bytes:
        """Framed bytes of a datum, given by name or as all its values in order."""
        return self._frame + self._write(datum)

    def decode(self, data: bytes) -> dict[str, Any]:
        """The datum behind framed bytes; raises UndecodableError when they are not this schema's."""
        body = io.BytesIO(data)
        body.seek(FRAME_BYTES)
        try:
            datum = fastavro.schemaless_reader(body, self._schema, None)
        except Exception as error:  # fastavro raises whatever its C code meets in foreign bytes
            raise UndecodableError(f"not Avro of schema {self.schema_id}: {error!r}") from error
        if body.tell() != len(data):
            raise UndecodableError(f"{len(data) - body.tell()} bytes after the end of the Avro body")
        assert isinstance(datum, dict)
        return datum


def framed_id(data: bytes) -> int:
    """The schema id in a frame; raises UndecodableError where there is no frame."""
    if len(data) < FRAME_BYTES or data[0] != 0:
        raise UndecodableError("not in Confluent wire format: a zero byte and a schema id come first")
    return int.from_bytes(data[1:FRAME_BYTES], "big")


class ObservationCodec(RecordCodec):
    """Observations of one type version."""

    def __init__(self, definition: TypeDefinition) -> None:
        super().__init__(observation_node(definition))
        self.definition = definition
        self._fields: list[tuple[str, str, Adapt, Adapt]] = [
            (each.name, each.first_name, to_wire(each.node), from_wire([{"type": "null"}, *_as_list(each.node)]))
            for each in definition.fields.values()
        ]
        self._writers = {first: (name, write) for name, first, write, _ in self._fields}
        self._as_is = all(name == first and write is None for name, first, write, _ in self._fields)

    def encode_observation(self, observation: Observation) -> bytes:
        """Framed bytes of an observation whose patch is canonical."""
        source, link, patch = observation.source, observation.link, observation.patch
        if not self._as_is:
            patch = self._wire_patch(patch)
        said_by = (source.agent, source.run, source.step, source.tool, source.seq)
        relation = None if link is None else (link.relation, link.target, link.valid_from, link.valid_to)
        return self.encode(
            (observation.entity, observation.kind, observation.observed_at, observation.priority, said_by,
             observation.causes, patch, observation.cleared, observation.retracts, relation, observation.subject)
        )  # fmt: skip

    def _wire_patch(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        wire = {}
        for first, value in patch.items():
            name, write = self._writers[first]
            wire[name] = value if write is None else write(value)
        return wire

    def decode_observation(self, data: bytes) -> Observation:
        """The observation behind framed bytes, its patch canonical under this (the writer's) definition."""
        datum = self.decode(data)
        wire_patch = datum["patch"]
        patch = {}
        try:
            for name, first, _, read in self._fields:
                value = wire_patch[name]
                if value is not None:
                    patch[first] = value if read is None else read(value)
            link = datum["link"]
            observation = Observation(
                entity=datum["entity"],
                observed_at=datum["observed_at"],
                kind=datum["kind"],
                priority=datum["priority"],
                source=Source(**datum["source"]),
                causes=tuple(datum["causes"]),
                patch=patch,
                cleared=tuple(datum["cleared"]),
                retracts=tuple(datum["retracts"]),
                link=None if link is None else Link(**link),
                subject=datum["subject"],
            )
            check_decoded(observation, self.definition)
        except ValidationError as error:
            raise UndecodableError(str(error)) from error
        return observation


def _as_list(node: Any) -> list[dict[str, Any]]:
    return [each for each in (node if isinstance(node, list) else [node]) if each["type"] != "null"]


def state_codec(definition: TypeDefinition) -> RecordCodec:
    """The codec of the type's states."""
    return RecordCodec(state_node(definition))


def change_codec(definition: TypeDefinition) -> RecordCodec:
    """The codec of the type's changes."""
    return RecordCodec(change_node(definition))
