"""What the kernel's merger of layers takes and returns, and how it finds entities in a chunk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.streams.partitioner import PLACE_BYTES
from refold.streams.snapshots.chunk import Chunk, chunks_of
from refold_tests.both_folds import switched
from refold_tests.encoded_entities import encoded
from refold_tests.placed_entities import (
    ABSENT,
    DAMAGES,
    HEAD,
    NAMES,
    PLACE_END,
    TABLES,
    Damage,
    chunks_of_layers,
    groups_of,
    packed,
    the_kernel,
)


@pytest.fixture(autouse=True)
def _kernel_does_not_panic() -> Iterator[None]:
    before = the_kernel().panics()
    yield
    assert the_kernel().panics() == before


# Looking for entities in a chunk


@given(
    TABLES.filter(bool), st.none() | st.sampled_from(DAMAGES), st.randoms(),
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(NAMES + ABSENT)), max_size=30),
)  # fmt: skip
def test_entities_are_found_in_a_chunk_as_by_python(
    table: dict[str, bytes], damage: Damage | None, chosen: random.Random, others: list[tuple[int, str]]
) -> None:
    """All of its entities, and also in groups that do not hold them, or do not exist."""
    [data] = chunks_of_layers([table], 1 << 20)
    chunk = Chunk(data, "a record")
    held = [(group, key) for group in range(len(chunk.places)) for key, _ in chunk.hashes(group)]
    asked = held + [(group, name.encode()) for group, name in others]
    groups, keys = [group for group, _ in asked], [bytes(PLACE_BYTES) + key for _, key in asked]
    assert chunk.find_each(groups[: len(held)], keys[: len(held)]) == [packed(table)[key.decode()] for _, key in held]
    read = data if damage is None else damage(data, chosen)
    found: list[object] = []
    for is_on in (True, False):
        with switched(on=is_on):
            try:
                found.append(Chunk(read, "a record", checked=True).find_each(groups, keys))
            except Exception as error:
                found.append(type(error))
    assert found[0] == found[1]


# The merger alone

FIRSTS = st.sampled_from((0, 1, 2**24, 2**63, 2**64 - 2, 2**64 - 1)) | st.integers(0, 2**64 - 1)


@given(st.lists(st.tuples(st.binary(max_size=120), FIRSTS), max_size=4), st.integers(0, 3), st.integers(0, 3))
def test_merger_takes_any_bytes(given_bytes: list[tuple[bytes, int]], groups: int, entities: int) -> None:
    """Also those that begin like a chunk."""
    merger = the_kernel().LayerMerger()
    for data, first in given_bytes:
        for each in (data, HEAD.pack(1, groups, entities, len(data) // 2) + data):
            assert type(merger.add(each, first)) is bool
    newest, older = merger.groups()
    assert all(0 <= place < 2**32 for place in newest)
    assert all(0 <= group < 2**64 for pair in older.items() for group in pair)
    merger.digests()


@pytest.mark.parametrize("first", [2**64, 2**70, -1, -(2**63)], ids=["2^64", "2^70", "-1", "-2^63"])
def test_number_outside_64_bits_is_refused(first: int) -> None:
    [data] = chunks_of(groups_of(packed({"t/1/a": bytes(40)})), 1 << 20)
    merger = the_kernel().LayerMerger()
    with pytest.raises(OverflowError):
        merger.add(data, first)
    assert merger.groups() == ({}, {})
    assert merger.digests() == []


def test_groups_beyond_the_greatest_number_are_left_to_python() -> None:
    [data] = chunks_of(groups_of(packed({"t/1/a": bytes(40), "t/2/a": bytes(40)})), 1 << 20)
    assert the_kernel().LayerMerger().add(data, 2**64 - 2)
    assert not the_kernel().LayerMerger().add(data, 2**64 - 1)


def test_place_beyond_the_last_slot_is_left_to_python() -> None:
    for place, is_taken in ((PLACE_END - 1, True), (PLACE_END, False), (2**32 - 1, False)):
        [data] = chunks_of([(place, [(b"k", encoded("k", 1, bytes(32)))])], 1 << 20)
        assert the_kernel().LayerMerger().add(data, 0) is is_taken


def test_digest_covers_the_newest_part_of_each_entity() -> None:
    """Computed here by hand, with the numbers of the groups."""

    def one(key: bytes, state_hash: bytes) -> bytes:
        return len(key).to_bytes(4, "big") + key + state_hash

    upper, lower = [(b"b", b"1" * 32), (b"d", b"2" * 32)], [(b"a", b"3" * 32), (b"b", b"4" * 32), (b"c", b"5" * 32)]
    merger = the_kernel().LayerMerger()
    for number, hashes in enumerate((upper, lower, lower)):
        [data] = chunks_of([(0x102, [(key, encoded("k", 1, each)) for key, each in hashes])], 1 << 20)
        assert merger.add(data, 10 * number)
    assert merger.groups() == ({0x102: 0}, {0: 10})
    covered = one(b"a", b"3" * 32) + one(b"b", b"1" * 32) + one(b"c", b"5" * 32) + one(b"d", b"2" * 32)
    buckets = bytes(64) + sha256(covered).digest() + bytes(32 * 253)
    assert merger.digests() == [(1, buckets)]


def test_entities_put_over_others_replace_them_and_change_their_slot_alone() -> None:
    """Computed here by hand."""

    def one(key: bytes, state_hash: bytes) -> bytes:
        return len(key).to_bytes(4, "big") + key + state_hash

    merger = the_kernel().LayerMerger()
    for place in (0x102, 0x2FF):
        [data] = chunks_of([(place, [(b"b", encoded("k", 1, b"1" * 32))])], 1 << 20)
        assert merger.add(data, place)
    assert [slot for slot, _ in merger.digests() or ()] == [1, 2]
    assert merger.digests() == []
    assert merger.put([0x102, 0x300], [one(b"a", b"2" * 32) + one(b"c", b"3" * 32), one(b"d", b"4" * 32)])
    assert merger.put([0x102], [one(b"b", b"5" * 32)])
    covered = one(b"a", b"2" * 32) + one(b"b", b"5" * 32) + one(b"c", b"3" * 32)
    first = bytes(64) + sha256(covered).digest() + bytes(32 * 253)
    third = sha256(one(b"d", b"4" * 32)).digest() + bytes(32 * 255)
    assert merger.digests() == [(1, first), (3, third)]
    assert merger.groups() == ({0x102: 0x102, 0x2FF: 0x2FF}, {})


@pytest.mark.parametrize("place", [PLACE_END, 2**32 - 1])
def test_place_that_does_not_exist_is_not_put(place: int) -> None:
    assert not the_kernel().LayerMerger().put([place], [bytes(40)])


@given(st.lists(st.tuples(st.sampled_from((0, 5, PLACE_END - 1)), st.binary(max_size=90)), max_size=6))
def test_merger_is_given_any_preimages(given_places: list[tuple[int, bytes]]) -> None:
    merger = the_kernel().LayerMerger()
    places, preimages = [place for place, _ in given_places], [own for _, own in given_places]
    assert type(merger.put(places, preimages)) is bool
    assert merger.digests() is not None


def test_chunk_below_after_digests_changes_them() -> None:
    merger, both = the_kernel().LayerMerger(), the_kernel().LayerMerger()
    upper, lower = ([(0x102, [(key, encoded("k", 1, key * 32))])] for key in (b"b", b"a"))
    found = []
    for number, groups in enumerate((upper, lower)):
        [data] = chunks_of(groups, 1 << 20)
        assert merger.add(data, number)
        found.append(merger.digests())
        assert both.add(data, number)
    assert found[0] != found[1] == both.digests()


def test_chunk_after_entities_that_were_put_is_refused() -> None:
    merger = the_kernel().LayerMerger()
    assert merger.put([0x102], [(1).to_bytes(4, "big") + b"k" + bytes(32)])
    [data] = chunks_of([(0x103, [(b"k", encoded("k", 1, bytes(32)))])], 1 << 20)
    assert not merger.add(data, 0)
