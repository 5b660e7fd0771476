"""Layers that the kernel merges are those that Python merges: each answer, each digest, also of damaged chunks."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import CorruptionError
from refold.avro.kernel import Kernel, SlotDigests, find_kernel
from refold.streams.checksum import CRC_BYTES, sealed
from refold.streams.digest import Digests, bucket_digest
from refold.streams.partitioner import place_of
from refold.streams.snapshots import layers as module
from refold.streams.snapshots.chunk import chunks_of
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import Later, Layers
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.both_folds import switched
from refold_tests.encoded_entities import encoded, grouped
from refold_tests.sealing import MemoryStore, Table, View

States = dict[str, bytes]
"""The stored form of each entity."""

PLACES = [0, 1, 255, 256, *range(0x300, 0x318), 0x3FFFE, 0x3FFFF]
"""The lowest and the highest place, and so many of one slot that its buckets are hashed together."""
IDS = ["a", "aa", "a\0", "é", "\U00010000", "long" * 20]
NAMES = [f"t/{place}/{each}" for place in PLACES for each in IDS]
FEW_NAMES = [f"t/{place}/{each}" for place in (0, 0x3FFFF) for each in IDS[:4]]
PLACE_END = 1 << 18
HEAD = struct.Struct(">BIII")
VALUES = st.builds(
    lambda number, size: random.Random(number).randbytes(32 + size), st.integers(0, 9), st.sampled_from((0, 1, 90))
)
"""The state hash and the value of an entity's state. Equal ones occur."""
TABLES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=60) | st.dictionaries(
    st.sampled_from(FEW_NAMES), VALUES, min_size=1
)


class Merged(NamedTuple):
    """How the layers are given to the kernel.

    Attributes:
        later: What computes the digests.
        chunks: How many chunks the merger takes before it leaves all of them to Python; None for all.
    """

    later: Later[SlotDigests | None]
    chunks: int | None = None


