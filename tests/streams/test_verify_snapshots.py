"""verify finds and names errors in snapshots, and reports none in correct ones."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest

from refold.reducers.entity import Entity, pack, unpack
from refold.streams.checksum import sealed
from refold.streams.defaults import CHUNK_BYTES
from refold.streams.log.file import records
from refold.streams.log.file.snapshots import NEXT
from refold.streams.snapshots.chunk import Chunk, ChunkWriter
from refold.streams.snapshots.manifest import Epoch, Manifest, OffsetSpan, encode_manifest
from refold.streams.snapshots.store import PIN, TOMB
from refold.streams.table import keys
from refold_tests.damaged import Damaged, with_changed_end
from refold_tests.epochs import CLOSING, SMALL_EPOCHS, clean_up, close_many, grow, manifests
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, PICKY, A, defined, document, said

pytestmark = pytest.mark.outside

U64_MAX = 2**64 - 1


@pytest.fixture(scope="module")
def module_log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """A log with bases, deltas, closed entities of more than one month, and a pin."""
    path = tmp_path_factory.mktemp("grown")
    with open_log(path, types=(CLOSING, OTHER), settings=SMALL_EPOCHS) as log:
        close_many(log)
        grow(log, random.Random(7), 12)
        log.snapshot(pin=True)
        found = Damaged(log)
        yield found
        assert found.found() == set()


@pytest.fixture
def damaged(module_log: Damaged) -> Iterator[Damaged]:
    """The same log, restored after each test. After the last one it must verify."""
    with module_log.undone("manifests", "snapshots", "meta", "state"):
        yield module_log


def forged(damage: Damaged, manifest: Manifest, **parts: Any) -> None:
    damage.put("manifests", manifest.epoch.key, encode_manifest(replace(manifest, **parts)))


def some(damage: Damaged, wanted: Callable[[Manifest], object]) -> Manifest:
    """The last manifest of its kind."""
    return next(each for each in reversed(manifests(damage.log)) if wanted(each))


# Correct snapshots


def test_log_with_every_kind_of_span_verifies(damaged: Damaged) -> None:
    every = manifests(damaged.log)
    assert damaged.found() == set()
    assert {each.is_base for each in every} == {True, False}
    assert max(len(each.ranges) for each in every) > 2
    assert max(len(each.index) for each in every) > 1
    assert max(len({cold.month for cold in each.cold}) for each in every) > 1
    assert any(span.end - span.start > 1 for each in every for span in each.ranges)


@pytest.mark.parametrize("round_number", range(4))
def test_random_logs_verify(tmp_path: Path, seed: int, round_number: int) -> None:
    """Any sealing times, writers, definitions and collections."""
    rng = random.Random(f"{seed}{round_number}")
    print(f"seed {seed}")
    later = [
        defined({**document(high={"type": "long", "refold.reducer": "latest"}), "refold.closed_by": "high"}),
        defined({**document(last={"type": "long", "refold.reducer": "first"}), "refold.closed_by": "start"}),
    ]
    definition = CLOSING
    for _ in range(3):
        with open_log(tmp_path, types=(CLOSING, OTHER), settings=SMALL_EPOCHS) as log:
            grow(log, rng, rng.choice((2, 6)), definition)
            if later and rng.random() < 0.7:
                definition = later.pop()
                log.register(definition)
                grow(log, rng, rng.choice((1, 4)), definition)
            if rng.random() < 0.7:
                clean_up(log, rng)
            verdict = log.verify()
            assert verdict.mismatches == []
            assert verdict.root == log.rebuild(full=True).root == log.rebuild().root


def test_epochs_by_code_that_is_gone_are_checked_for_consistency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    greater = defined({**document(folded={"type": "long", "refold.reducer": "max"}), "refold.closed_by": "high"})
    with open_log(tmp_path, types=(CLOSING, OTHER), settings=SMALL_EPOCHS) as log:
        grow(log, random.Random(3), 6)
        log.register(greater)
        log.register(defined(document(OTHER.name, folded={"type": "long", "refold.reducer": "max"})))
        grow(log, random.Random(4), 3, greater)
        monkeypatch.setattr("refold_tests.histories.folded", lambda value, assertion: 0)
        monkeypatch.setattr("refold_tests.histories.folded.refold_version", 2, raising=False)
    with open_log(tmp_path) as log:
        assert log.verify().mismatches == []
        damage = Damaged(log)
        key, value = damage.rows("snapshots")[0]
        damage.put("snapshots", key, value[:-9] + b"x" * 9)
        assert damage.found()


def test_code_that_fails_on_cleared_assertions_is_no_mismatch(tmp_path: Path) -> None:
    """The new definition cannot fold "bad", and never has to: a clear hides it."""
    with open_log(tmp_path) as log:
        take(log, [said(A, 0, start="bad"), said(A, 1)._replace(patch={}, cleared=("start",)), said(A, 2, start="a")])
        log.register(PICKY)
        assert log.verify().mismatches == []
        assert log.rebuild(full=True)[A].fields["start"] == "a"


# Manifests


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"log_id": bytes(16)}, "of another log"),
        ({"fold_version": 2}, "fold version 2"),
        ({"types": {}}, "its types are not"),
        ({"recorded_at": 1}, "its recorded_at is not"),
        ({"deadletters": 1}, "counts 1 dead letters"),
        ({"entities": 1}, "counts 1 entities"),
        ({"observations": 1}, "counts 1 observations"),
        ({"warm": U64_MAX}, f"counts {U64_MAX} warm entities"),
        ({"changed": U64_MAX}, f"counts {U64_MAX} changed entities"),
        ({"root": bytes(32)}, "its root is not"),
        ({"slots": ()}, "has 0 slots"),
        ({"slots": (b"x" * 32,) * 512}, "other digests"),
        ({"ranges": ()}, "its ranges do not"),
        ({"buckets": ()}, "without their index and buckets"),
        ({"previous": bytes(32)}, "`previous` is not"),
        ({"previous": b""}, "names no manifest before it"),
        ({"epoch": Epoch(0, 1, 1)}, "claims to be of epoch 0=1"),
    ],
)
def test_manifest_with_other_content_is_named(damaged: Damaged, parts: dict[str, Any], problem: str) -> None:
    wrong = some(damaged, lambda each: not each.is_base and each.cold)
    forged(damaged, wrong, **parts)
    found = damaged.log.verify().mismatches
    assert (f"manifests {wrong.epoch}", "", "") in {(each.place, each.entity, each.field) for each in found}
    assert problem in "\n".join(each.problem for each in found)


def test_manifest_without_its_last_range_or_with_another_base_is_named(damaged: Damaged) -> None:
    delta = some(damaged, lambda each: len(each.ranges) > 2)
    before = some(damaged, lambda each: each.ranges == delta.ranges[:-1])
    forged(damaged, delta, ranges=delta.ranges[:-1])
    assert any(place == f"manifests {delta.epoch}" for place, _, _ in damaged.found())
    forged(damaged, delta, warm=delta.warm + 1)
    assert f"a delta onto the epoch {before.epoch}, and has another base" in damaged.problems()


@pytest.mark.parametrize("part", ["cold", "index"])
def test_closed_entities_in_no_span_are_named(damaged: Damaged, part: str) -> None:
    base = some(damaged, lambda each: each.is_base and len(each.index) > 1)
    forged(damaged, base, **{part: getattr(base, part)[:-1]})
    assert any(place == f"manifests {base.epoch}" and entity for place, entity, _ in damaged.found())


def test_cold_span_of_another_month_or_type_is_named(damaged: Damaged) -> None:
    base = some(damaged, lambda each: each.is_base and each.cold)
    last = base.cold[-1]
    for other in (last._replace(month="1999-01"), last._replace(type_name=OTHER.name)):
        forged(damaged, base, cold=(*base.cold[:-1], other))
        # Names are checked only at the first read, so force one.
        for each in manifests(damaged.log):
            if each.epoch.partition == base.epoch.partition and each.epoch < base.epoch:
                damaged.put("manifests", each.epoch.key, None)
        assert "not closed in" in damaged.problems()


def test_manifest_before_the_log_or_past_its_end_is_named(damaged: Damaged) -> None:
    end = damaged.log.port.ends()[0]
    last = some(damaged, lambda each: each.epoch.partition == 0)
    for epoch in (Epoch(0, 0, 1), Epoch(0, end + 1, 1), Epoch(0, end, 99)):
        damaged.put("manifests", epoch.key, encode_manifest(replace(last, epoch=epoch)))
        assert damaged.found() == {(f"manifests {epoch}", "", "")}
        damaged.put("manifests", epoch.key, None)


# Records


def rewritten(
    damage: Damaged, manifest: Manifest, span: OffsetSpan, change: Callable[[str, bytes], bytes | None]
) -> None:
    """Rewrite a span's records like a careful forger: with checksums, and digests in every manifest."""
    partition = manifest.epoch.partition
    found = [data for _, data in damage.port.snapshots.records(partition, span.start, span.end)]
    digest = hashlib.sha256()
    for offset, data in enumerate(found, span.start):
        writer = ChunkWriter(CHUNK_BYTES)
        written = []
        for place, members in Chunk(data, "it").groups():
            bodies = [(key, change(key.decode(), body)) for key, body in members]
            written.append(writer.add(place, [(key, body) for key, body in bodies if body is not None]))
        (new,) = filter(None, [*written, writer.close()])
        digest.update(new)
        damage.put("snapshots", keys.position_key(partition, offset), new)
    for each in manifests(damage.log):
        if each.epoch.partition == partition:
            tree = cbor2.loads(each.encoded[:-4])
            moved = _moved(tree, list(span), [span.start, span.end, digest.digest()])
            damage.put("manifests", each.epoch.key, sealed(cbor2.dumps(moved, canonical=True)))


