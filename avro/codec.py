"""Bytes of one type's observations, changes and states: Confluent framing around Avro.

A message is a zero byte, the schema's wire id (u32 big-endian) and the Avro body. avro/decoder.py reads it. If that
fails, fastavro reads it and decides whether it is a valid message.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from refold.avro.canonical import encode_name
from refold.avro.decoder import REFUSED, Read, read_count, read_long, read_text, reader
from refold.avro.definition import FieldDefinition, TypeDefinition
from refold.avro.derive import IDS, LINK, change_node, observation_node, schema_text, state_node
from refold.avro.encoder import writer
from refold.avro.envelope import check_observation
from refold.avro.errors import UndecodableError, ValidationError
from refold.avro.fast_reader import BOOLEAN, END, INTEGER, OTHER, TEXT, PlainReader, UnionBranch
from refold.avro.ids import identify
from refold.avro.kernel import ObservationReader, find_kernel
from refold.avro.kernel_layouts import field_layouts
from refold.avro.logical import span_of
from refold.avro.nodes import emit, nullable
from refold.avro.observation import KINDS, Link, Observation, Source
from refold.avro.values import RANGES
from refold.avro.wire import Adapt, from_wire, to_wire

# The same as the named tuple's constructor, without a call in between, because one is created for every record.
_new = tuple.__new__

FRAME_BYTES = 5
_IDS = reader(IDS)
_LINK = reader(nullable(LINK))
_TEXTS = reader({"type": "array", "items": {"type": "string"}})


def derived_wire_id(text: str) -> int:
    """Return a schema's derived wire id: the first 31 bits of the SHA-256 of its text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


class _Definition:
    """A definition as a key of what is compiled from it: two with the same fingerprint have the same schemas."""

    __slots__ = ("fingerprint", "given")

    def __init__(self, given: TypeDefinition) -> None:
        self.given = given
        self.fingerprint = given.fingerprint

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Definition) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)


class _Compiled(NamedTuple):
    """A derived schema with the functions that write and read it. Codecs share it, so it has no state."""

    node: dict[str, Any]
    text: str
    write: Callable[[Any], bytes]
    read: Read


# A log's types are compiled for a check, for its readers and for its writers, and again for the next log of a process:
# 3,000 functions a type, in cycles.
@lru_cache(maxsize=128)
def _compiled(derive: Callable[[TypeDefinition], dict[str, Any]], definition: _Definition) -> _Compiled:
    node = derive(definition.given)
    return _Compiled(node, schema_text(node), writer(node), reader(node))


class RecordCodec:
    """Encodes and decodes datums of one schema derived from a definition as framed bytes.

    Attributes:
        wire_id: The id in the frame: the one that a Schema Registry assigned, or one derived from the schema's text.
    """

    def __init__(
        self, derive: Callable[[TypeDefinition], dict[str, Any]], definition: TypeDefinition, wire_id: int | None = None
    ) -> None:
        self._node, self.text, self._write, self._read = _compiled(derive, _Definition(definition))
        self.wire_id = derived_wire_id(self.text) if wire_id is None else wire_id
        self._frame = b"\0" + self.wire_id.to_bytes(4, "big")
        self._judging: Any = None  # the schema as fastavro has it, from the first message that it has to judge on

    def encode(self, datum: Mapping[str, Any] | tuple[Any, ...]) -> bytes:
        """Return a datum as framed bytes. The datum is a mapping, or all its values in order."""
        return self._frame + self._write(datum)

    def framed(self, body: bytes) -> bytes:
        """Return framed bytes for an encoded datum."""
        return self._frame + body

    def decode(self, data: bytes) -> dict[str, Any]:
        """Decode framed bytes.

        Raises:
            UndecodableError: They are not of this schema.
        """
        try:
            datum: dict[str, Any]
            datum, end = self._read(data, FRAME_BYTES)
            if end == len(data):
                return datum
        except REFUSED:
            pass
        return self._decode_any(data)

    def _decode_any(self, data: bytes) -> dict[str, Any]:
        import fastavro

        if self._judging is None:
            self._judging = fastavro.parse_schema(emit(self._node, logical=False, docs=False))
        body = io.BytesIO(data)
        body.seek(FRAME_BYTES)
        try:
            datum = fastavro.schemaless_reader(body, self._judging, None)
        except Exception as error:  # fastavro raises various exceptions for invalid bytes
            raise UndecodableError(f"it is not Avro of schema {self.wire_id}: {_why(error)}") from error
        if body.tell() != len(data):
            raise UndecodableError(f"{len(data) - body.tell()} bytes after the end of the Avro body")
        assert isinstance(datum, dict)
        return datum


