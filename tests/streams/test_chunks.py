"""Chunks: written data is read back, and damaged bytes raise an error and never give another result."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

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


Written = dict[int, dict[bytes, tuple[bytes, bytes]]]
"""For each place: the state hash and the stored form of each key."""

KEYS = st.sampled_from([b"", b"a", b"aa", b"a\0", b"b", b"\0\0\0\1a", bytes(40)]) | st.binary(max_size=50)
FORMS = st.sampled_from([b"", b"", b"form"]) | st.binary(max_size=80)
MEMBERS = st.dictionaries(KEYS, st.tuples(HASHES, FORMS), min_size=1, max_size=6)
WRITTEN = st.dictionaries(
    st.sampled_from([0, 1, 2, 255, 256, 2**18 - 1]) | st.integers(0, 2**32 - 1), MEMBERS, max_size=8
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


def chunks_by_piece(table: Written, chunk_bytes: int) -> list[tuple[bytes, Written]]:
    """Each chunk of a table, and what it holds. Its pieces are put: stored forms may be empty, and hashes any."""
    writer, found = ChunkWriter(chunk_bytes), list[tuple[bytes, Written]]()
    held: Written = {}
    for place in sorted(table):
        members = {key: table[place][key] for key in sorted(table[place])}
        held[place] = members
        hashes = preimage([(key, state_hash) for key, (state_hash, _) in members.items()])
        full = writer.put(place, hashes, [form for _, form in members.values()])
        if full is not None:
            found.append((full, held))
            held = {}
    last = writer.close()
    return found if last is None else [*found, (last, held)]


@given(WRITTEN, st.sampled_from((1, 100, CHUNK_BYTES)), KEYS, st.randoms())
def test_chunk_returns_what_was_put(table: Written, chunk_bytes: int, absent: bytes, chosen: random.Random) -> None:
    """In any order of the questions, each also asked of a chunk of which nothing else was read."""
    chunks = chunks_by_piece(table, chunk_bytes)
    assert {place for _, held in chunks for place in held} == set(table)
    for data, held in chunks:
        checks: list[Callable[[Chunk], None]] = [
            lambda chunk, held=held: _check_tables(chunk, held),  # type: ignore[misc]
            lambda chunk, held=held: _check_rows(chunk, held, chosen),  # type: ignore[misc]
        ]
        for group, (place, members) in enumerate(held.items()):
            checks.append(lambda chunk, at=group, of=members: _check_group(chunk, at, of))  # type: ignore[misc]
            checks.append(lambda chunk, at=group, of=members: _check_finds(chunk, at, of, absent))  # type: ignore[misc]
            checks.append(lambda chunk, at=group, of=place: _check_place(chunk, at, of))  # type: ignore[misc]
        shared = Chunk(data, "here")
        chosen.shuffle(checks)
        for check in checks:
            check(Chunk(data, "here", checked=True))
            check(shared)


def _check_tables(chunk: Chunk, held: Written) -> None:
    assert len(chunk) == sum(map(len, held.values()))
    assert list(chunk.places) == list(held)
    assert chunk.preimages() == [chunk.preimage(group) for group in range(len(held))]
    assert list(chunk.groups()) == [
        (place, [(key, form) for key, (_, form) in members.items()]) for place, members in held.items()
    ]


def _check_rows(chunk: Chunk, held: Written, chosen: random.Random) -> None:
    """Rows have text keys, so those of other chunks are not read."""
    if any(not _is_text(key) for members in held.values() for key in members):
        return
    wanted = bytearray(chosen.randrange(2) for _ in held)
    assert chunk.rows(wanted) == [
        (key.decode(), form)
        for is_wanted, members in zip(wanted, held.values(), strict=True) if is_wanted
        for key, (_, form) in members.items()
    ]  # fmt: skip


def _check_place(chunk: Chunk, group: int, place: int) -> None:
    assert chunk.group_of(place) == group


def _check_group(chunk: Chunk, group: int, members: dict[bytes, tuple[bytes, bytes]]) -> None:
    hashes = [(key, state_hash) for key, (state_hash, _) in members.items()]
    assert chunk.preimage(group) == preimage(hashes)
    assert chunk.hashes(group) == hashes
    assert chunk.members(group) == [(key, form) for key, (_, form) in members.items()]
    assert chunk.parts(group) == [
        (key, preimage([(key, state_hash)]), form) for key, (state_hash, form) in members.items()
    ]


def _check_finds(chunk: Chunk, group: int, members: dict[bytes, tuple[bytes, bytes]], absent: bytes) -> None:
    near = {each for key in members for each in (key, key[:-1], key + b"\0", key + bytes(32))}
    for key in near | {absent, b""}:
        assert chunk.find(group, key) == (members[key][1] if key in members else None)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


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
