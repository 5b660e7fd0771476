"""Versions of custom reducers whose code is missing."""

from __future__ import annotations

import linecache
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from refold_tests.archives import TYPES, archived, refused, restored
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.opening import open_log, take
from refold_tests.reducers import REDUCERS
from refold_tests.sample_types import A, defined, document, said

OLD, NEW = "def folded(value, assertion):\n    return {}\nfolded.refold_version = {}\n", "refold_archive_reducers"


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, int], Any]]:
    """Writes the module of a custom reducer and gives a type that folds by it."""
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("REFOLD_REDUCERS", f"{REDUCERS},{NEW}:folded")
    (tmp_path / "code").mkdir()

    def write(expression: str, version: int) -> Any:
        sys.modules.pop(NEW, None)
        name = tmp_path / "code" / f"{NEW}.py"
        name.write_text(OLD.format(expression, version))
        os.utime(name, (version, version))
        shutil.rmtree(tmp_path / "code" / "__pycache__", ignore_errors=True)
        return defined(document("own", start={"type": "string", "refold.reducer": "custom",
                                              "refold.function": f"{NEW}:folded"}))  # fmt: skip

    yield write
    sys.modules.pop(NEW, None)


def test_versions_whose_code_is_gone_are_skipped(tmp_path: Path, code: Callable[[str, int], Any]) -> None:
    path = tmp_path / "origin"
    path.mkdir()
    clock = FileClock(path / "clock")
    with open_log(path, types=TYPES) as log:
        for version, expression in ((1, "assertion.value"), (2, "(value or '') + assertion.value")):
            linecache.clearcache()
            definition = code(expression, version)
            clock.set(BEGIN_MS + 10 * version)
            log.register(definition)
            take(log, [said("own/1", version, start="ab"[version - 1])], definition)
            take(log, [said(A, version)])
        root = log.rebuild().root
        file = archived(log, tmp_path / "x.avro")
    with open_log(restored(file, tmp_path / "copied"), read_only=True, types=TYPES) as log:
        assert (log.rebuild().root, log.state("own/1").fields["start"]) == (root, "ab")
        assert [each.registered_at - BEGIN_MS for each in log.port.registry] == [10, 10, 20]
        assert log.verify().ok
    sys.modules[NEW] = ModuleType(NEW)
    assert "custom reducer" in refused(file, tmp_path / "gone")
