"""A sink of a user's own, docs/examples/sqlite_sink.py, tested by the public suite with the store of docs/SINKS.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import refold
from refold.avro.errors import InputError
from refold.sink import Cut, SnapshotSink, keep_snapshots, open_sink, parse_cut
from refold.testing.sinks import SinkConformance, Store
from refold_tests.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"


SHOWN = re.compile(r"^```python\n(import contextlib\n.*?)^```$", re.MULTILINE | re.DOTALL)
"""The page's test: the block of Python that begins so."""


def _shown_store() -> Callable[[Path], Store]:
    (code,) = SHOWN.findall((ROOT / "docs" / "SINKS.md").read_text(encoding="utf-8"))
    defined: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "docs/SINKS.md", "exec"), defined)
    assert issubclass(defined["TestSqliteSink"], SinkConformance)
    store: Callable[[Path], Store] = defined["SqliteStore"]
    return store


SqliteStore = _shown_store()


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