def _moved(tree: Any, old: list[Any], new: list[Any]) -> Any:
    if tree == old:
        return new
    if isinstance(tree, dict):
        return {key: _moved(value, old, new) for key, value in tree.items()}
    return [_moved(each, old, new) for each in tree] if isinstance(tree, list) else tree


def first_named(damage: Damaged, manifest: Manifest, span: OffsetSpan) -> tuple[str, bytes]:
    data = next(data for _, data in damage.port.snapshots.records(manifest.epoch.partition, span.start, span.end))
    _, members = next(Chunk(data, "it").groups())
    return members[0][0].decode(), members[0][1]


def spans_of(damage: Damaged) -> dict[str, tuple[Manifest, OffsetSpan]]:
    base = some(damage, lambda each: each.is_base and each.cold and each.ranges[0].start < each.ranges[0].end)
    delta = some(damage, lambda each: not each.is_base and each.ranges[-1].start < each.ranges[-1].end)
    return {"base": (base, base.ranges[0]), "delta": (delta, delta.ranges[-1]), "cold": (base, base.cold[-1].span)}


@pytest.mark.parametrize("kind", ["base", "delta", "cold"])
def test_entity_that_differs_from_its_fold_is_named_with_its_field(damaged: Damaged, kind: str) -> None:
    manifest, span = spans_of(damaged)[kind]
    name, body = first_named(damaged, manifest, span)
    field = next(each for each, cell in sorted(unpack(name, body).cells.items()) if isinstance(cell, list))

    def change(entity: Entity) -> bytes:
        entity.cells[field][0] = 12345
        return pack(entity)

    rewritten(damaged, manifest, span, lambda each, body: change(unpack(each, body)) if each == name else body)
    assert (f"snapshots {manifest.epoch.partition}={span.start}", name, field) in damaged.found()


