"""Views limited to types, entities, or recently closed entities: their contents, counts, refusals and reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from refold.avro.errors import InputError, NotAnswerable, SchemaError, UnknownEntity, ValidationError
from refold.reducers.entity import stored_hash
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.log.file.log import FileLog
from refold.streams.log.file.snapshots import FileSnapshotReader
from refold.streams.snapshots.manifest import Manifest
from refold.streams.table import keys
from refold.streams.view import StateView
from refold_tests.epochs import CLOSING, MONTH_MICROS, SMALL_EPOCHS, grow, manifests
from refold_tests.histories import TYPE
from refold_tests.opening import open_log, take
from refold_tests.sample_types import BEGIN, OTHER, A, defined, document, said

NAMES = 24


def packed(view: StateView) -> dict[str, bytes]:
    """The entities of a view, byte for byte."""
    return dict(view._rebuilt.rows())


def cuts(log: Log, rng: random.Random, count: int) -> Iterator[Cut]:
    """The end, and random points before it."""
    ends = log.port.ends()
    yield log.point().cut
    for _ in range(count):
        at = {partition: rng.randint(end // 2, end) for partition, end in ends.items()}
        yield log.point("offset:" + ",".join(f"{partition}={offset}" for partition, offset in at.items())).cut


def closed_at(view: StateView, name: str) -> int | None:
    """Return when the observation that holds the closing field was observed, according to the view."""
    closes = name.startswith(f"{TYPE}/") and "high" in view[name].fields
    return view[name].holder("high").observed_at if closes else None


def begun_from(log: Log, view: StateView) -> list[Manifest]:
    """Return the manifests of the epochs from which a view started."""
    epochs = view.source["snapshot_epochs"]
    assert isinstance(epochs, dict)
    return [each for each in manifests(log) if epochs.get(str(each.epoch.partition)) == each.epoch.offset]


@pytest.mark.parametrize("number", range(4))
def test_limited_view_is_the_whole_one_without_the_rest(tmp_path: Path, seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    every = [f"{kind}/{each}" for kind in (TYPE, OTHER.name) for each in range(NAMES + 2)]
    left_out = cold = 0
    with open_log(tmp_path, settings=SMALL_EPOCHS) as log:
        grow(log, rng, 9, names=NAMES)
        take(log, [said(f"{TYPE}/{each}", each) for each in range(3)], CLOSING)
        for cut in cuts(log, rng, 5):
            whole = log.rebuild(cut, full=True)
            states = packed(whole)
            closed = {name: closed_at(whole, name) for name in whole}
            times = [None, BEGIN, *(each + rng.choice((0, 1)) for each in closed.values() if each is not None)]
            for _ in range(8):
                types = rng.choice((None, None, [TYPE], [OTHER.name], [TYPE, OTHER.name]))
                entities = rng.choice((None, None, rng.sample(every, rng.randint(1, 6))))
                since = rng.choice(times)
                full = rng.random() < 0.3
                view = log.rebuild(cut, types=types, entities=entities, since=since, full=full)
                named = [name for name in states if name.partition("/")[0] in (types or ()) or name in (entities or ())]
                kept = named if types or entities else list(states)
                expected = {
                    name: states[name]
                    for name in kept
                    if since is None or (at := closed[name]) is None or at >= since
                }  # fmt: skip
                left_out += len(kept) - len(expected)
                cold += any(each.cold for each in begun_from(log, view))
                assert packed(view) == expected
                assert (list(view), len(view)) == (sorted(expected), len(expected))
                assert view.observations == sum(whole[name].version for name in expected)
                assert view.entity_hashes() == {name: stored_hash(body) for name, body in expected.items()}
                for name in every:
                    assert (name in view) == (name in expected)
                    if name in expected:
                        assert view[name].tree == whole[name].tree
                    else:
                        with pytest.raises(UnknownEntity):
                            view[name]
                if types or entities or since is not None:
                    with pytest.raises(NotAnswerable, match="rebuild without types"):
                        _ = view.root
                    assert view.differing(whole) == sorted(set(states) - set(expected))
                    assert whole.differing(view) == sorted(set(states) - set(expected))
    assert left_out
    assert cold


@pytest.mark.parametrize("number", range(2))
def test_limits_apply_to_the_observed_clock_and_across_a_new_definition(tmp_path: Path, seed: int, number: int) -> None:
    rng = random.Random(seed + number)
    low = defined({**document(), "refold.closed_by": "low"})
    with open_log(tmp_path, settings=SMALL_EPOCHS) as log:
        grow(log, rng, 4, names=NAMES)
        before = log.point().cut
        log.register(low)
        take(log, [said(f"{TYPE}/{each}", each, low=1.5) for each in range(0, NAMES, 5)], low)
        after = log.point().cut
        since = BEGIN + MONTH_MICROS
        for cut, field in ((before, "high"), (after, "low"), (after.until(since), "low"), (after.until(BEGIN), "low")):
            whole = log.rebuild(cut, full=True)
            for entities in (None, rng.sample(sorted(whole), min(len(whole), 5)) or None):
                expected = {
                    name
                    for name in entities or whole
                    if not name.startswith(f"{TYPE}/") or field not in whole[name].fields
                    or whole[name].holder(field).observed_at >= since
                }  # fmt: skip
                view = log.rebuild(cut, since=since, entities=entities)
                assert set(view) == expected
                assert packed(view) == {name: body for name, body in packed(whole).items() if name in expected}


def reads(monkeypatch: pytest.MonkeyPatch) -> set[tuple[int, int]]:
    """Return a set that gets the position of each snapshot record read from now on."""
    found: set[tuple[int, int]] = set()
    records = FileSnapshotReader.records

    def noted(self: FileSnapshotReader, partition: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        for offset, data in records(self, partition, start, end):
            found.add((partition, offset))
            yield offset, data

    monkeypatch.setattr(FileSnapshotReader, "records", noted)
    return found


def test_only_the_requested_closed_entities_are_read(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(seed)
    every = []
    with open_log(tmp_path, partitions=1, settings=SMALL_EPOCHS) as log:
        for month in range(4):
            first = month * MONTH_MICROS // 1_000_000
            given = [said(f"{TYPE}/{month}-{each}", first + each, high=1) for each in range(60)]
            rng.shuffle(given)
            take(log, given, CLOSING)
            every += given
            log.snapshot()
        take(log, [said(f"{OTHER.name}/{each}", each) for each in range(10)])
        log.snapshot()
        last = manifests(log)[-1]
        spans = {each.month: {(0, offset) for offset in range(each.span.start, each.span.end)} for each in last.cold}
        assert len(spans) >= 3
        assert all(len(each) > 5 for each in spans.values())

        def cold_read(**limits: object) -> tuple[int, set[str], int]:
            found = reads(monkeypatch)
            view = log.rebuild(**limits)  # type: ignore[arg-type]
            entities = len(view)
            months = {month for month, span in spans.items() if span & found}
            return entities, months, sum(len(span & found) for span in spans.values())

        assert cold_read(types=[OTHER.name]) == (10, set(), 0)
        assert cold_read()[1:] == (set(), 0), "a whole view counts its closed entities without reading them"
        newest = sorted(spans)[-1]
        since = int(datetime.fromisoformat(f"{newest}-01T00:00:00+00:00").timestamp()) * 1_000_000
        entities, months, _ = cold_read(since=since)
        assert entities == 10 + sum(each.observed_at >= since for each in every)
        assert months == {newest}
        entities, _, chunks = cold_read(entities=[f"{TYPE}/0-7"])
        assert entities == 1
        # A binary search reads the first entry of some chunks of each span.
        assert chunks <= sum(len(span).bit_length() + 1 for span in spans.values())


def test_few_entities_are_looked_up_and_checked(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path, partitions=1, settings=SMALL_EPOCHS) as log:
        take(log, [said(f"{A}{each}", each) for each in range(300)], CLOSING)
        grow(log, rng, 6)
        every = packed(log.rebuild(full=True))
        last = manifests(log)[-1]
        records = sum(span.end - span.start for span in last.ranges)
        name = f"{A}{rng.randrange(300)}"
        found = reads(monkeypatch)
        assert packed(log.rebuild(entities=name)) == {name: every[name]}
        ranges = {(0, offset) for span in last.ranges for offset in range(span.start, span.end)}
        looked_up = found & ranges
        assert 0 < len(looked_up) <= sum((span.end - span.start).bit_length() + 2 for span in last.ranges) < records / 2
        found.clear()
        log.rebuild(types=TYPE)
        assert ranges <= found

        assert isinstance(log.port, FileLog)
        for partition, offset in sorted(found):  # with any damage, the answer is the same, or names the damage
            key = keys.position_key(partition, offset)
            data = log.port.database.get("snapshots", key)
            assert data is not None
            write = log.port.database.batch()
            at = rng.randrange(len(data))
            write.put("snapshots", key, data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            log.port.database.write(write, sync=False)
        view = log.rebuild(entities=name)
        assert packed(view) == {name: every[name]}
        assert "was not used" in str(view.source["fallbacks"])


def test_one_entity_reads_one_partition(tmp_path: Path) -> None:
    with open_log(tmp_path, partitions=8) as log:
        take(log, [said(f"{A}{each}", each) for each in range(80)])
        log.snapshot()
        take(log, [said(f"{A}{each}", 100 + each) for each in range(80)])
        partition = log.port.partition_of(f"{A}3")
        view = log.rebuild(entities=f"{A}3")
        assert list(view["everything/a3"].fields.items()) == [("last", 103)]
        assert list(view) == [f"{A}3"]
        assert list(view.source["snapshot_epochs"]) == [str(partition)]  # type: ignore[call-overload]
        assert view.source["replayed"] == sum(log.port.partition_of(f"{A}{each}") == partition for each in range(80))


def test_invalid_limits_are_refused(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, 0)])
        with pytest.raises(SchemaError, match=r"nothing of the type 'nothing' .* this log has everything"):
            log.rebuild(types=["nothing"])
        with pytest.raises(SchemaError, match="tool_config/x: nothing of the type 'tool_config'"):
            log.rebuild(entities=["tool_config/x"])
        with pytest.raises(ValidationError, match="TYPE/ID"):
            log.rebuild(entities=["everything"])
        with pytest.raises(InputError, match="types: name at least one"):
            log.rebuild(types=[])
        with pytest.raises(InputError, match="entities: name at least one"):
            log.rebuild(entities=[])
        for since in ("yesterday", "2026-11-21", datetime(2026, 1, 1)):  # noqa: DTZ001  # that it has no zone is the point
            with pytest.raises(ValidationError, match="since"):
                log.rebuild(since=since)
        assert list(log.rebuild(types=TYPE, since=datetime(2026, 1, 1, tzinfo=UTC))) == [A]