def _why(error: Exception) -> str:
    """The reason for a decoding error, in fixed words: a verdict stores them, and fastavro's messages change."""
    if isinstance(error, EOFError):
        return "it ends before the record does"
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not UTF-8"
    return "its bytes do not fit the schema"


def framed_id(data: bytes) -> int:
    """Return the schema id of a frame.

    Raises:
        UndecodableError: There is no frame.
    """
    if len(data) < FRAME_BYTES or data[0] != 0:
        raise UndecodableError("it is not in Confluent wire format: a zero byte and a schema id come first")
    return int.from_bytes(data[1:FRAME_BYTES], "big")


def reframed(data: bytes, wire_id: int) -> bytes:
    """Return a framed message with another id."""
    return b"\0" + wire_id.to_bytes(4, "big") + data[FRAME_BYTES:]


class _Fields(NamedTuple):
    """How values of a patch are written and read, by field. Codecs share it, so it has no state.

    Attributes:
        adapters: For each field, its name, its first name, and the functions that convert a value to the wire, and from
            it.
        branches: The branches of each field, by their byte.
    """

    adapters: Sequence[tuple[str, str, Adapt, Adapt]]
    branches: Sequence[dict[int, UnionBranch]]
    present: Sequence[tuple[str, dict[int, Read]]]


@lru_cache(maxsize=64)
def _fields(definition: _Definition) -> _Fields:
    fields = definition.given.fields.values()
    branches = [_branches(each) for each in fields]
    return _Fields(
        [(each.name, each.first_name, to_wire(each.node), from_wire([{"type": "null"}, *_as_list(each.node)]))
         for each in fields],
        branches,
        [(each.first_name, {byte: branch.read for byte, branch in found.items()})
         for each, found in zip(fields, branches, strict=True)],
    )  # fmt: skip