@pytest.mark.parametrize("kind", ["base", "delta", "cold"])
def test_missing_entity_is_named(damaged: Damaged, kind: str) -> None:
    manifest, span = spans_of(damaged)[kind]
    name, _ = first_named(damaged, manifest, span)
    rewritten(damaged, manifest, span, lambda each, body: None if each == name else body)
    assert (f"manifests {manifest.epoch}", name, "") in damaged.found()


@pytest.mark.parametrize("kind", ["base", "delta", "cold"])
def test_missing_damaged_or_swapped_records_are_named(damaged: Damaged, kind: str) -> None:
    manifest, span = spans_of(damaged)[kind]
    key = keys.position_key(manifest.epoch.partition, span.start)
    place = f"snapshots {manifest.epoch.partition}={span.start}"
    data = damaged.database.get("snapshots", key)
    damaged.put("snapshots", key, None)
    assert (place, "", "") in damaged.found()
    assert "missing" in damaged.problems()
    damaged.put("snapshots", key, with_changed_end(data) if data else None)
    assert (place, "", "") in damaged.found()
    other = next(value for each, value in damaged.rows("snapshots") if each != key and value != data)
    damaged.put("snapshots", key, other)
    assert damaged.found()


def test_bucket_digests_that_differ_from_the_log_are_named(damaged: Damaged) -> None:
    base = some(damaged, lambda each: each.is_base and each.buckets)
    (span,) = base.buckets
    key = keys.position_key(base.epoch.partition, span.start)
    data = damaged.database.get("snapshots", key)
    assert data is not None
    other = sealed(b"x" + data[1:-4])
    damaged.put("snapshots", key, other)
    assert "not what was sealed" in damaged.problems()
    found = dict(damaged.port.snapshots.records(base.epoch.partition, span.start, span.end))
    digest = hashlib.sha256(b"".join(found[offset] for offset in sorted(found))).digest()
    forged(damaged, base, buckets=(span._replace(digest=digest),))
    assert "has another digest than the log folds to" in damaged.problems()


