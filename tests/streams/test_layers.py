"""Layers of chunks compared with a dict: the same entities, hashes and root after any spills, merges and filing."""

from __future__ import annotations

import hashlib
import os
import random
from itertools import chain

import pytest

from refold.avro.errors import CorruptionError
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.digest import Digests, bucket_digest, differing_places, root, root_of
from refold.streams.snapshots.chunk import ChunkWriter, piece_of
from refold.streams.snapshots.layers import LAYERS_TO_MERGE, Layers
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.damaged import with_changed_end
from refold_tests.encoded_entities import encoded, grouped, place
from refold_tests.reference_root import reference_root, reference_slot


class Model:
    """The expected content of the layers, with the given state hashes."""

    def __init__(self, rng: random.Random, names: int) -> None:
        self.rng = rng
        self.names = [f"everything/{number}" for number in range(names)] + ["ä/\U00010000", "t/" + "long" * 90]
        self.packed: dict[str, bytes] = {}
        self.hashes: dict[str, bytes] = {}

    def changed(self) -> str:
        """Add an entity, or change the value of one."""
        name = self.rng.choice(self.names)
        self.hashes[name] = self.rng.randbytes(32)
        size = self.rng.choice((0, 30, 30, 2_000))
        self.packed[name] = encoded(name, self.rng.choice((1, 200)), self.hashes[name], self.rng.randbytes(size))
        return name

    def chunks(self, names: set[str]) -> list[bytes]:
        """Return a layer of these as in a snapshot."""
        writer = ChunkWriter(CHUNK_BYTES)
        groups = grouped((name, self.packed[name]) for name in names)
        full = [data for each, members in groups if (data := writer.add(each, members)) is not None]
        return [*full, *filter(None, [writer.close()])]

    def members(self, where: int, given: dict[str, bytes]) -> list[tuple[bytes, bytes]]:
        return sorted((name.encode(), found) for name, found in given.items() if place(name) == where)

    def assert_held(self, layers: Layers) -> None:
        """Compare the result of every query with the dicts."""
        rows = list(layers.rows())
        assert len(rows) == len(self.packed)
        assert dict(rows) == self.packed
        assert sorted(layers.names()) == sorted(self.packed)
        assert list(layers.pieces()) == [piece_of(*group) for group in grouped(self.packed.items())]
        digests = layers.rehash()
        assert root(digests, len(self.packed)) == root_of(self.hashes.items()) == reference_root(self.hashes)
        for name in self.rng.sample(self.names, 5):
            self.assert_one(layers, name)
            assert digests.bucket(place(name)) == bucket_digest(self.members(place(name), self.hashes))

    def assert_one(self, layers: Layers, name: str) -> None:
        assert layers.get(name) == self.packed.get(name)
        assert layers.get(f"{name}?") is None
        assert layers.hashes(place(name)) == self.members(place(name), self.hashes)
        assert layers.members(place(name)) == self.members(place(name), self.packed)


