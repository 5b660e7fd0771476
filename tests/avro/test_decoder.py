"""Our reader against fastavro: it reads what fastavro reads, says the same of it, and leaves to it whatever is odd."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.avro.codec import FRAME_BYTES
from refold.avro.decoder import REFUSED, Read, read_long, reader
from refold.avro.derive import change_node, observation_node, state_node
from refold.avro.encoder import Write, write_long, writer
from refold.avro.errors import UndecodableError
from refold.avro.fast_reader import PlainReader
from refold.avro.ids import identify
from refold.avro.nodes import Node, emit
from refold.avro.observation import Observation
from refold_tests.datums import datums
from refold_tests.specimens import codec, observations, specimen

NOT_READ = object()
TEXT_AND_DOUBLE: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "a", "type": {"type": "string"}}, {"name": "b", "type": {"type": "double"}}],
}


def ours(read: Read, data: bytes) -> object:
    """What our reader makes of all the bytes, or NOT_READ."""
    try:
        datum, end = read(data, 0)
    except REFUSED:
        return NOT_READ
    return datum if end == len(data) else NOT_READ


def theirs(schema: Any, data: bytes) -> object:
    """What fastavro makes of all the bytes, or NOT_READ."""
    body = io.BytesIO(data)
    try:
        datum = fastavro.schemaless_reader(body, schema, None)
    except Exception:
        return NOT_READ
    return datum if body.tell() == len(data) else NOT_READ


class Both(NamedTuple):
    """What reads and writes the datums of one schema."""

    datums: st.SearchStrategy[Any]
    write: Write
    read: Read
    schema: Any


NODES = {derived.__name__: derived(specimen()) for derived in (observation_node, state_node, change_node)}
BOTH = {
    name: Both(datums(node), writer(node), reader(node), fastavro.parse_schema(emit(node, logical=False)))
    for name, node in NODES.items()
}


@pytest.mark.parametrize("name", BOTH)
@given(data=st.data())
@settings(max_examples=10)
def test_decoder_matches_fastavro(name: str, data: st.DataObject) -> None:
    both = BOTH[name]
    written = both.write(data.draw(both.datums))
    found = ours(both.read, written)
    assert found is not NOT_READ
    assert repr(found) == repr(theirs(both.schema, written))  # by repr: types count, and so does NaN
    for damaged in data.draw(st.lists(damage(written), max_size=8)):
        found = ours(both.read, damaged)
        assert found is NOT_READ or repr(found) == repr(theirs(both.schema, damaged))


def damage(data: bytes) -> st.SearchStrategy[bytes]:
    """A few bytes changed, and some put in or taken out."""
    place = st.integers(0, len(data))
    return st.lists(st.tuples(place, st.integers(0, 2), st.binary(max_size=3)), min_size=1, max_size=4).map(
        lambda cuts: _damaged(data, cuts)
    )


def _damaged(data: bytes, cuts: list[tuple[int, int, bytes]]) -> bytes:
    for place, gone, put in cuts:
        data = data[:place] + put + data[place + gone :]
    return data


def said_of(read: Callable[[bytes], object], message: bytes) -> str:
    """What is made of a message."""
    try:
        return repr(read(message))
    except UndecodableError as error:
        return f"undecodable: {error}"


@given(observations(), st.data())
@settings(max_examples=40)
def test_message_decodes_the_same_by_both_paths(observation: Observation, data: st.DataObject) -> None:
    message = codec().encode_observation(observation)
    bodies = data.draw(st.lists(damage(message[FRAME_BYTES:]), max_size=8))
    for each in (message, *(message[:FRAME_BYTES] + body for body in bodies)):
        assert said_of(codec().decode_observation, each) == said_of(codec().judged, each)
        assert said_of(codec().identified, each) == said_of(judged_and_identified, each)


def judged_and_identified(message: bytes) -> tuple[Observation, bytes]:
    observation = codec().judged(message)
    return observation, identify(observation)


@given(observations())
def test_common_observations_take_the_fast_path(observation: Observation) -> None:
    """The quick way is taken, so that what else is said of it here says something."""
    plain = observation._replace(
        kind="assert", patch={"flag": False}, causes=(), cleared=(), retracts=(), link=None, subject=""
    )
    found = PlainReader(specimen().name, codec().branches).read(codec().encode_observation(plain), FRAME_BYTES)
    assert found == (plain, identify(plain)) or not plain.entity.isascii()


@given(st.integers(-(2**63), 2**63 - 1))
def test_longs(value: int) -> None:
    written = write_long(value)
    assert read_long(written, 0) == (value, len(written))


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "boolean"}, b"\2"),
        ({"type": "long"}, b"\x80" * 9 + b"\2"),
        ({"type": "long"}, b"\xff" * 12 + b"\1"),
        ({"type": "string"}, b"\1"),
        ({"type": "string"}, b"\4\xc3\x28"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\1"),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, b"\4"),
        ([{"type": "null"}, {"type": "long"}], b"\1\0"),
        ([{"type": "null"}, {"type": "long"}], b"\4\0"),
        ({"type": "array", "items": {"type": "long"}}, b"\x03\x04\2\4\0"),
        ({"type": "map", "values": {"type": "long"}}, b"\x01\x06\2a\2\0"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc"),
        ({"type": "double"}, b"1234567"),
        (TEXT_AND_DOUBLE, write_long(2**63 - 1) + b"12345678"),
        ({"type": "array", "items": {"type": "fixed", "name": "F", "size": 4}}, write_long(2**62) + b"abcdef"),
        ({"type": "array", "items": {"type": "string"}}, write_long(2**62) + b"\0\0\x7e"),
    ],
)
def test_unusual_messages_are_left_to_fastavro(schema: Node, data: bytes) -> None:
    assert ours(reader(schema), data) is NOT_READ
