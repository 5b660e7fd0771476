"""A base that the kernel writes from a whole table is the one that Python writes, byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from refold.avro.errors import CorruptionError
from refold.avro.kernel import SWITCH, find_kernel
from refold.reducers.entity import stored_hash
from refold.streams.partitioner import BUCKETS, PLACE_BYTES, place_in, placed
from refold.streams.snapshots import seal
from refold.streams.snapshots.buckets import Buckets
from refold.streams.snapshots.chunk import CHUNK_BYTES, chunks_of_pieces, piece_of
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.table import Row
from refold_tests.sealing import MemoryStore, Table, View

LOG_ID = b"l" * 16


def rows_of(rng: random.Random, names: int) -> list[Row]:
    """Entities in the order of their keys, many of them in one bucket."""
    table = Table(rng, names)
    for _ in range(3 * names):
        table.change(0.1)
    rows = {placed(name): packed for name, packed in table.packed.items()}
    crowded = [placed(name)[:PLACE_BYTES] for name in table.packed if rng.random() < 0.02]
    for name, packed in table.packed.items():
        if crowded and rng.random() < 0.3:
            rows[rng.choice(crowded) + name.encode()] = packed
    return sorted(rows.items())


def by_python(rows: list[Row], limit: int, monkeypatch: pytest.MonkeyPatch) -> tuple[list[bytes], Buckets]:
    groups: dict[int, list[Row]] = {}
    for key, body in rows:
        groups.setdefault(place_in(key), []).append((key[PLACE_BYTES:], body))
    buckets = Buckets(1 << 30)
    monkeypatch.setattr("refold.streams.snapshots.chunk.CHUNK_BYTES", limit)
    return list(chunks_of_pieces(buckets.passing(piece_of(place, groups[place]) for place in groups))), buckets


def by_kernel(rng: random.Random, rows: list[Row], limit: int) -> tuple[list[bytes], Buckets, int] | None:
    """None if it leaves them to Python."""
    kernel = find_kernel().kernel
    assert kernel is not None
    writer, chunks, at = kernel.BaseWriter(limit), [], 0
    while at < len(rows):
        some = rng.randrange(40)
        full = writer.add(rows[at : at + some])
        if full is None:
            return None
        chunks += full
        at += some
    ended = writer.end()
    assert ended is not None
    last, entities, slots = ended
    buckets = Buckets(1 << 30)
    for slot in slots:
        buckets.set_slot(*slot)
    return [*chunks, *([] if last is None else [last])], buckets, entities


@pytest.mark.parametrize("number", range(12))
def test_chunks_and_buckets(seed: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{seed}/{number}")
    rows = rows_of(rng, rng.choice((1, 30, 400)))
    limit = rng.choice((1, 500, 3_000, CHUNK_BYTES))
    expected, buckets = by_python(rows, limit, monkeypatch)
    found = by_kernel(rng, rows, limit)
    assert found is not None
    assert found[0] == expected
    assert found[2] == len(rows)
    slots = {place_in(key) // BUCKETS for key, _ in rows}
    assert {slot: found[1].digests.buckets(slot) for slot in slots} == {
        slot: buckets.digests.buckets(slot) for slot in slots
    }
    assert found[1]._preimages == buckets._preimages
    assert found[1]._bytes == buckets._bytes


def test_empty_table() -> None:
    found = by_kernel(random.Random(1), [], CHUNK_BYTES)
    assert found is not None
    assert found[0] == []
    assert found[2] == 0


def test_damaged_state_with_an_unreadable_hash_is_left_to_python(seed: int) -> None:
    rng = random.Random(seed)
    rows = rows_of(rng, 30)
    left = 0
    for _ in range(2_000):
        at = rng.randrange(len(rows))
        key, body = rows[at]
        damaged = bytearray(body[: rng.choice((0, 2, 3, 20, 40, len(body), len(body), len(body)))])
        for _ in range(rng.randrange(3)):
            if damaged:
                damaged[rng.randrange(min(len(damaged), 40))] = rng.choice((rng.randrange(256), 0xCC, 0xCF, 0xC4))
        try:
            stored_hash(bytes(damaged))
            readable = True
        except CorruptionError:
            readable = False
            left += 1
        found = by_kernel(rng, [*rows[:at], (key, bytes(damaged)), *rows[at + 1 :]], 500)
        assert (found is not None) == readable
    assert 200 < left < 1_900


def test_rows_out_of_order_are_left_to_python(seed: int) -> None:
    rng = random.Random(seed)
    rows = rows_of(rng, 30)
    for _ in range(200):
        one, other = rng.sample(range(len(rows)), 2)
        shuffled = list(rows)
        shuffled[one], shuffled[other] = shuffled[other], shuffled[one]
        assert by_kernel(rng, shuffled, 500) is None
        assert by_kernel(rng, [*rows[:one], rows[one], *rows[one:]], 500) is None, "the same twice"


@pytest.mark.parametrize("number", range(4))
def test_every_epoch(seed: int, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas, bases from deltas, and bases because of many observations, by a process as by a thread."""
    rng = random.Random(f"{seed}/{number}")
    monkeypatch.setattr("refold.streams.snapshots.chunk.CHUNK_BYTES", rng.choice((300, 3_000)))
    monkeypatch.setattr(seal, "OBSERVATIONS_MIN", rng.choice((30, 10_000)))
    table = Table(rng, 60)
    stores = [MemoryStore() for _ in range(4)]
    sealers = [Sealer(store, LOG_ID, 1, from_ranges=place % 2 == 1) for place, store in enumerate(stores)]
    kinds = set()
    for _ in range(25):
        for _ in range(rng.choice((1, 5, 80))):
            table.change(0.1)
        view = table.view()
        view = View(replace(view.epoch_state, closing={}), view.packed, view._touched)
        manifests = []
        for place, sealer in enumerate(sealers):
            monkeypatch.setenv(SWITCH, str(place // 2))
            manifests.append(sealer.seal(view))
        assert all(each == manifests[0] for each in manifests)
        assert all(store.held == stores[0].held for store in stores)
        kinds.add(manifests[0].is_base)
    assert kinds == {True, False}


def test_damaged_row_of_a_table_is_reported(seed: int) -> None:
    table = Table(random.Random(seed), 30)
    table.change_up_to(60)
    view = table.view()
    spoiled = {name: packed[:10] if name == max(view.packed) else packed for name, packed in view.packed.items()}
    with pytest.raises(CorruptionError, match="does not begin with its format, version, hash"):
        Sealer(MemoryStore(), LOG_ID, 1).seal(View(replace(view.epoch_state, closing={}), spoiled, view._touched))