@pytest.mark.parametrize("number", range(8))
def test_layers_return_what_was_put(seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    model = Model(rng, rng.choice((3, 60, 400)))
    store = ChunkStore(
        memory_bytes=rng.choice((0, 5_000, 1 << 20)),
        open_chunks=rng.choice((1, 3, 512)),
        put_bytes=rng.choice((1, 200, 3_000)),
    )
    layers = Layers(store)
    counts = [rng.choice((0, 40, 300)), *rng.choices((0, 30), k=rng.randrange(5))]  # a snapshot's base and deltas
    snapshot = [model.chunks({model.changed() for _ in range(count)}) for count in counts]
    for data in chain.from_iterable(reversed(snapshot)):
        layers.add(data, "a record")
    for _ in range(rng.choice((40, 500))):
        action = rng.random()
        if action < 0.9:
            name = model.changed()
            layers.put(name, model.packed[name])
            model.assert_one(layers, rng.choice((name, rng.choice(model.names))))
        elif action < 0.92:
            names = {model.changed() for _ in range(rng.choice((1, 20)))}
            layers.put_pieces(piece_of(*group) for group in grouped((name, model.packed[name]) for name in names))
        elif action < 0.94:
            layers.make_layer()
        elif action < 0.97:
            layers.rehash()
        elif action < 0.98:
            model.assert_held(layers)
    model.assert_held(layers)


def test_large_layers_are_merged_and_written_to_files(seed: int) -> None:
    """Check that the paths above are covered: levels of merged layers, and a file."""
    model = Model(random.Random(seed), 50)
    store = ChunkStore(memory_bytes=0, put_bytes=1)
    layers = Layers(store)
    for _ in range(LAYERS_TO_MERGE * LAYERS_TO_MERGE):
        name = model.changed()
        layers.put(name, model.packed[name])
    assert [level for level, _ in layers._spilled] == [2]
    assert store._file_bytes > 0
    assert len(store._held) == len(layers._spilled[0][1])  # what was merged is let go
    model.assert_held(layers)


def test_layers_are_equal_in_any_order(seed: int) -> None:
    model = Model(random.Random(seed), 100)
    for _ in range(200):
        model.changed()
    found = []
    for bytes_put in (1, 1 << 20):
        layers = Layers(ChunkStore(put_bytes=bytes_put))
        names = list(model.packed)
        model.rng.shuffle(names)
        for name in names:
            layers.put(name, model.packed[name])
        found.append((list(layers.pieces()), root(layers.rehash(), len(names))))
    assert found[0] == found[1]


def test_given_digests_are_valid_until_something_is_added(seed: int) -> None:
    model = Model(random.Random(seed), 30)
    names = {model.changed() for _ in range(60)}
    layers = Layers(ChunkStore())
    for data in model.chunks(names):
        layers.add(data, "a record")
    wrong = Digests()
    for name in names:
        wrong.set(place(name), b"w" * 32)
    layers.set_digests(wrong)
    assert {layers.rehash().bucket(place(name)) for name in names} == {b"w" * 32}
    for name in names:
        layers.put(name, model.packed[name])
    assert root(layers.rehash(), len(names)) == reference_root(model.hashes)


def test_digests_of_a_base_are_given_and_its_overlay_is_hashed(seed: int) -> None:
    model = Model(random.Random(seed), 60)
    base = model.chunks({model.changed() for _ in range(80)})
    digests = Digests()
    for where, members in grouped(model.hashes.items()):
        digests.set(where, bucket_digest(members))
    deltas = [model.chunks({model.changed() for _ in range(10)}) for _ in range(3)]
    layers = Layers(ChunkStore())
    layers.set_digests(digests)
    for data in chain.from_iterable(reversed(deltas)):
        layers.add(data, "a record")
    for data in base:
        layers.add(data, "a record", hashed=True)
    assert layers._unhashed.keys() < layers._newest.keys()
    model.assert_held(layers)


def test_complete_upper_layer_is_not_rescanned(seed: int) -> None:
    model = Model(random.Random(seed), 40)
    layers = Layers(ChunkStore())
    snapshot = []
    for _ in range(4):
        for _ in range(200):
            model.changed()
        snapshot.append(model.chunks(set(model.packed)))
    assert len(model.packed) == len(model.names)
    for data in chain.from_iterable(reversed(snapshot)):
        layers.add(data, "a record")
    assert not layers._older
    model.assert_held(layers)


def test_damaged_chunk_is_refused(seed: int) -> None:
    model = Model(random.Random(seed), 30)
    [data] = model.chunks({model.changed() for _ in range(5)})
    layers = Layers(ChunkStore())
    with pytest.raises(CorruptionError, match="a record is damaged"):
        layers.add(with_changed_end(data), "a record")
    assert list(layers.rows()) == []


def test_chunk_in_a_damaged_file_is_an_error(seed: int) -> None:
    """Filed data is checked when it is read back."""
    model = Model(random.Random(seed), 400)
    store = ChunkStore(memory_bytes=0)
    layers = Layers(store)
    for data in model.chunks({model.changed() for _ in range(900)}):
        layers.add(data, "a record")
    store._open.clear()
    assert store._file is not None
    store._file.flush()
    store._file.seek(store._file_bytes // 2)
    store._file.write(b"damage")
    store._file.flush()
    with pytest.raises(CorruptionError, match="of a view is damaged"):
        list(layers.rows())


def test_parallel_iteration_reads_each_chunk_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(random.Random(seed), 400)
    reads: list[int] = []
    pread = os.pread
    store = ChunkStore(memory_bytes=0, open_min=30)

    def noted(file: int, size: int, at: int) -> bytes:
        if store._file is not None and file == store._file.fileno():
            reads.append(at)
        return pread(file, size, at)

    monkeypatch.setattr(os, "pread", noted)
    layers = Layers(store)
    for _ in range(30):
        for data in model.chunks({model.changed() for _ in range(40)}):
            layers.add(data, "a record")
    store._open.clear()
    assert len(list(layers.pieces())) > 100
    assert len(reads) == len(set(reads)) > 20


# Digests


def hashes(rng: random.Random, count: int) -> dict[str, bytes]:
    return {f"everything/{number}": rng.randbytes(32) for number in range(count)}


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_root_matches_the_reference(seed: int, count: int) -> None:
    table = hashes(random.Random(seed), count)
    assert root_of(table.items()) == reference_root(table)


def test_digests_set_individually_and_read_in_between(seed: int) -> None:
    """A slot whose hash was read is hashed again after its next change."""
    rng = random.Random(seed)
    table: dict[str, bytes] = {}
    digests = Digests()
    for number in range(300):
        name = f"everything/{rng.randrange(80)}"
        table[name] = rng.randbytes(32)
        mates = [(each.encode(), found) for each, found in table.items() if place(each) == place(name)]
        digests.set(place(name), bucket_digest(mates))
        if number % 10 == 0:
            assert root(digests, len(table)) == reference_root(table)
    assert root(digests, len(table)) == reference_root(table)


def test_differing_places_are_those_whose_entities_differ(seed: int) -> None:
    rng = random.Random(seed)
    one = hashes(rng, 200)
    for changes in (0, 1, 20):
        other = {**one, **{f"everything/{rng.randrange(400)}": rng.randbytes(32) for _ in range(changes)}}
        for name in rng.sample(sorted(one), changes):
            other.pop(name)
        digests = []
        for table in (one, other):
            found = Digests()
            for where, members in grouped(table.items()):
                found.set(where, bucket_digest(members))
            digests.append(found)
        expected = {place(name) for name in one.keys() | other.keys() if one.get(name) != other.get(name)}
        assert list(differing_places(*digests)) == sorted(expected)
        assert list(differing_places(*reversed(digests))) == sorted(expected)


def test_partitions_digests_are_combined(seed: int) -> None:
    table = hashes(random.Random(seed), 300)
    whole = Digests()
    for partition in range(4):
        part = Digests()
        for where, members in grouped((n, h) for n, h in table.items() if reference_slot(n) % 4 == partition):
            part.set(where, bucket_digest(members))
        for slot in range(partition, 1024, 4):
            part.slot(slot)
        whole.add_slots(part)
    assert root(whole, len(table)) == reference_root(table)


def test_empty_slot_is_zeros() -> None:
    digests = Digests()
    assert digests.slot(5) == digests.bucket(5 << 8) == bytes(32)
    digests.set(5 << 8, b"x" * 32)
    digests.set(5 << 8, bytes(32))  # the bucket's last entity went
    assert digests.slot(5) == bytes(32)
    assert root(digests, 0) == hashlib.sha256(b"refold-root/1" + bytes(8) + bytes(32 * 1024)).digest()
