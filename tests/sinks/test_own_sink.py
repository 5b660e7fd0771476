"""A sink of a user's own, docs/examples/sqlite_sink.py, tested by the public suite, as docs/SINKS.md shows."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

import refold
from refold.avro.errors import InputError
from refold.sink import Cut, Sink, SnapshotSink, keep_snapshots, open_sink, parse_cut
from refold.testing.sinks import SinkConformance, Store, StoreContent
from refold_tests.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"


class SqliteStore(Store):
    name = "sqlite_sink:open_sink"

    def __init__(self, folder: Path) -> None:
        self.url = str(folder / "held.db")

    def open(self) -> Sink:
        found = open_sink(self.name, self.url)
        assert isinstance(found, Sink)
        return found

    def content(self) -> StoreContent:
        with contextlib.closing(sqlite3.connect(self.url)) as database:
            (cut,) = database.execute("SELECT cut FROM position").fetchone()
            states = {
                entity: (version, state_hash, json.loads(fields), json.loads(links))
                for entity, version, state_hash, fields, links in database.execute(
                    "SELECT entity, version, state_hash, fields, links FROM state"
                )
            }
            history = [
                (*row[:4], *(each and json.loads(each) for each in row[4:7]), row[7])
                for row in database.execute("SELECT * FROM history")
            ]
        return StoreContent(parse_cut(cut), states, history)

    @contextlib.contextmanager
    def refusing(self) -> Iterator[None]:
        with contextlib.closing(sqlite3.connect(self.url, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")


class TestOwnSink(SinkConformance):
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        monkeypatch.syspath_prepend(EXAMPLES)
        return SqliteStore(tmp_path)


def test_missing_sink_is_reported() -> None:
    with pytest.raises(InputError, match="no sink is called 'nowhere'"):
        open_sink("nowhere", "x")
    with pytest.raises(InputError, match="PYTHONPATH"):
        open_sink("no_such_module:open_sink", "x")
    with pytest.raises(InputError, match="PYTHONPATH"):
        open_sink("json:no_such_function", "x")


class OneFile(SnapshotSink):
    """The newest cut and its state hashes, as docs/SINKS.md describes a sink of whole cuts."""

    name = "one file"

    def __init__(self, path: Path) -> None:
        self.path = path

    def position(self) -> Cut | None:
        return parse_cut(json.loads(self.path.read_text())["cut"]) if self.path.exists() else None

    def commit(self, view: refold.StateView, progress: Callable[[int, int], None] = lambda more, total: None) -> None:
        hashes = {}
        for name in view:
            hashes[name] = view[name].state_hash
            progress(1, len(view))
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"cut": str(view.cut), "hashes": hashes}))
        written.replace(self.path)

    def close(self) -> None:
        pass


def test_sink_of_whole_cuts_holds_the_newest_cut(tmp_path: Path) -> None:
    sink = OneFile(tmp_path / "cut.json")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for limit in (100, 50):
            log.observe("tool_config/acme", {"rate_limit": limit})
            log.flush()
            report = keep_snapshots(log.port, sink, follow=False, every_s=0, stop=Event())
            assert (report.loads, report.entities, report.position) == (1, 1, log.point().cut)
        assert sink.position() == log.point().cut
        assert json.loads(sink.path.read_text())["hashes"] == {
            "tool_config/acme": log.state("tool_config/acme").state_hash
        }
