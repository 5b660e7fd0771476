"""What an archive preserves: definitions at their positions, times, dead letters, contents."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from refold.avro.errors import NotAnswerable, RefoldError
from refold.avro.times import time_text
from refold.streams.cut import parse_cut
from refold.streams.exchange.archive_form import Content, Definition, Header, Item
from refold.streams.log.port import DeadLetter, Record
from refold.streams.rocks.database import Database
from refold_tests.archives import LATER, TYPES, archived, contents_of, forged, items_of, restored
from refold_tests.clock import BEGIN_MS
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said


def test_items_are_in_log_order(file: Path) -> None:
    kinds = [type(item).__name__ for item in items_of(file)]
    assert kinds == [
        "Header", "Definition", "Record", "Record", "Definition", "Record", "Definition", "Content", "Record", "Marked",
    ]  # fmt: skip


def test_redefinition_takes_effect_at_its_offset(origin: Path, file: Path, tmp_path: Path) -> None:
    copied = restored(file, tmp_path / "copied")
    chains = []
    for path in (origin, copied):
        with open_log(path, read_only=True, types=TYPES) as log:
            chains.append([
                (each.from_version, each.to_version, each.redefined, each.hash_before, each.hash_after, each.definition)
                for each in log.changes()
                if each.entity == A
            ])  # fmt: skip
    # Only how steps are grouped may differ.
    assert [each for each in chains[0] if each[2]] == [each for each in chains[1] if each[2]] != []
    assert (chains[0][0][0], chains[0][-1]) == (chains[1][0][0], chains[1][-1])


def test_offsets_of_schemas_that_register_nothing_are_kept(origin: Path, file: Path, tmp_path: Path) -> None:
    """A log on Kafka has them: each definition here gets one behind it, and the end of the log is behind the last."""
    items: list[Item] = []
    for item in items_of(file):
        match item:
            case Header():
                cut = parse_cut(item.cut)
                items.append(item._replace(cut=str(replace(cut, schemas=2 * cut.schemas))))
            case Definition():
                items.append(item._replace(offset=2 * item.offset))
                items.append(Definition(2 * item.offset + 1, item.registered_at, ""))
            case _:
                items.append(item)
    copied = restored(forged(file, items), tmp_path / "copied")
    with open_log(origin, read_only=True, types=TYPES) as one, open_log(copied, read_only=True, types=TYPES) as other:
        assert len(other.port.registry) == 2 * len(one.port.registry)
        for held in (one, other):
            held.port.refresh()
        assert [each.definition.fingerprint for each in other.port.registry] == [
            each.definition.fingerprint for each in one.port.registry
        ]
        for when in (None, "@first", time_text((BEGIN_MS + 10) * 1000), time_text((BEGIN_MS + 20) * 1000)):
            assert other.rebuild(when).root == one.rebuild(when).root
        assert other.point().cut.schemas == 2 * one.point().cut.schemas
        assert other.verify().ok
        again = archived(other, tmp_path / "again.avro")
    assert items_of(again)[1:] == items[1:]


def test_time_after_archiving_is_refused(file: Path, tmp_path: Path) -> None:
    copied = restored(file, tmp_path / "copied", now_ms=BEGIN_MS + 10**9)
    with open_log(copied, read_only=True, types=TYPES) as log:
        taken = BEGIN_MS + 40_000
        assert log.point(time_text(taken * 1000)).open, "what came in those seconds is not known here"
        assert not log.point(time_text((taken - 6_000) * 1000)).open
        with pytest.raises(NotAnswerable, match=r"archived at 2023-11-14T22:14:00\.000Z; that is the latest time"):
            log.point(time_text(taken * 1000 + 1000))


def test_dead_letters_are_carried(origin: Path, tmp_path: Path) -> None:
    verdicts = [DeadLetter(0, 0, b"one"), DeadLetter(1, 3, b"two")]
    with Database.open(origin / "log") as database:
        write = database.batch()
        for each in verdicts:
            write.put("deadletters", each.partition.to_bytes(2, "big") + each.offset.to_bytes(8, "big"), each.data)
        database.write(write, sync=True)
    with open_log(origin, read_only=True, types=TYPES) as log:
        file = archived(log, tmp_path / "x.avro")
    with open_log(restored(file, tmp_path / "copied"), read_only=True, types=TYPES) as log:
        assert list(log.port.deadletters()) == verdicts


def test_empty_log_has_an_archive(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    with open_log(tmp_path / "origin") as log:
        file = archived(log, tmp_path / "x.avro")
    with open_log(restored(file, tmp_path / "copied"), read_only=True) as log:
        assert (log.rebuild().observations, log.port.partitions) == (0, 2)


def test_repeated_distant_blob_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "origin").mkdir()
    with open_log(tmp_path / "origin", types=TYPES) as log:
        for number, text in enumerate("abcab"):
            log.observe("document/d", {"fields": {str(number): text * 300_000}}, source="documents")
        file = archived(log, tmp_path / "x.avro", contents_remembered=2)
    assert sum(isinstance(item, Content) for item in items_of(file)) == 5
    copied = restored(file, tmp_path / "copied")
    assert contents_of(copied) == contents_of(tmp_path / "origin")


def test_lost_blob_refuses_the_archive(origin: Path, tmp_path: Path) -> None:
    [content] = [each for each in (origin / "log" / "blobs").rglob("*") if each.is_file()]
    content.unlink()
    with open_log(origin, read_only=True, types=TYPES) as log, pytest.raises(RefoldError, match=content.name):
        archived(log, tmp_path / "x.avro")


def test_records_are_read_in_chunks(origin: Path, tmp_path: Path, file: Path) -> None:
    with open_log(origin, types=TYPES) as log:
        take(log, [said(A, number) for number in range(30)], LATER[1])
        other = archived(log, tmp_path / "y.avro", records_held=0)
    records = [item for item in items_of(other) if isinstance(item, Record)]
    places = {each: [record.offset for record in records if record.partition == each] for each in (0, 1)}
    assert all(offsets == list(range(len(offsets))) for offsets in places.values())
    assert len(records) == 34
