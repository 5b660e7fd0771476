"""Files that are not valid archives are refused with the reason, and nothing is created."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.avro.errors import InputError
from refold.streams.exchange.archive_form import Content, Definition, Header, Item, Tally
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.files import ExchangeFile
from refold.streams.log.port import DeadLetter, Marked, Record
from refold.streams.partitioner import partition_of
from refold_tests.archives import forged, items_of, refused
from refold_tests.clock import BEGIN_MS
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said


def test_truncated_file_is_refused(file: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    whole = file.read_bytes()
    for size in [0, 1, 3, 4, 20, len(whole) - 1, len(whole) - 16, *rng.sample(range(len(whole)), 60)]:
        file.write_bytes(whole[:size])
        refused(file, tmp_path / "copied")
        assert not (tmp_path / "copied").exists(), "nothing is written before all is read"
    for more in (b"\0", b"\x80", b"\0" * 40, whole):
        file.write_bytes(whole + more)
        refused(file, tmp_path / "copied")


def test_damaged_file_is_never_accepted_as_the_original(file: Path, tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole, items = file.read_bytes(), items_of(file)
    refusals = 0
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        try:
            found = items_of(file)
        except InputError:
            refusals += 1
            assert "x.avro" in refused(file, tmp_path / "copied")
            assert not (tmp_path / "copied").exists()
        else:
            assert found == items, "such a bit, as the last ones of a deflate block, says nothing"
    assert refusals > 350


def changed(items: list[Item], kind: type, number: int = 0, **fields: Any) -> list[Item]:
    """With some fields of the number-th item of a kind replaced."""
    places = [place for place, item in enumerate(items) if isinstance(item, kind)]
    changed_item: Any = items[places[number]]
    return [*items[: places[number]], changed_item._replace(**fields), *items[places[number] + 1 :]]


def without(items: list[Item], kind: type, number: int = 0) -> list[Item]:
    places = [place for place, item in enumerate(items) if isinstance(item, kind)]
    return [item for place, item in enumerate(items) if place != places[number]]


OTHER_PARTITION = 1 - partition_of(A, 2)


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (lambda items: without(items, Record, 1), "is out of order"),
        (lambda items: without(items, Record, 3), "does not reach the cut"),
        (lambda items: changed(items, Definition, 1, offset=2), "definition 2 is out of order"),
        (lambda items: without(items, Definition, 2), "cannot be read: no schema with id"),
        (lambda items: without(items, Content), "lacks the content"),
        (lambda items: without(items, Header), "one header"),
        (lambda items: [items[0], *items], "one header"),
        (lambda items: changed(items, Header, format=2), "archive format 2; this release reads up to 1"),
        (lambda items: changed(items, Header, cut="cut:1.xx"), "damaged cut"),
        (lambda items: changed(items, Record, 1, recorded_at=BEGIN_MS - 1), "has an earlier time"),
        (lambda items: changed(items, Record, 1, partition=OTHER_PARTITION, offset=0), "is misplaced"),
        (lambda items: changed(items, Record, 1, id=bytes(32)), "not the observation that its id"),
        (lambda items: changed(items, Record, 1, entity=f"{A}x"), "not the observation that its id"),
        (lambda items: changed(items, Record, 1, data=b"\0\0\0\0\1x"), "cannot be read"),
        (lambda items: changed(items, Definition, 1, definition="{"), "cannot be registered"),
        (lambda items: changed(items, Definition, 1, registered_at=BEGIN_MS - 1), "has an earlier time"),
        (lambda items: changed(items, Content, content=b"other"), "does not match its name"),
        (lambda items: [*items, items[-1]], "'first' is in it twice"),
        (lambda items: [*items, DeadLetter(9, 0, b"")], "dead letter 9=0 is out of order"),
        (lambda items: [*items, DeadLetter(0, 1, b""), DeadLetter(0, 1, b"")], "dead letter 0=1 is out of order"),
    ],
)
def test_file_that_breaks_a_rule_is_refused_whoever_signed_it(
    file: Path, tmp_path: Path, forge: Callable[[list[Item]], list[Item]], reason: str
) -> None:
    assert reason in refused(forged(file, forge(items_of(file))), tmp_path / "copied")


def test_marker_of_another_log_is_refused(file: Path, tmp_path: Path) -> None:
    items = items_of(file)
    (tmp_path / "another").mkdir()
    with open_log(tmp_path / "another") as log:
        take(log, [said(A, 0)])
        other = Marked("other", str(log.point().cut), 1)
    assert "is not at a point of this log" in refused(forged(file, [*items, other]), tmp_path / "copied")


def test_end_record_that_does_not_match_the_items_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = items_of(file)
    right = Tally.end
    for fields in ({"observations": 9}, {"sha256": bytes(32)}):
        monkeypatch.setattr(Tally, "end", lambda tally, fields=fields: right(tally)._replace(**fields))
        forged(file, items)
        monkeypatch.setattr(Tally, "end", right)
        assert "do not match its checksum" in refused(file, tmp_path / "copied")


def test_other_files_are_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "x.avro"
    for content, reason in ((b"", "not an Avro container"), (b'{"id": 1}\n', "not an Avro container")):
        path.write_bytes(content)
        assert reason in refused(path, tmp_path / "copied")
    path.unlink()
    assert "cannot be read" in refused(path, tmp_path / "copied")


def test_restore_needs_an_absent_or_empty_folder(origin: Path, file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is a refold log here already"):
        Archive(ExchangeFile(file)).restore(origin / "log")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    with pytest.raises(InputError, match="not a refold log"):
        Archive(ExchangeFile(file)).restore(tmp_path / "full")
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["mine"]
    (tmp_path / "empty").mkdir()
    Archive(ExchangeFile(file)).restore(tmp_path / "empty")


def test_refused_import_leaves_nothing(file: Path, tmp_path: Path) -> None:
    whole = file.read_bytes()
    (tmp_path / "empty").mkdir()
    before = sorted(tmp_path.iterdir())
    for place in (tmp_path / "new" / "folder" / "copied", tmp_path / "empty"):
        archive = Archive(ExchangeFile(file))
        forged(file, items_of(file)[:2])
        with pytest.raises(InputError):
            archive.restore(place)
        assert sorted(tmp_path.iterdir()) == before
        assert not [*(tmp_path / "empty").iterdir()]
        file.write_bytes(whole)
    for place in (tmp_path / "new" / "folder" / "copied", tmp_path / "empty"):
        Archive(ExchangeFile(file)).restore(place)
        assert (place / "FORMAT").exists()
