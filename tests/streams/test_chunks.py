"""Chunks: written data is read back, and damaged bytes raise an error and never give another result."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import CorruptionError
from refold.streams.checksum import sealed, unsealed
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.snapshots.chunk import Chunk, ChunkWriter, Group
from refold_tests.encoded_entities import HASHES, NAMES, encoded, grouped

Table = dict[str, tuple[bytes, bytes]]
"""For each entity: its state hash, and its encoded form."""

BODIES = st.tuples(st.integers(0, 2**40), HASHES, st.binary(max_size=80))
TABLES = st.dictionaries(NAMES, BODIES, max_size=40).map(
    lambda table: {name: (body[1], encoded(name, *body)) for name, body in table.items()}
)


def hashes_of(table: Table) -> list[Group]:
    return grouped((name, state_hash) for name, (state_hash, _) in table.items())


def groups_of(table: Table) -> list[Group]:
    return grouped((name, packed) for name, (_, packed) in table.items())


def written(groups: list[Group], *, hashes: bool = False) -> list[bytes]:
    """The chunks of these groups."""
    writer = ChunkWriter(CHUNK_BYTES)
    add = writer.add_hashes if hashes else writer.add
    full = [data for place, members in groups if (data := add(place, members)) is not None]
    last = writer.close()
    assert writer.close() is None
    return full if last is None else [*full, last]


def preimage(hashes: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(struct.pack(">I", len(key)) + key + state_hash for key, state_hash in hashes)


@given(TABLES)
def test_chunk_round_trips(table: Table) -> None:
    chunks = [Chunk(data, "here") for data in written(groups_of(table))]
    assert [group for chunk in chunks for group in chunk.groups()] == groups_of(table)
    assert sum(map(len, chunks)) == len(table)
    expected = iter(hashes_of(table))
    for chunk in chunks:
        for group, (place, members) in enumerate(chunk.groups()):
            assert (chunk.group_of(place), chunk.places[group]) == (group, place)
            assert chunk.members(group) == members
            assert (place, chunk.hashes(group)) == (expected_group := next(expected))
            assert chunk.preimage(group) == preimage(expected_group[1])
            assert [chunk.find(group, key) for key, _ in members] == [packed for _, packed in members]
            assert chunk.find(group, members[0][0] + b"no") is None
        around = {near for place in chunk.places for near in (place - 1, place + 1)} - set(chunk.places)
        assert {chunk.group_of(place) for place in (around | {0, 2**18}) - set(chunk.places)} == {None}


@given(TABLES)
def test_hashes_are_written_without_bodies(table: Table) -> None:
    chunks = [Chunk(data, "here") for data in written(hashes_of(table), hashes=True)]
    found = [(place, chunk.hashes(group)) for chunk in chunks for group, place in enumerate(chunk.places)]
    assert found == hashes_of(table)


def test_place_is_never_split_and_a_full_chunk_is_returned(seed: int) -> None:
    rng = random.Random(seed)
    table: Table = {}
    for number in range(400):
        name, state_hash = f"everything/{number}", rng.randbytes(32)
        table[name] = state_hash, encoded(name, number, state_hash, rng.randbytes(rng.choice((1, 900, 3000))))
    chunks = written(groups_of(table))
    assert len(chunks) > 5
    assert all(len(data) >= CHUNK_BYTES for data in chunks[:-1])
    places = [place for data in chunks for place in Chunk(data, "here").places]
    assert places == sorted(set(places))
    # A place that alone is larger than a chunk becomes one chunk.
    large = [(b"%05d" % number, encoded("x", 1, bytes(32), rng.randbytes(500))) for number in range(300)]
    [alone] = written([(7, large)])
    assert list(Chunk(alone, "here").groups()) == [(7, large)]


def test_bytes_are_a_function_of_the_groups(seed: int) -> None:
    rng = random.Random(seed)
    table = {f"t/{number}": (bytes(32), encoded("t", 1, bytes(32), rng.randbytes(99))) for number in range(2000)}
    shuffled = list(table.items())
    rng.shuffle(shuffled)
    assert written(groups_of(dict(shuffled))) == written(groups_of(table))


def chunk_of(seed: int) -> bytes:
    rng = random.Random(seed)
    table: Table = {}
    for number in range(12):
        state_hash = rng.randbytes(32)
        table[f"t/{number}"] = state_hash, encoded("t", rng.choice((1, 300)), state_hash, rng.randbytes(20))
    [data] = written(groups_of(table))
    return data


def test_every_truncation_and_every_flipped_bit_is_an_error(seed: int) -> None:
    data = chunk_of(seed)
    for size in range(len(data)):
        with pytest.raises(CorruptionError, match="here"):
            Chunk(data[:size], "here")
    for at in range(len(data)):
        for bit in range(8):
            with pytest.raises(CorruptionError, match="here"):
                Chunk(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :], "here")
    for more in (b"\0", b"\xff" * 9, data):
        with pytest.raises(CorruptionError, match="here"):
            Chunk(data + more, "here")


@given(st.binary(max_size=200))
def test_other_bytes_under_a_valid_checksum_are_an_error(body: bytes) -> None:
    with pytest.raises(CorruptionError, match="here"):
        Chunk(sealed(body), "here")


def test_false_headers_are_an_error(seed: int) -> None:
    """With a correct checksum, a wrong format or length is detected before any look-up."""
    body = unsealed(chunk_of(seed), "it")
    for at in range(13):
        for value in range(256):
            if value != body[at]:
                with pytest.raises(CorruptionError, match="here"):
                    Chunk(sealed(body[:at] + bytes([value]) + body[at + 1 :]), "here")
