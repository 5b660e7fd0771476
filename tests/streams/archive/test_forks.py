"""An archive refuses appends; a fork of it accepts them, as a separate log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import InputError, LockedError
from refold.avro.ids import identify
from refold.streams.cut import parse_cut
from refold.streams.exchange.archive_import import Archive
from refold.streams.exchange.files import ExchangeFile
from refold.streams.log.file.restore import fork
from refold.streams.log.port import Marked
from refold_tests.archives import FORK_ID, LATER, TYPES, archived, contents_of, restored
from refold_tests.child import Child
from refold_tests.clock import BEGIN_MS
from refold_tests.opening import open_log, take
from refold_tests.sample_types import OTHER, A, said


def test_archive_accepts_only_markers(file: Path, tmp_path: Path, child: Callable[..., Child]) -> None:
    path = restored(file, tmp_path / "copied", now_ms=BEGIN_MS + 50_000)
    foreign = """
import sys
from pathlib import Path
from refold.avro.errors import InputError
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said, OTHER
log = open_log(Path(sys.argv[1]))
for attempt in (lambda: take(log, [said(A, 9)]), lambda: log.register(OTHER), lambda: log._port._ask_owner(
        lambda client: client.call("append", [])), lambda: log._port._ask_owner(
        lambda client: client.call("register", OTHER.document))):
    try:
        attempt()
        print("taken", flush=True)
    except InputError as error:
        print("--fork" in str(error), flush=True)
log.mark("foreign")
print("marked", flush=True)
"""
    with open_log(path, types=TYPES) as log:
        before, root = log.port.ends(), log.rebuild().root
        for attempt in (
            lambda: log.observe(A, {"last": 9}),
            lambda: log.observe(f"{OTHER.name}/new", {"last": 9}),
            lambda: log.observe("document/d", {"fields": {"text": "z" * 300_000}}),
            lambda: log.retract(A, identify(said(A, 1))),
            lambda: log.register(OTHER),
        ):
            with pytest.raises(InputError, match=r"takes no appends.*import --format archive --fork --log file:"):
                attempt()
        log.flush()
        log.mark("here")
        told = child(foreign, path)
        assert [told.line() for _ in range(5)] == ["True"] * 4 + ["marked"]
        told.end()
        assert (log.port.ends(), log.rebuild().root) == (before, root)
        assert len(log.port.registry) == 3
        assert {each.name for each in log.port.markers()} == {"first", "here", "foreign"}
        assert contents_of(path) == contents_of(tmp_path / "origin")
        assert log.verify().ok


def test_fork_is_independent(origin: Path, file: Path, tmp_path: Path) -> None:
    path = restored(file, tmp_path / "copied", now_ms=BEGIN_MS + 50_000)
    with open_log(origin, read_only=True, types=TYPES) as log:
        cut, then, root = str(log.point("@first").cut), log.state(A, "@first").state_hash, log.rebuild().root
        origin_id, v2 = log.port.log_id, log.point("v2", A).cut.offsets
    reader = open_log(path, read_only=True, types=TYPES)
    assert str(reader.point("@first").cut) == cut
    assert fork(path / "log", FORK_ID).forked_from == origin_id
    with reader:
        assert reader.point("@first").cut.log_id == FORK_ID, "a reader that was open notices"
    with open_log(path, types=TYPES) as log:
        assert (log.port.log_id, log.port.archived_at, log.port.forked_from) == (FORK_ID, None, origin_id)
        assert log.state(A, "@first").state_hash == then
        assert log.point("v2", A).cut.offsets == v2
        assert log.rebuild().root == root
        with pytest.raises(InputError, match=f"of the log {origin_id.hex()}, and this is its fork {FORK_ID.hex()}"):
            log.state(A, cut)
        take(log, [said(A, 3)], LATER[1])
        log.register(OTHER)
        assert log.state(A).version == 4
        assert log.verify().ok
        assert log.point("now").cut.log_id == FORK_ID
        later = archived(log, tmp_path / "later.avro")
    with pytest.raises(InputError, match="already takes appends"):
        fork(path / "log", b"another id of it")
    with open_log(origin, types=TYPES) as log:
        assert log.rebuild().root == root
        assert log.state(A, cut).state_hash == then
        with pytest.raises(InputError, match="here already"):
            Archive(ExchangeFile(file)).restore(origin / "log")
    with open_log(restored(later, tmp_path / "later"), read_only=True, types=TYPES) as log:
        assert log.port.log_id == FORK_ID
        with pytest.raises(InputError, match="this is its fork"):
            log.point(cut)


def test_import_and_fork_in_one_step_is_a_fork(file: Path, tmp_path: Path) -> None:
    path = restored(file, tmp_path / "copied", FORK_ID, now_ms=BEGIN_MS + 50_000)
    with open_log(path, types=TYPES) as log:
        assert parse_cut(log.port.markers()[0].cut).log_id == FORK_ID == log.point("@first").cut.log_id
        take(log, [said(A, 3)], LATER[1])
        assert log.verify().ok


def test_open_archive_is_not_forked(file: Path, tmp_path: Path) -> None:
    path = restored(file, tmp_path / "copied")
    with open_log(path, types=TYPES), pytest.raises(LockedError, match="end it, then fork"):
        fork(path / "log", FORK_ID)
    fork(path / "log", FORK_ID)


def test_takeover_of_a_forked_log_uses_its_id(file: Path, tmp_path: Path) -> None:
    path = restored(file, tmp_path / "copied", now_ms=BEGIN_MS + 50_000)
    with open_log(path, types=TYPES) as owner, open_log(path, types=TYPES) as beside:
        owner.close()
        fork(path / "log", FORK_ID)
        beside.port.mark(Marked("first", "none", 1), replace=True)
        assert beside.port.log_id == FORK_ID
        beside.mark("first", replace=True)
        take(beside, [said(A, 3)], LATER[1])
        assert beside.point().cut.log_id == FORK_ID
        assert beside.verify().ok


def test_time_of_a_fork_continues_from_the_last_definition(origin: Path, tmp_path: Path) -> None:
    with open_log(origin, types=TYPES) as log:
        log.register(OTHER)
        file = archived(log, tmp_path / "x.avro")
    path = restored(file, tmp_path / "copied", FORK_ID, now_ms=BEGIN_MS)
    with open_log(path, types=TYPES) as log:
        take(log, [said(A, 3)], LATER[1])
        last = log.port.find(identify(said(A, 3)))
        assert last is not None
        assert last.recorded_at == BEGIN_MS + 40_000 == list(log.port.registry)[-1].registered_at
