"""A base that the kernel writes from a whole table is the one that Python writes, byte for byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from refold.avro import kernel
from refold.avro.errors import CorruptionError
from refold.avro.kernel import SWITCH, DeltaWriter, KernelStatus, SlotDigests, find_kernel
from refold.reducers.entity import stored_hash
from refold.streams.checksum import CRC_BYTES, sealed
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.digest import Digests, preimage
from refold.streams.partitioner import BUCKETS, PLACE_BYTES, place_in, placed
from refold.streams.snapshots.base_merge import MergedBase
from refold.streams.snapshots.buckets import Buckets
from refold.streams.snapshots.chunk import chunks_of_pieces, merged_preimages, piece_of
from refold.streams.snapshots.manifest import Manifest, OffsetSpan, encode_manifest
from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.table import Row
from refold_tests.both_folds import switched
from refold_tests.encoded_entities import encoded
from refold_tests.sealing import MemoryStore, Table, View

LOG_ID = b"l" * 16
MERGED_BYTES = 1 << 30


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
    with switched(on=False):
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
    assert found[1].preimages_bytes == buckets.preimages_bytes


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
    settings = SnapshotSettings(chunk_bytes=rng.choice((300, 3_000)), observations_min=10_000 if number else 30)
    table = Table(rng, 60)
    stores = [MemoryStore() for _ in range(6)]
    sealers = [
        Sealer(
            store,
            LOG_ID,
            1,
            from_ranges=place % 2 == 1,
            settings=replace(settings, merged_bytes=MERGED_BYTES * (place >= 4)),
        )
        for place, store in enumerate(stores)
    ]
    kinds, written, merged = set(), counted_deltas(monkeypatch), counted_merges(monkeypatch)
    for count in [*rng.choices((1, 3, 3, 5, 80), k=25), 80, 80]:
        for _ in range(count):
            table.change(0.1)
        view = table.view()
        if not closes:
            view = open_view(view)
        manifests = []
        for place, sealer in enumerate(sealers):
            monkeypatch.setenv(SWITCH, str(int(place >= 2)))
            if place >= 2 and view.epoch_state.epoch.offset % 3 == 0:
                sealer._kept.clear()  # as after a start: the buckets are made from the whole table again
            manifests.append(sealer.seal(view))
        assert all(each == manifests[0] for each in manifests)
        assert all(store.held == stores[0].held for store in stores)
        kinds.add(manifests[0].is_base)
    assert kinds == {True, False}
    assert set(written) == {True, False}  # from the table, and from the fold's cache
    assert None not in merged
    assert not closes or not merged
    assert merged or closes or not number


def counted_merges(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The numbers of ranges of which bases are made from now on, None for one that failed."""
    found: list[int | None] = []
    merge = MergedBase.chunks

    def chunks(self: MergedBase, digests: Digests) -> Iterator[bytes]:
        try:
            yield from merge(self, digests)
        except BaseException:
            found.append(None)
            raise
        found.append(len(self._last.ranges))

    monkeypatch.setattr(MergedBase, "chunks", chunks)
    return found


DAMAGES = ("flipped", "checksummed", "truncated", "gone", "another entity's")