class ObservationCodec(RecordCodec):
    """Observations of one type version."""

    def __init__(self, definition: TypeDefinition, wire_id: int | None = None) -> None:
        super().__init__(observation_node, definition, wire_id)
        self.definition = definition
        self._fields, self.branches, self._present = _fields(_Definition(definition))
        self._writers = {first: (name, write) for name, first, write, _ in self._fields}
        self._plain = PlainReader(definition.name, self.branches)
        kernel = find_kernel().kernel
        self._native = (
            None
            if kernel is None
            else kernel.ObservationReader(definition.name, self._frame, field_layouts(definition))
        )
        self._as_is = all(name == first and write is None for name, first, write, _ in self._fields)

    @property
    def native(self) -> ObservationReader | None:
        """The kernel's reader of these observations, if there is a kernel."""
        return self._native

    def encode_observation(self, observation: Observation) -> bytes:
        """Return framed bytes of an observation whose patch is canonical."""
        source, link, patch = observation.source, observation.link, observation.patch
        if not self._as_is:
            patch = self._wire_patch(patch)
        said_by = (source.agent, source.run, source.step, source.tool, source.seq)
        relation = None if link is None else (link.relation, link.target, link.valid_from, link.valid_to)
        return self.encode(
            (observation.entity, observation.kind, observation.observed_at, observation.priority, said_by,
             observation.causes, patch, observation.cleared, observation.retracts, relation, observation.subject)
        )  # fmt: skip

    def encode_identified(self, observation: Observation) -> tuple[bytes, bytes]:
        """Return framed bytes of an observation whose patch is canonical, and its id."""
        written = None if self._native is None else self._native.encode(observation)
        if written is not None:
            return written
        data = self.encode_observation(observation)
        own = None if self._native is None else self._native.id_of(data)
        return data, identify(observation) if own is None else own

    def _wire_patch(self, patch: Mapping[str, Any]) -> dict[str, Any]:
        wire = {}
        for first, value in patch.items():
            name, write = self._writers[first]
            wire[name] = value if write is None else write(value)
        return wire

    def identified(self, data: bytes) -> tuple[Observation, bytes]:
        """Like `decode_observation`, and also return the observation's id."""
        parts = None if self._native is None else self._native.read(data)
        if parts is not None:
            entity, observed_at, priority, source, causes, patch, subject, own = parts
            given = (
                entity,
                observed_at,
                "assert",
                priority,
                _new(Source, source),
                causes,
                patch,
                (),
                (),
                None,
                subject,
            )
            return _new(Observation, given), own
        found = self._plain.read(data, FRAME_BYTES)
        if found is not None:
            return found
        observation = self.decode_observation(data)
        return observation, identify(observation)

    def decode_observation(self, data: bytes) -> Observation:
        """Decode an observation from framed bytes; its patch is canonical under this (the writer's) definition."""
        try:
            observation = self._read_observation(data)
            check_observation(observation, self.definition)
        except REFUSED:  # includes violations of a rule
            return self.judged(data)
        return observation

    def judged(self, data: bytes) -> Observation:
        """Like `decode_observation`, read by fastavro alone, whose result is final.

        Raises:
            UndecodableError: The bytes are not an observation of this type.
        """
        datum = self._decode_any(data)
        try:
            observation = self._observation_of(datum)
            check_observation(observation, self.definition)
        except ValidationError as error:
            raise UndecodableError(str(error)) from error
        return observation

    def _read_observation(self, data: bytes) -> Observation:
        """Read the envelope, whose layout avro/derive.py defines. Raises REFUSED if fastavro has to read it."""
        entity, at = read_text(data, FRAME_BYTES)
        kind, at = read_count(data, at)
        observed_at, at = read_long(data, at)
        priority, at = read_long(data, at)
        agent, at = read_text(data, at)
        run, at = read_text(data, at)
        step, at = read_text(data, at)
        tool, at = read_text(data, at)
        seq, at = read_long(data, at)
        causes, at = _IDS(data, at)
        patch: dict[str, Any] = {}
        for first, branches in self._present:
            branch = data[at]
            at += 1
            if branch:
                patch[first], at = branches[branch](data, at)
        source = Source(agent, run, step, tool, seq)
        if data[at:] == END:
            return Observation(entity, observed_at, KINDS[kind], priority, source, tuple(causes), patch)
        cleared, at = _TEXTS(data, at)
        retracts, at = _IDS(data, at)
        link, at = _LINK(data, at)
        subject, at = read_text(data, at)
        if at != len(data):
            raise ValueError("bytes are missing, or left over")
        return Observation(
            entity, observed_at, KINDS[kind], priority, source, tuple(causes), patch, tuple(cleared), tuple(retracts),
            None if link is None else Link(**link), subject,
        )  # fmt: skip

    def _observation_of(self, datum: Mapping[str, Any]) -> Observation:
        patch, wire_patch = {}, datum["patch"]
        for name, first, _, read in self._fields:
            value = wire_patch[name]
            if value is not None:
                patch[first] = value if read is None else _read(first, read, value)
        link = datum["link"]
        return Observation(
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


def _read(first: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        return read(value)
    except ValidationError as error:
        raise ValidationError(f"patch.{first}", error.rule, error.given) from error


def _branches(field: FieldDefinition) -> dict[int, UnionBranch]:
    """How a canonical value of a patch's field is read, by the byte of its union branch."""
    node, key = nullable(field.node), encode_name(field.first_name)
    found = {}
    for index, branch in enumerate(node[1:], 1):
        # A text or a number is never a Blob or Sealed, so it needs no such check.
        adapt = from_wire(node if branch["type"] in ("record", "map") else [node[0], branch])
        kind, (low, end) = _kind_of(branch)
        read = _canonical(field.first_name, reader(branch), adapt)
        found[index << 1] = UnionBranch(field.first_name, key, kind, low, end, read)
    return found


def _kind_of(branch: Mapping[str, Any]) -> tuple[int, tuple[int, int]]:
    """How the fast path reads a branch without calling its reader, and the bounds of an integer."""
    kind, logical = branch["type"], branch.get("logicalType")
    if kind in RANGES:
        return INTEGER, RANGES[kind] if logical is None else span_of(logical)
    simple = {"string": TEXT, "boolean": BOOLEAN} if logical is None else {}
    return simple.get(kind, OTHER), (0, 0)


def _canonical(first: str, read: Read, adapt: Adapt) -> Read:
    if adapt is None:
        return read
    canonical = adapt

    def read_canonical(data: bytes, at: int) -> tuple[Any, int]:
        datum, at = read(data, at)
        return _read(first, canonical, datum), at

    return read_canonical


def _as_list(node: Any) -> list[dict[str, Any]]:
    return [each for each in (node if isinstance(node, list) else [node]) if each["type"] != "null"]


def state_codec(definition: TypeDefinition, wire_id: int | None = None) -> RecordCodec:
    """The codec of the type's states."""
    return RecordCodec(state_node, definition, wire_id)


def change_codec(definition: TypeDefinition, wire_id: int | None = None) -> RecordCodec:
    """The codec of the type's changes."""
    return RecordCodec(change_node, definition, wire_id)
