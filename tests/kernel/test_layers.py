"""Layers that the kernel merges are those that Python merges: each answer, each digest, also of damaged chunks."""

from __future__ import annotations

import os
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
from refold.streams.partitioner import PLACE_BYTES, all_placed, place_of
from refold.streams.snapshots import layers as module
from refold.streams.snapshots.chunk import Chunk, chunks_of, piece_of
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
ALL = 1 << 30
HEAD = struct.Struct(">BIII")


def values_of(*sizes: int) -> st.SearchStrategy[bytes]:
    """The state hash and the value of an entity's state. Equal ones occur."""
    return st.builds(
        lambda number, size: random.Random(number).randbytes(32 + size), st.integers(0, 9), st.sampled_from(sizes)
    )


def tables_of(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[dict[str, bytes]]:
    return st.dictionaries(st.sampled_from(NAMES), values, max_size=60) | st.dictionaries(
        st.sampled_from(FEW_NAMES), values, min_size=1
    )


TABLES = tables_of(values_of(0, 90)) | tables_of(values_of(0, 1, 90))


class Merged(NamedTuple):
    """How the layers are given to the kernel.

    Attributes:
        later: What computes the digests.
        chunks: How many chunks the merger takes before it leaves all of them to Python; None for all.
        puts: How often entities can be put before it leaves the digests to Python; None for always.
    """

    later: Later[SlotDigests | None]
    chunks: int | None = None
    puts: int | None = None


def at_once(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    digests = work()
    return lambda: digests


def when_asked(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    return work


def without_result(work: Callable[[], SlotDigests | None]) -> Callable[[], SlotDigests | None]:
    """As if the kernel panicked."""
    return lambda: None


class Refusing:
    """A kernel whose merger leaves its work to Python at some time, as `how` says."""

    def __init__(self, kernel: Kernel, how: Merged) -> None:
        self._kernel = kernel
        self._chunks = ALL if how.chunks is None else how.chunks
        self._puts = ALL if how.puts is None else how.puts

    def LayerMerger(self) -> Any:  # noqa: N802
        self._merger = self._kernel.LayerMerger()
        return self

    def add(self, data: bytes, first: int) -> bool:
        self._chunks -= 1
        return self._chunks >= 0 and self._merger.add(data, first)

    def groups(self) -> Any:
        return self._merger.groups()

    def put(self, places: Sequence[int], preimages: Sequence[bytes]) -> bool:
        self._puts -= 1
        return self._puts >= 0 and self._merger.put(places, preimages)

    def digests(self) -> Any:
        return self._merger.digests()


@pytest.fixture(autouse=True)
def _places_are_in_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names whose places are equal, and the highest place, are too rare to be found."""
    monkeypatch.setattr(module, "place_of", place_in_name)
    monkeypatch.setattr(module, "all_placed", placed_by_name)


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


def placed_by_name(entities: Sequence[str]) -> list[bytes]:
    return [place_in_name(entity).to_bytes(PLACE_BYTES, "big") + entity.encode() for entity in entities]


def packed(values: Mapping[str, bytes]) -> States:
    """A state whose value has one byte is left to Python by the kernel."""
    return {
        name: encoded(name, 1, value[:32], value[32:], highest=-1 if len(value) == 33 else 7)
        for name, value in values.items()
    }


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
    kernel: Any = Refusing(the_kernel(), how)
    layers.add_all(((f"record {number}", data) for number, data in enumerate(chunks)), kernel, how.later)
    return layers


def state_of(layers: Layers, names: Sequence[str], places: Sequence[int]) -> list[object]:
    """The answer to each question."""
    return [
        {name: layers.get(name) for name in names},
        layers.get_each(names),
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
    assert layers.get_each(NAMES) == [table.get(name) for name in NAMES]
    digests = layers.rehash()
    hashes = dict(groups_of({name: value[:32] for name, value in values.items()}))
    assert {place: digests.bucket(place) for place in PLACES} == {
        place: bucket_digest(hashes.get(place, [])) for place in PLACES
    }


HOW = st.builds(
    Merged,
    st.sampled_from((at_once, when_asked, without_result)),
    st.none() | st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 3),
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


ROUNDS = st.lists(st.tuples(TABLES, st.sampled_from(("nothing", "layer", "digests", "pieces"))), max_size=6)


@given(st.lists(TABLES, max_size=3), CHUNK_BYTES, HOW, st.sampled_from((0, 1 << 20)), ROUNDS)
def test_entities_put_again_and_again_are_hashed_as_by_python(
    tables: list[dict[str, bytes]], chunk_bytes: int, how: Merged, memory_bytes: int,
    rounds: list[tuple[dict[str, bytes], str]],
) -> None:  # fmt: skip
    """In layers of entities and of pieces, with questions for the digests between them."""
    chunks = chunks_of_layers(tables, chunk_bytes)
    layers = by_kernel(chunks, ChunkStore(memory_bytes, chunk_bytes=300), how)
    newest = {name: value for table in tables for name, value in table.items()}
    for table, then in rounds:
        newest |= table
        if then == "pieces":
            layers.put_pieces(piece_of(*group) for group in groups_of(packed(table)))
            continue
        for name, value in packed(table).items():
            layers.put(name, value)
        if then == "layer":
            layers.make_layer()
        elif then == "digests":
            assert_expected(layers, newest)
    assert_expected(layers, newest)


@pytest.mark.parametrize("second", ["refused", "pieces", "unusual"])
def test_digests_of_a_layer_are_not_lost_when_the_next_one_is_left_to_python(second: str) -> None:
    below, first = dict.fromkeys(NAMES, bytes(40)), {NAMES[0]: b"1" * 40, NAMES[-1]: b"2" * 40}
    above = {NAMES[1]: b"3" * (33 if second == "unusual" else 40)}
    how = Merged(when_asked, puts=1 if second == "refused" else None)
    layers = by_kernel(chunks_of_layers([below], 400), ChunkStore(), how)
    for name, state in packed(first).items():
        layers.put(name, state)
    layers.make_layer()
    assert layers._merger is not None
    if second == "pieces":
        layers.put_pieces(piece_of(*group) for group in groups_of(packed(above)))
    else:
        layers.put(NAMES[1], packed(above)[NAMES[1]])
        layers.make_layer()
    assert layers._merger is None
    assert_expected(layers, below | first | above)


def test_preimages_are_let_go_when_digests_were_asked_for_twice() -> None:
    chunks = chunks_of_layers([dict.fromkeys(NAMES, bytes(40))], 400)
    layers = by_kernel(chunks, ChunkStore(), Merged(when_asked))
    layers.rehash()
    assert layers._merger is not None
    layers.put(NAMES[0], encoded(NAMES[0], 1, b"h" * 32))
    layers.rehash()
    assert layers._merger is None
    assert not layers._unhashed


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
    monkeypatch.setattr(module, "all_placed", all_placed)
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


def test_spilled_chunks_are_read_once_for_many_entities(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ChunkStore(0, open_chunks=1)
    layers = by_kernel(chunks_of_layers([dict.fromkeys(NAMES, bytes(40))], 400), store, Merged(when_asked))
    reads: list[tuple[int, int, int]] = []
    read = os.pread

    def noted(*place: int) -> bytes:
        file, size, at = place
        reads.append((file, size, at))
        return read(file, size, at)

    monkeypatch.setattr(os, "pread", noted)
    shuffled = random.Random(1).sample(NAMES, len(NAMES))
    assert layers.get_each(shuffled) == [packed(dict.fromkeys(shuffled, bytes(40)))[name] for name in shuffled]
    assert len(reads) == len(set(reads))


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
