"""Layers that the kernel merges are those that Python merges: each answer, each digest, also of damaged chunks."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.avro.errors import CorruptionError
from refold.avro.kernel import Kernel, SlotDigests
from refold.streams.checksum import CRC_BYTES, sealed
from refold.streams.digest import Digests, bucket_digest
from refold.streams.partitioner import all_placed, place_of
from refold.streams.snapshots import layers as module
from refold.streams.snapshots.chunk import piece_of
from refold.streams.snapshots.hashing import RunningHashes
from refold.streams.snapshots.layers import PREIMAGES_BYTES_MAX, Later, Layers
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.both_folds import switched
from refold_tests.encoded_entities import encoded
from refold_tests.placed_entities import (
    ABSENT,
    DAMAGES,
    HEAD,
    NAMES,
    PLACES,
    TABLES,
    Damage,
    chunks_of_layers,
    groups_of,
    packed,
    place_in_name,
    placed_by_name,
    the_kernel,
)
from refold_tests.sealing import MemoryStore, Table, View


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


ALL = 1 << 30


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

    def size(self) -> Any:
        return self._merger.size()


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


@pytest.mark.parametrize("length", [40, 40_000])
def test_preimages_are_let_go_if_they_are_large(length: int) -> None:
    names = [f"t/{place}/{'n' * length}" for place in range(PREIMAGES_BYTES_MAX // 40_000 + 1)]
    table = dict.fromkeys(names, bytes(40))
    layers = by_kernel(chunks_of_layers([table], 1 << 20), ChunkStore(), Merged(when_asked))
    layers.rehash()
    assert (layers._merger is None) == (length == 40_000)
    changed = packed({names[0]: b"1" * 40})
    layers.put(names[0], changed[names[0]])
    assert layers.rehash().bucket(0) == bucket_digest([(names[0].encode(), b"1" * 32)])


def test_damaged_entity_does_not_hide_others() -> None:
    """No layer can be made of it and them."""
    layers = Layers(ChunkStore())
    good = packed({NAMES[0]: b"1" * 40})[NAMES[0]]
    layers.put(NAMES[0], good)
    layers.put(NAMES[1], b"damaged")
    for _ in range(2):
        with pytest.raises(CorruptionError):
            layers.make_layer()
        assert layers.get(NAMES[0]) == good


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
    absent = [f"{name}?" for name in NAMES]
    shuffled = random.Random(1).sample(NAMES + absent, 2 * len(NAMES))
    held = packed(dict.fromkeys(NAMES, bytes(40)))
    assert layers.get_each(shuffled) == [held.get(name) for name in shuffled]
    assert reads
    assert len(reads) == len(set(reads))
