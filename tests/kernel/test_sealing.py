"""A base that the kernel writes from a whole table is the one that Python writes, byte for byte."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from refold.avro import kernel
from refold.avro.errors import CorruptionError
from refold.avro.kernel import SWITCH, DeltaWriter, KernelStatus, find_kernel
from refold.reducers.entity import stored_hash
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.digest import preimage
from refold.streams.partitioner import BUCKETS, PLACE_BYTES, place_in, placed
from refold.streams.snapshots.buckets import Buckets
from refold.streams.snapshots.chunk import chunks_of_pieces, merged_preimages, piece_of
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
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


def by_python(rows: list[Row], limit: int) -> tuple[list[bytes], Buckets]:
    groups: dict[int, list[Row]] = {}
    for key, body in rows:
        groups.setdefault(place_in(key), []).append((key[PLACE_BYTES:], body))
    buckets = Buckets(1 << 30)
    pieces = buckets.passing(piece_of(place, groups[place]) for place in groups)
    return list(chunks_of_pieces(pieces, limit)), buckets


def by_kernel(rng: random.Random, rows: list[Row], limit: int) -> tuple[list[bytes], Buckets, int] | None:
    """None if it leaves them to Python."""
    real = find_kernel().kernel
    assert real is not None
    writer, chunks, at = real.BaseWriter(limit), [], 0
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
def test_chunks_and_buckets(seed: int, number: int) -> None:
    rng = random.Random(f"{seed}/{number}")
    rows = rows_of(rng, rng.choice((1, 30, 400)))
    limit = rng.choice((1, 500, 3_000, CHUNK_BYTES))
    expected, buckets = by_python(rows, limit)
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


@pytest.mark.parametrize("closes", [False, True], ids=["open", "closing"])
@pytest.mark.parametrize("number", range(3))
def test_every_epoch(seed: int, number: int, closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deltas, bases from deltas, and bases because of many observations, by a process as by a thread."""
    rng = random.Random(f"{seed}/{number}")
    settings = SnapshotSettings(chunk_bytes=rng.choice((300, 3_000)), observations_min=rng.choice((30, 10_000)))
    table = Table(rng, 60)
    stores = [MemoryStore() for _ in range(4)]
    sealers = [
        Sealer(store, LOG_ID, 1, from_ranges=place % 2 == 1, settings=settings) for place, store in enumerate(stores)
    ]
    kinds, written = set(), counted_deltas(monkeypatch)
    for _ in range(25):
        for _ in range(rng.choice((1, 3, 3, 5, 80))):
            table.change(0.1)
        view = table.view()
        if not closes:
            view = open_view(view)
        manifests = []
        for place, sealer in enumerate(sealers):
            monkeypatch.setenv(SWITCH, str(place // 2))
            if place >= 2 and view.epoch_state.epoch.offset % 3 == 0:
                sealer._kept.clear()  # as after a start: the buckets are made from the whole table again
            manifests.append(sealer.seal(view))
        assert all(each == manifests[0] for each in manifests)
        assert all(store.held == stores[0].held for store in stores)
        kinds.add(manifests[0].is_base)
    assert kinds == {True, False}
    assert set(written) == {True, False}  # from the table, and from the fold's cache


def open_view(view: View) -> View:
    """The view of a table whose types do not close."""
    return View(replace(view.epoch_state, closing={}), view.packed, view._touched)


def counted_deltas(monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    """Counts the kernel's deltas from now on, by `is_whole`."""
    real: Any = find_kernel().kernel
    found: Counter[bool] = Counter()

    class Counted:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def DeltaWriter(self, limit: int, start: int, is_whole: bool) -> DeltaWriter:  # noqa: N802
            found[is_whole] += 1
            writer: DeltaWriter = real.DeltaWriter(limit, start, is_whole)
            return writer

    counting: Any = Counted()
    monkeypatch.setattr(kernel, "_installed", lambda: KernelStatus(counting, "kernel of a test"))
    return found


def test_delta_with_a_damaged_row_is_judged_by_python(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same epoch, or the same error, as without the kernel."""
    rng = random.Random(seed)
    refused = 0
    for number in range(300):
        table = Table(rng, 20)
        table.change_up_to(60)
        first = open_view(table.view())
        table.change_up_to(60 + rng.randrange(1, 6))
        second = open_view(table.view())
        touched = sorted(set(table.touched[60:]))
        name = rng.choice(touched)
        second = View(second.epoch_state, {**second.packed, name: spoiled(second.packed[name], rng)}, second._touched)
        results: list[object] = []
        for switch in ("0", "1"):
            monkeypatch.setenv(SWITCH, switch)
            store = MemoryStore()
            sealer = Sealer(store, LOG_ID, 1)
            sealer.seal(first)
            try:
                results.append((sealer.seal(second), store.manifests, list(store.held.values())[-1]))
            except CorruptionError as error:
                results.append(str(error))
                refused += 1
        assert results[0] == results[1], number
    assert 50 < refused < 550


def spoiled(packed: bytes, rng: random.Random) -> bytes:
    """A stored state whose head is damaged, or its end."""
    damaged = bytearray(packed[: rng.choice((3, 20, 36, 37, 38, 40, len(packed), len(packed)))])
    damaged[rng.randrange(min(len(damaged), 44))] = rng.choice((rng.randrange(256), 0xCC, 0xCF, 0xC4))
    return bytes(damaged)


def test_buckets_are_changed_as_by_python(seed: int) -> None:
    """Also where several entities share a bucket, and not all of them change."""
    rng = random.Random(seed)
    real = find_kernel().kernel
    assert real is not None
    places: dict[int, dict[bytes, bytes]] = {}
    for key, body in rows_of(rng, 300):
        places.setdefault(place_in(key), {})[key[PLACE_BYTES:]] = stored_hash(body)
    python, native = Buckets(1 << 30), Buckets(1 << 30)
    changed: list[tuple[int, bytes]] = []
    shared = 0
    for place, hashes in places.items():
        whole = b"".join(preimage(key, hashes[key]) for key in sorted(hashes))
        python.set(place, whole, [])
        native.set(place, whole, [])
        some = {key: rng.randbytes(32) for key in [*hashes, b"new"] if rng.random() < 0.4}
        if some:
            changed.append((place, b"".join(preimage(key, some[key]) for key in sorted(some))))
            shared += not hashes.keys() <= some.keys()
    changed.append((7, preimage(b"first of its slot", bytes(32))))
    for place, own in changed:
        python.change((place, own, []))
    native.change_each(real, *zip(*changed, strict=True))
    assert shared > 10
    assert native._preimages == python._preimages
    assert native._bytes == python._bytes
    assert native.digests._buckets == python.digests._buckets


def test_buckets_are_merged_as_by_python(seed: int) -> None:
    rng = random.Random(seed)
    real = find_kernel().kernel
    assert real is not None

    def drawn() -> bytes:
        keys = sorted({rng.randbytes(rng.randrange(3)) for _ in range(rng.randrange(4))})
        return b"".join(preimage(key, rng.randbytes(32)) for key in keys)

    before, own = [drawn() for _ in range(2_000)], [drawn() for _ in range(2_000)]
    found = real.merged(before, own)
    assert found is not None
    expected = [
        merged_preimages(one, other) if one and other else one or other for one, other in zip(before, own, strict=True)
    ]
    assert found[0] == expected
    assert found[1] == [sha256(each).digest() for each in expected]
    assert real.merged([b""], [own[0] + b"x"]) is None


def test_damaged_row_of_a_table_is_reported(seed: int) -> None:
    table = Table(random.Random(seed), 30)
    table.change_up_to(60)
    view = table.view()
    spoiled = {name: packed[:10] if name == max(view.packed) else packed for name, packed in view.packed.items()}
    with pytest.raises(CorruptionError, match="does not begin with its format, version, hash"):
        Sealer(MemoryStore(), LOG_ID, 1).seal(View(replace(view.epoch_state, closing={}), spoiled, view._touched))