def test_records_of_no_manifest_are_no_mismatch(damaged: Damaged) -> None:
    """A writer that ended before it sealed."""
    partition, next_offset = 0, cbor2.loads((damaged.database.get("meta", NEXT) or b"")[:-4])[0]
    damaged.put("snapshots", keys.position_key(partition, next_offset), b"x")
    assert damaged.found() == {(f"snapshots {partition}={next_offset}", "", "")}  # at the next offset nothing stands
    damaged.put("meta", NEXT, sealed(cbor2.dumps({0: next_offset + 1, 1: 1 << 40})))
    assert damaged.found() == set()


# Pins, tombs, counters, rows out of place


def test_unreadable_or_dangling_pins_and_tombstones_are_named(damaged: Damaged) -> None:
    epoch = manifests(damaged.log)[-1].epoch
    key = PIN + epoch.key
    good = damaged.database.get("manifests", key)
    assert good is not None
    damaged.put("manifests", key, good[:3] + b"x" + good[4:])
    assert (f"pins {epoch}", "", "") in damaged.found()
    damaged.put("manifests", key, good)
    damaged.put("manifests", PIN + epoch._replace(offset=1).key, good)
    assert (f"pins {epoch._replace(offset=1)}", "", "") in damaged.found()
    damaged.put("manifests", PIN + epoch._replace(offset=1).key, None)
    damaged.put("manifests", TOMB + epoch.key, b"x")
    assert (f"tombs {epoch}", "", "") in damaged.found()
    damaged.put("manifests", TOMB + epoch.key, sealed(bytes(8) + b"no manifest"))
    assert (f"tombs {epoch}", "", "") in damaged.found()
    damaged.put("manifests", TOMB + epoch.key, sealed(bytes(8) + manifests(damaged.log)[-1].encoded))
    assert damaged.found() == set()


def test_unexpected_rows_are_named(damaged: Damaged) -> None:
    for key in (b"dpoch/x", b"epoch/short", PIN + b"x", Epoch(7, 1, 1).key):
        damaged.put("manifests", key, b"x")
        assert ("manifests", "", "") in damaged.found()
        assert damaged.log.rebuild().root
        damaged.put("manifests", key, None)
    damaged.put("snapshots", keys.position_key(9, 0), b"x")
    assert damaged.found() == {("snapshots", "", "")}
    damaged.put("snapshots", keys.position_key(9, 0), None)
    state_key, value = damaged.rows("state")[0]
    damaged.put("state", b"\0\0\1" + state_key[3:], value)
    assert damaged.found() == {("state", keys.entity_of(state_key), "")}


def test_next_offsets_are_checked(damaged: Damaged) -> None:
    damaged.put("meta", NEXT, sealed(cbor2.dumps({0: 1, 1: 1})))
    assert "at or past the partition's next offset, 1" in damaged.problems()
    damaged.put("meta", NEXT, b"x")
    assert damaged.found() == {("meta snapshots", "", "")}


def test_wrong_totals_are_named(damaged: Damaged) -> None:
    observations, changes, recorded_at, entities, distinct = cbor2.loads(
        damaged.database.get("meta", records.PROGRESS) or b""
    )
    for counts in ([{**entities, 1: 1}, distinct], [entities, {**distinct, 1: 1}]):
        damaged.put("meta", records.PROGRESS, cbor2.dumps([observations, changes, recorded_at, *counts]))
        assert damaged.found() == {("totals 1", "", "")}
