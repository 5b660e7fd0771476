"""Sealing and reading epochs of random tables: each epoch always returns the table from which it was sealed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from refold.avro.errors import CorruptionError
from refold.reducers.entity import pack, unpack
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.digest import root
from refold.streams.snapshots.chunk import Chunk, ChunkWriter
from refold.streams.snapshots.manifest import Manifest, OffsetSpan, encode_manifest
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.encoded_entities import grouped
from refold_tests.reference_root import reference_root
from refold_tests.sealing import MemoryStore, Table, View

LOG_ID = b"log" + bytes(13)
Sealed = tuple[Manifest, View, dict[str, bytes]]
"""A manifest, the view it was sealed of, and the state hashes in that."""


def assert_reads(
    store: MemoryStore, sealed: Sealed, partitions: int, names: list[str], open_chunks: int
) -> None:  # fmt: skip
    """Check that the epoch equals its view, as a whole and for each entity."""
    manifest, view, hashes = sealed
    layers = read_epoch(store, manifest, partitions, ChunkStore(open_chunks=open_chunks))
    for name in names:
        assert layers.get(name) == view.packed.get(name)
    rows = list(layers.rows())
    assert len(rows) == len(view.packed)
    assert dict(rows) == view.packed
    assert sorted(layers.names()) == sorted(view.packed)
    assert manifest.root == root(layers.rehash(), manifest.entities) == reference_root(hashes)
    for place, members in grouped(hashes.items()):
        assert layers.hashes(place) == members


def seal_random(
    rng: random.Random, store: MemoryStore, table: Table, epochs: int, closing_chance: float,
    settings: SnapshotSettings,
) -> list[Sealed]:  # fmt: skip
    """Epochs of a table that changes; at times another owner continues, or a definition is new."""
    sealer = Sealer(store, LOG_ID, table.partitions, settings=settings)
    found: list[Sealed] = []
    schemas = 2
    for _ in range(epochs):
        for _ in range(rng.choice((0, 1, 5, 5, 30, 200))):
            table.change(closing_chance)
        event = rng.random()
        if event < 0.05:
            table.types["everything"] = rng.randbytes(32)
            schemas += 1
        elif event < 0.1:
            table.types[f"more{schemas}"] = rng.randbytes(32)
            schemas += 1
        elif event < 0.2:
            sealer = Sealer(store, LOG_ID, table.partitions, settings=settings)
        view = table.view(schemas)
        found.append((sealer.seal(view), view, dict(table.hashes)))
    return found


@pytest.mark.parametrize("number", range(8))
def test_every_epoch_equals_its_table(seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    settings = SnapshotSettings(
        changed_min=rng.choice((1, 40)), chunk_bytes=rng.choice((1, 2_000, CHUNK_BYTES)),
        open_chunks=rng.choice((1, 512)),
    )  # fmt: skip
    partitions = rng.choice((1, 4, 512))
    table = Table(rng, rng.choice((5, 40, 100)), rng.randrange(partitions), partitions)
    store = MemoryStore()
    sealed = seal_random(rng, store, table, 25, rng.choice((0.1, 0.5, 0.95)), settings)
    for each in sealed:
        assert_reads(store, each, partitions, rng.sample(table._names, 5), settings.open_chunks)
    for (before, _, _), (after, _, _) in pairwise(sealed):
        assert before.epoch <= after.epoch
        assert (before == after) == (before.epoch == after.epoch)
        if after.previous:
            assert after.epoch == before.epoch or after.previous == before.digest


def test_deltas_bases_cold_spans_and_merged_indexes_all_occur() -> None:
    """Check that random tables reach these paths at all."""
    settings = SnapshotSettings(changed_min=5, chunk_bytes=200)
    rng = random.Random(1)
    table, store = Table(rng, 200), MemoryStore()
    manifests = [each for each, _, _ in seal_random(rng, store, table, 60, 0.7, settings)]
    assert {each.is_base for each in manifests} == {True, False}
    assert max(len(each.ranges) for each in manifests) > 2
    assert any(each.cold and not each.is_base for each in manifests)
    assert {each.month for manifest in manifests for each in manifest.cold} >= {"1970-01", "1970-02"}
    assert any(len(each.index) > 1 for each in manifests)
    grown = [(one, other) for one, other in pairwise(manifests) if other.previous and one.index != other.index]
    assert {one.index[0] == other.index[0] for one, other in grown if one.index} == {True, False}, (
        "added to, and merged"
    )


def test_delta_holds_changed_entities_and_base_holds_open_ones(seed: int) -> None:
    rng = random.Random(seed)
    table, store = Table(rng, 150), MemoryStore()
    sealer = Sealer(store, LOG_ID, 1, settings=SnapshotSettings(changed_min=20))
    before: dict[str, bytes] = {}
    for _ in range(40):
        for _ in range(rng.choice((1, 5, 30))):
            table.change(0.5)
        manifest = sealer.seal(table.view())
        names = set(table.packed) - table.closed
        if not manifest.is_base:
            names = {name for name, packed in table.packed.items() if before.get(name) != packed}
        found = {
            key.decode()
            for _, data in store.span(0, manifest.ranges[-1])
            for _, members in Chunk(data, "it").groups()
            for key, _ in members
        }
        assert found == names
        before = dict(table.packed)


def test_two_owners_write_the_same_bytes(seed: int) -> None:
    """One that continues all along, and one that is another at every epoch."""
    settings = SnapshotSettings(changed_min=20)
    rng = random.Random(seed)
    table, stores = Table(rng, 100), (MemoryStore(), MemoryStore())
    sealer = Sealer(stores[0], LOG_ID, 1, settings=settings)
    for _ in range(40):
        for _ in range(rng.choice((1, 5, 30))):
            table.change(0.5)
        view = table.view()
        assert sealer.seal(view) == Sealer(stores[1], LOG_ID, 1, settings=settings).seal(view)
        assert stores[0].held == stores[1].held
        assert stores[0].manifests == stores[1].manifests


# Damage


def spoil(rng: random.Random, store: MemoryStore, span: OffsetSpan) -> None:
    """Remove a record of the span, or flip a bit in it."""
    offset = rng.randrange(span.start, span.end)
    if rng.random() < 0.3:
        del store.held[offset]
        return
    data = bytearray(store.held[offset])
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    store.held[offset] = bytes(data)


PARTS = ("ranges", "cold", "index", "buckets")


def spans_of(manifest: Manifest, part: str) -> list[OffsetSpan]:
    spans: tuple[OffsetSpan, ...] = (
        getattr(manifest, part) if part != "cold" else tuple(each.span for each in manifest.cold)
    )
    return [span for span in spans if span.end > span.start]


def all_or_error(store: MemoryStore, sealed: Sealed) -> bool:
    """Whether an epoch that may be damaged was noticed to be; what it gives is right until then."""
    manifest, view, _ = sealed
    found: dict[str, bytes] = {}
    try:
        layers = read_epoch(store, manifest, 1, ChunkStore())
        for name in view.packed:
            assert layers.get(name) == view.packed[name]
        for name, packed in layers.rows():
            found[name] = packed
            assert packed == view.packed[name]
        for place in {place for place, _ in grouped(view.packed.items())}:
            layers.hashes(place)
    except CorruptionError:
        return True
    assert found == view.packed
    return False


@pytest.mark.parametrize("part", PARTS)
def test_every_damaged_record_is_detected(seed: int, part: str) -> None:
    rng = random.Random(seed)
    table, store = Table(rng, 80), MemoryStore()
    sealed = seal_random(rng, store, table, 12, 0.6, SnapshotSettings(changed_min=20, chunk_bytes=2_000))
    held = dict(store.held)
    tried = 0
    for each in sealed:
        for span in spans_of(each[0], part):
            spoil(rng, store, span)
            assert all_or_error(store, each)
            store.held = dict(held)
            tried += 1
    assert tried > 3


def test_whole_record_with_other_content_is_detected(seed: int) -> None:
    """What no hash of a state covers: a dedup state, under the same state hash and a right checksum."""
    rng = random.Random(seed)
    table, store = Table(rng, 20), MemoryStore()
    for _ in range(60):
        table.change(0.0)
    manifest = Sealer(store, LOG_ID, 1).seal(table.view())
    [span] = manifest.ranges
    writer = ChunkWriter(CHUNK_BYTES)
    for place, members in Chunk(store.held[span.start], "it").groups():
        entities = [(key, unpack("it", packed)) for key, packed in members]
        for _, entity in entities:
            entity.dedup_state.lowest_offset += 1
        writer.add(place, [(key, pack(entity)) for key, entity in entities])
    changed = writer.close()
    assert changed is not None
    store.held[span.start] = changed
    with pytest.raises(CorruptionError, match="do not match what was sealed"):
        read_epoch(store, manifest, 1, ChunkStore())


# A cold span is carried on from base to base without being read: what is damaged in one stays with later epochs.
@pytest.mark.parametrize("part", ["ranges", "index", "buckets", "manifest"])
def test_sealing_continues_after_damage(seed: int, part: str) -> None:
    """A log with a damaged snapshot record can be snapshot again, and before long nothing rests on the damage."""
    settings = SnapshotSettings(changed_min=20, chunk_bytes=2_000)
    rng = random.Random(seed)
    for _ in range(2):
        table, store = Table(rng, 60), MemoryStore()
        last, _, _ = seal_random(rng, store, table, 12, 0.6, settings)[-1]
        if part == "manifest":
            store.manifests[last.epoch] = encode_manifest(last)[:-1]
        else:
            spoil(rng, store, rng.choice(spans_of(last, part)))
        sealer = Sealer(store, LOG_ID, 1, settings=settings)
        noticed = []
        for _ in range(8):
            for _ in range(60):
                table.change(0.6)
            view = table.view(99)
            sealed = sealer.seal(view), view, dict(table.hashes)
            noticed.append(all_or_error(store, sealed))
        assert not noticed[-1]


def test_damaged_index_of_unchanged_entities_is_replaced(seed: int) -> None:
    """Only merging it with what closed since reads all of the index."""
    settings = SnapshotSettings(changed_min=1, chunk_bytes=100)
    rng = random.Random(seed)
    store, table = MemoryStore(), Table(rng, 60)
    while len(table.closed) < 20:
        table.change(1.0)
    [index] = Sealer(store, LOG_ID, 1, settings=settings).seal(table.view()).index
    for _ in range(40):
        table.change(1.0)
    view = table.view()
    held, manifests = dict(store.held), dict(store.manifests)
    for offset in range(index.start, index.end):
        store.held, store.manifests = {**held, offset: held[offset][:-1]}, dict(manifests)
        manifest = Sealer(store, LOG_ID, 1, settings=settings).seal(view)
        assert index not in manifest.index
        assert not all_or_error(store, (manifest, view, dict(table.hashes)))


def test_any_flipped_byte_of_a_chunk_is_reported_as_damage(seed: int) -> None:
    """Chunks are used before their span's digest is known."""
    rng = random.Random(seed)
    store, table = MemoryStore(), Table(rng, 30)
    sealer = Sealer(store, LOG_ID, 1)
    sealed = []
    for count in (90, 4, 4):
        for _ in range(count):
            table.change(0.0)
        sealed.append(sealer.seal(table.view()))
    manifest = sealed[-1]
    assert len(manifest.ranges) > 1
    for span in manifest.ranges:
        for offset in range(span.start, span.end):
            whole = store.held[offset]
            for at in range(len(whole)):
                store.held[offset] = whole[:at] + bytes([whole[at] ^ rng.choice((1, 128, 255))]) + whole[at + 1 :]
                with pytest.raises(CorruptionError):
                    read_epoch(store, manifest, 1, ChunkStore())
            store.held[offset] = whole