@pytest.mark.parametrize("damage", DAMAGES)
def test_base_is_made_from_the_table_if_the_ranges_are_damaged(
    seed: int, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is the same, but for the offsets of its records."""
    rng = random.Random(f"{seed}/{damage}")
    settings = SnapshotSettings(chunk_bytes=500, observations_min=10_000, merged_bytes=MERGED_BYTES)
    table, store, whole = Table(rng, 60), MemoryStore(), MemoryStore()
    sealers = [Sealer(each, LOG_ID, 1, settings=settings) for each in (store, whole)]
    merged = counted_merges(monkeypatch)
    refused = 0
    for _ in range(60):
        for _ in range(rng.choice((1, 3, 5))):
            table.change(0.1)
        view = open_view(table.view())
        spoilt: dict[int, bytes] = {}
        ranges: Sequence[OffsetSpan] = ()
        if store.manifests:
            ranges = store.manifest(store.epochs(0)[-1]).ranges
            offset = rng.choice([at for span in ranges for at in range(span.start, span.end)])
            spoilt = {offset: store.held[offset]}
            spoil(store.held, offset, damage, rng)
        count = len(merged)
        manifests = [sealer.seal(view) for sealer in sealers]
        if len(merged) > count:
            refused += 1
            assert merged[count:] == [None, len(ranges)]
            assert [each.is_base for each in manifests] == [True, True]
        store.held.update(spoilt)
        assert manifests[0].slots == manifests[1].slots
        assert contents(store, manifests[0]) == contents(whole, manifests[1])
    assert refused > 2


def test_base_is_made_from_the_table_if_the_ranges_have_another_state(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an entity that did not change since, though all digests of the ranges are right."""
    rng = random.Random(seed)
    settings = SnapshotSettings(observations_min=10_000, merged_bytes=MERGED_BYTES)
    table, store = Table(rng, 30), MemoryStore()
    sealer = Sealer(store, LOG_ID, 1, settings=settings)
    merged = counted_merges(monkeypatch)
    table.change_up_to(60)
    kept = {"kept/1": encoded("kept/1", 1, b"k" * 32)}
    first = sealer.seal(with_others(table, kept))
    span = first.ranges[0]
    store.held[span.start] = store.held[span.start].replace(b"k" * 32, b"K" * 32)
    other = sealed(store.held[span.start][:-CRC_BYTES])
    store.held[span.start] = other
    forged = replace(first, ranges=(OffsetSpan(span.start, span.end, sha256(other).digest()),))
    store.manifests[first.epoch] = encode_manifest(forged)
    table.change_up_to(400)
    second = sealer.seal(with_others(table, kept))
    assert merged == [None]
    assert second.is_base
    assert b"k" * 32 in store.held[second.ranges[0].start]


def test_base_is_made_from_the_table_if_the_deltas_are_large(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    table, stores = Table(rng, 60), [MemoryStore(), MemoryStore()]
    settings = SnapshotSettings(observations_min=10_000)
    sealers = [
        Sealer(store, LOG_ID, 1, settings=replace(settings, merged_bytes=2_000 * number))
        for number, store in enumerate(stores)
    ]
    merged = counted_merges(monkeypatch)
    for _ in range(60):
        table.change_up_to(table.offset + 5)
        one, other = (sealer.seal(open_view(table.view())) for sealer in sealers)
        assert contents(stores[0], one) == contents(stores[1], other)
    assert None in merged


def with_others(table: Table, others: dict[str, bytes]) -> View:
    """The view of a table that also has other entities."""
    view = open_view(table.view())
    state = replace(view.epoch_state, entities=len(view.packed) + len(others))
    return View(state, {**view.packed, **others}, view._touched)


def spoil(held: dict[int, bytes], offset: int, damage: str, rng: random.Random) -> None:
    """Damage a record of a snapshot."""
    data = held[offset]
    others = [each for each in held.values() if each != data]
    if damage == "gone" or not others:
        del held[offset]
    elif damage == "truncated":
        held[offset] = data[: rng.randrange(len(data))]
    elif damage == "another entity's":  # whole records, in a wrong place
        held[offset] = rng.choice(others)
    else:
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        held[offset] = sealed(flipped[:-CRC_BYTES]) if damage == "checksummed" and at < len(data) - 4 else flipped


def contents(store: MemoryStore, manifest: Manifest) -> list[list[bytes]]:
    return [[store.held[offset] for offset in range(span.start, span.end)] for span in manifest.ranges]


@pytest.mark.parametrize("number", range(6))
def test_spans_are_merged_as_by_python(seed: int, number: int) -> None:
    """Given one chunk after another, of spans that share places and entities."""
    rng = random.Random(f"{seed}/{number}")
    limit = rng.choice((1, 400, 3_000))
    spans: list[list[bytes]] = []
    newest: dict[bytes, bytes] = {}
    for _ in range(rng.choice((1, 2, 5))):
        rows = [row for row in rows_of(random.Random(f"{seed}/{number}/names"), 60) if rng.random() < 0.6]
        rows = [(key, spoiled_value(body, rng)) for key, body in rows]
        newest.update(rows)
        spans.insert(0, by_python(rows, rng.choice((1, 700, CHUNK_BYTES)))[0])
    expected, buckets = by_python(sorted(newest.items()), limit)
    found = merged_spans(spans, limit)
    assert found is not None
    chunks, entities, slots, digests = found
    assert chunks == expected
    assert entities == len(newest)
    assert dict(slots) == {slot: buckets.digests.buckets(slot) for slot in {place_in(key) >> 8 for key in newest}}
    assert digests == [sha256(b"".join(span)).digest() for span in spans]


def spoiled_value(body: bytes, rng: random.Random) -> bytes:
    """A state whose last bytes are others; its head stays as it is."""
    return body + rng.randbytes(3)


def merged_spans(
    spans: Sequence[Sequence[bytes]], limit: int
) -> tuple[list[bytes], int, SlotDigests, list[bytes]] | None:
    """None if the kernel leaves them to Python."""
    real = find_kernel().kernel
    assert real is not None
    merger, left = real.SpanMerger(limit, len(spans)), [iter(span) for span in spans]
    chunks: list[bytes] = []
    needed: Sequence[int] = range(len(spans))
    while needed:
        found = merger.add([(number, next(left[number], None)) for number in needed])
        if found is None:
            return None
        full, needed = found
        chunks += full
    ended = merger.end()
    if ended is None:
        return None
    last, entities, slots, digests = ended
    return [*chunks, *filter(None, [last])], entities, slots, digests


def test_damaged_spans_are_left_to_python_or_merged(seed: int) -> None:
    """The kernel never panics; what it makes of a damaged chunk is refused by the spans' digests."""
    rng = random.Random(seed)
    real = find_kernel().kernel
    assert real is not None
    before, left = real.panics(), 0
    rows = rows_of(rng, 40)
    spans = [by_python([row for row in rows if rng.random() < 0.5], 600)[0] for _ in range(3)]
    for _ in range(3_000):
        damaged = [dict(enumerate(span)) for span in spans]
        for _ in range(rng.choice((1, 1, 3))):
            held = rng.choice([each for each in damaged if each])
            spoil(held, rng.choice(list(held)), rng.choice(DAMAGES[:4]), rng)
        left += merged_spans([list(held.values()) for held in damaged], 500) is None
    assert real.panics() == before
    assert 300 < left < 3_000


def test_spans_that_are_not_given_in_turns_are_refused() -> None:
    real = find_kernel().kernel
    assert real is not None
    merger = real.SpanMerger(500, 2)
    assert merger.end() is None
    assert merger.add([(2, b"")]) is None
    assert real.SpanMerger(500, 0).add([]) == ([], [])
    assert real.SpanMerger(500, 0).end() == (None, 0, [], [])


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
    places: dict[int, dict[bytes, bytes]] = {}
    for key, body in rows_of(rng, 300):
        places.setdefault(place_in(key), {})[key[PLACE_BYTES:]] = stored_hash(body)
    with switched(on=False):
        python = Buckets(1 << 30)
    native, mixed = Buckets(1 << 30), Buckets(1 << 30)
    changed: list[tuple[int, bytes]] = []
    shared = 0
    for place, hashes in places.items():
        whole = b"".join(preimage(key, hashes[key]) for key in sorted(hashes))
        python.set(place, whole, [])
        native.set(place, whole, [])
        mixed.set(place, whole, [])
        some = {key: rng.randbytes(32) for key in [*hashes, b"new"] if rng.random() < 0.4}
        if some:
            changed.append((place, b"".join(preimage(key, some[key]) for key in sorted(some))))
            shared += not hashes.keys() <= some.keys()
    changed.append((7, preimage(b"first of its slot", bytes(32))))
    for place, own in changed:
        python.change((place, own, []))
        mixed.change((place, own, []))
    native.change_each(*zip(*changed, strict=True))
    assert shared > 10
    for each in (native, mixed):
        assert each.preimages_bytes == python.preimages_bytes
        assert each.digests._buckets == python.digests._buckets


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