def at_once(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    digests = work()
    return lambda: digests


def when_asked(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    return work


def without_result(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    """As if the kernel panicked."""
    return lambda: None


class Refusing:
    """A kernel whose merger leaves the layers to Python after some chunks."""

    def __init__(self, kernel: Kernel, chunks: int) -> None:
        self._kernel = kernel
        self._left = chunks

    def LayerMerger(self) -> Any:  # noqa: N802
        self._merger = self._kernel.LayerMerger()
        return self

    def add(self, data: bytes, first: int) -> bool:
        self._left -= 1
        return self._left >= 0 and self._merger.add(data, first)

    def groups(self) -> Any:
        return self._merger.groups()

    def digests(self) -> Any:
        return self._merger.digests()


@pytest.fixture(autouse=True)
def _places_are_in_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names whose places are equal, and the highest place, are too rare to be found."""
    monkeypatch.setattr(module, "place_of", place_in_name)


@pytest.fixture(autouse=True)
def _kernel_does_not_panic() -> Iterator[None]:
    before = the_kernel().panics()
    yield
    assert the_kernel().panics() == before


def the_kernel() -> Kernel:
    kernel = find_kernel().kernel
    assert kernel is not None
    return kernel


def place_in_name(entity: str) -> int:
    return int(entity.split("/")[1])


def packed(values: Mapping[str, bytes]) -> States:
    return {name: encoded(name, 1, value[:32], value[32:]) for name, value in values.items()}


def groups_of(table: Mapping[str, bytes]) -> list[tuple[int, list[tuple[bytes, bytes]]]]:
    return grouped(table.items(), place_in_name)


def chunks_of_layers(tables: Sequence[Mapping[str, bytes]], chunk_bytes: int) -> list[bytes]:
    """The chunks of all layers, those of the last table first."""
    return [data for table in reversed(tables) for data in chunks_of(groups_of(packed(table)), chunk_bytes)]


def by_python(chunks: Sequence[bytes], store: ChunkStore) -> Layers:
    layers = Layers(store)
    for number, data in enumerate(chunks):
        layers.add(data, f"record {number}", checked=True)
    return layers


def by_kernel(chunks: Sequence[bytes], store: ChunkStore, how: Merged) -> Layers:
    layers = Layers(store)
    kernel: Any = the_kernel() if how.chunks is None else Refusing(the_kernel(), how.chunks)
    layers.add_all(((f"record {number}", data) for number, data in enumerate(chunks)), kernel, how.later)
    return layers


def state_of(layers: Layers, names: Sequence[str], places: Sequence[int]) -> list[object]:
    """The answer to each question."""
    return [
        {name: layers.get(name) for name in names},
        list(layers.rows()),
        list(layers.pieces()),
        list(layers.names()),
        [layers.hashes(place) for place in places],
        [layers.members(place) for place in places],
    ]


def digests_of(digests: Digests) -> list[bytes]:
    slots = sorted({place >> 8 for place in PLACES} | {7})
    return [
        *(digests.slot(slot) for slot in slots),
        *(digests.bucket(place) for slot in slots for place in range(slot << 8, (slot + 1) << 8)),
    ]


def assert_expected(layers: Layers, values: Mapping[str, bytes]) -> None:
    """Compare with the newest value of each entity."""
    table = packed(values)
    assert sorted(layers.rows()) == sorted(table.items())
    assert {name: layers.get(name) for name in NAMES} == {name: table.get(name) for name in NAMES}
    digests = layers.rehash()
    hashes = dict(groups_of({name: value[:32] for name, value in values.items()}))
    assert {place: digests.bucket(place) for place in PLACES} == {
        place: bucket_digest(hashes.get(place, [])) for place in PLACES
    }


HOW = st.builds(
    Merged, st.sampled_from((at_once, when_asked, without_result)), st.none() | st.none() | st.integers(0, 9)
)
CHUNK_BYTES = st.sampled_from((1, 150, 400, 1 << 20))
ABSENT = ["t/0/b", "t/2/a", "t/255/", "t/262143/a\0\0", "t/262142/e"]


@given(
    st.lists(TABLES, max_size=5), CHUNK_BYTES, HOW, st.sampled_from((0, 1 << 20)), TABLES,
    st.sampled_from((1, 500, 1 << 20)), st.booleans(),
)  # fmt: skip
def test_kernel_merges_layers_as_python(
    tables: list[dict[str, bytes]], chunk_bytes: int, how: Merged, memory_bytes: int, put: dict[str, bytes],
    put_bytes: int, hashes_first: bool,
) -> None:  # fmt: skip
    """Also those above which entities are put, before or after the first digests are asked for."""
    chunks = chunks_of_layers(tables, chunk_bytes)
    stores = [ChunkStore(memory_bytes, put_bytes=put_bytes, chunk_bytes=300) for _ in range(2)]
    python, native = by_python(chunks, stores[0]), by_kernel(chunks, stores[1], how)
    newest = {name: value for table in tables for name, value in table.items()}
    if hashes_first:
        assert digests_of(native.rehash()) == digests_of(python.rehash())
    assert state_of(native, NAMES + ABSENT, PLACES) == state_of(python, NAMES + ABSENT, PLACES)
    if hashes_first:
        assert_expected(native, newest)
    for name, value in packed(put).items():
        python.put(name, value)
        native.put(name, value)
    assert state_of(native, NAMES + ABSENT, PLACES) == state_of(python, NAMES + ABSENT, PLACES)
    assert digests_of(native.rehash()) == digests_of(python.rehash())
    assert_expected(native, newest | put)
    assert digests_of(native.rehash()) == digests_of(python.rehash())


def test_layers_are_merged_by_the_kernel_and_hashed_in_a_thread() -> None:
    """Each of its layers overlaps the others in part."""
    tables = [{name: bytes([number]) * 40 for name in NAMES[number::3] + NAMES[:9]} for number in range(4)]
    chunks = chunks_of_layers(tables, 400)
    asked: list[bool] = []
    with RunningHashes() as hashes:

        def later(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
            asked.append(True)
            return hashes.later(work)

        native = by_kernel(chunks, ChunkStore(), Merged(later))
        assert not native._unhashed
        assert native._newest
        assert native._older
        assert_expected(native, {name: value for table in tables for name, value in table.items()})
    assert asked == [True]


# Damage


def flipped(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with a byte changed, mostly in its tables."""
    end = tables_end(data) if chosen.random() < 0.7 else len(data)
    at = chosen.randrange(end)
    return data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :]


def truncated(data: bytes, chosen: random.Random) -> bytes:
    return data[: chosen.randrange(len(data))]


def swapped(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with two numbers of its tables swapped."""
    numbers = [data[at : at + 4] for at in range(HEAD.size, tables_end(data), 4)]
    one, other = chosen.randrange(len(numbers)), chosen.randrange(len(numbers))
    numbers[one], numbers[other] = numbers[other], numbers[one]
    return data[: HEAD.size] + b"".join(numbers) + data[tables_end(data) :]


def lengthened(data: bytes, chosen: random.Random) -> bytes:
    """A chunk with a number that exceeds the end: in its head, in its tables, or as a key's length."""
    at = chosen.choice((1, 5, 9, chosen.randrange(HEAD.size, tables_end(data), 4), tables_end(data)))
    number = chosen.choice((len(data), len(data) + 1, 2**31, 2**32 - 1))
    return data[:at] + number.to_bytes(4, chosen.choice(("big", "little"))) + data[at + 4 :]


def tables_end(data: bytes) -> int:
    groups, entities = struct.unpack_from(">II", data, 1)
    end: int = 4 * (3 * groups + entities)
    return HEAD.size + end


Damage = Callable[[bytes, random.Random], bytes]
DAMAGES: tuple[Damage, ...] = (flipped, truncated, swapped, lengthened)


def result_of(layers: Callable[[], Layers]) -> object:
    """The digests and answers of damaged layers, or CorruptionError. The reader of an epoch asks for digests first."""
    try:
        found = layers()
        digests = digests_of(found.rehash())
    except CorruptionError:
        return CorruptionError
    return digests, answers_of(found)


def answers_of(layers: Layers) -> list[object]:
    """The answer to each question, or its error: a caller asks none before all bytes are checked."""
    questions: list[Callable[[], object]] = [
        *(partial(layers.get, name) for name in NAMES),
        lambda: list(layers.rows()), lambda: list(layers.pieces()), lambda: list(layers.names()),
    ]  # fmt: skip
    found: list[object] = []
    for question in questions:
        try:
            found.append(question())
        except Exception as error:
            found.append(type(error))
    return found


@given(st.lists(TABLES.filter(bool), min_size=1, max_size=4), CHUNK_BYTES, HOW, st.sampled_from(DAMAGES), st.randoms())
def test_damaged_chunks_are_merged_as_by_python(
    tables: list[dict[str, bytes]], chunk_bytes: int, how: Merged, damage: Damage, chosen: random.Random
) -> None:
    chunks = chunks_of_layers(tables, chunk_bytes)
    at = chosen.randrange(len(chunks))
    chunks[at] = damage(chunks[at], chosen)
    python = result_of(lambda: by_python(chunks, ChunkStore()))
    assert result_of(lambda: by_kernel(chunks, ChunkStore(), how)) == python


@pytest.mark.parametrize(
    ("upper", "lower"),
    [
        (None, [1, 1, 5]),
        (None, [5, 1, 9]),
        (1, [5, 1, 9]),
        (1, [1, 1, 5]),
    ],
    ids=["repeated", "unsorted", "unsorted below another", "repeated below another"],
)
def test_chunk_with_places_out_of_order_is_merged_as_by_python(upper: int | None, lower: list[int]) -> None:
    """With two numbers of a table swapped, or a byte of one changed."""
    tables = [{f"t/{place}/{each}": bytes([place]) * 32 for place in (1, 5, 9)} for each in ("a", "b")]
    [data] = chunks_of_layers(tables[:1], 1 << 20)
    damaged = data[: HEAD.size] + struct.pack("<3I", *lower) + data[HEAD.size + 12 :]
    above = [] if upper is None else chunks_of_layers([{f"t/{upper}/b": b"u" * 32}], 1 << 20)
    assert_merged_equally([*above, damaged])


def test_chunk_with_an_empty_group_is_merged_as_by_python() -> None:
    """Its preimage begins where the next one begins. Python refuses it if another chunk has its place."""
    values = {f"t/{place}/a": bytes([place]) * 32 for place in (1, 5)}
    [data] = chunks_of_layers([values], 1 << 20)
    starts = HEAD.size + 16
    damaged = data[:starts] + struct.pack("<2I", 0, 0) + data[starts + 8 :]
    other = chunks_of_layers([{"t/1/b": b"u" * 32}], 1 << 20)
    assert_merged_equally([*other, damaged])
    assert_merged_equally([damaged, *other])


def test_chunk_with_keys_out_of_order_is_merged_as_by_python() -> None:
    """A byte of a key was changed."""
    [data] = chunks_of_layers([{f"t/1/{each}": each.encode() * 32 for each in "abc"}], 1 << 20)
    damaged = data.replace(b"t/1/a", b"t/1/z")
    above = chunks_of_layers([{f"t/1/{each}": each.encode() * 32 for each in "bd"}], 1 << 20)
    assert_merged_equally([*above, damaged])
    assert_merged_equally([damaged, *above])


def assert_merged_equally(chunks: Sequence[bytes]) -> None:
    python = result_of(lambda: by_python(chunks, ChunkStore()))
    assert result_of(lambda: by_kernel(chunks, ChunkStore(), Merged(at_once))) == python


@pytest.mark.parametrize("number", range(4))
def test_damaged_epoch_is_refused(seed: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the damage, also with a checksum that is right: the digest of its span covers every byte."""
    monkeypatch.setattr(module, "place_of", place_of)
    rng = random.Random(f"{seed}/{number}")
    table, store = Table(rng, 60), MemoryStore()
    sealer = Sealer(store, b"l" * 16, 1, settings=SnapshotSettings(chunk_bytes=rng.choice((300, 3_000))))
    manifests = []
    for offset in (100, 110, 140):
        table.change_up_to(offset)
        view = table.view()
        manifests.append(sealer.seal(View(replace(view.epoch_state, closing={}), view.packed, view._touched)))
    manifest = manifests[-1]
    assert len(manifest.ranges) > 1
    for kernel in (True, False):
        with switched(on=kernel):
            assert dict(read_epoch(store, manifest, 1, ChunkStore()).rows()) == table.packed
    for _ in range(40):
        damage, offset = rng.choice(DAMAGES), rng.choice(list(store.held))
        whole = store.held[offset]
        damaged = damage(whole, rng)
        if rng.random() < 0.5:
            damaged = sealed(damaged[:-CRC_BYTES])
        if damaged == whole:
            continue
        store.held[offset] = damaged
        for kernel in (True, False):
            with switched(on=kernel), pytest.raises(CorruptionError):
                read_epoch(store, manifest, 1, ChunkStore())
        store.held[offset] = whole


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
