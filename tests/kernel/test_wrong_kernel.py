"""A kernel that is wrong is found: by the comparison with Python, and by `verify`, which folds with Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro import kernel
from refold.avro.kernel import EntityRecords, FoldedBatch, KernelStatus, find_kernel
from refold.avro.observation import Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold_tests.both_folds import BothFolds, open_databases
from refold_tests.sample_types import BEGIN


class Wrong:
    """The kernel, but it loses the last record of each entity's share of a batch."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def TypeFolder(self, *given: Any) -> WrongFolder:  # noqa: N802
        return WrongFolder(self._real.TypeFolder(*given))


class WrongFolder:
    """What folds one type in it."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.fields_folded = real.fields_folded

    def fold(self, entities: Sequence[EntityRecords]) -> FoldedBatch:
        found: FoldedBatch = self._real.fold([(name, state, end, records[:-1] or records)
                                              for name, state, end, records in entities])  # fmt: skip
        return found


@pytest.fixture(autouse=True)
def _wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    status = find_kernel()
    assert status.kernel is not None
    wrong: Any = Wrong(status.kernel)
    monkeypatch.setattr(kernel, "_installed", lambda: KernelStatus(wrong, "kernel of a test"))


def observed(number: int) -> Observation:
    patch = {"rate_limit": number}
    return Observation("tool_config/a", BEGIN + number, source=Source("agent", "run", seq=number), patch=patch)


def test_the_comparison_finds_it(tmp_path: Path) -> None:
    registry = Registry()
    version = registry.add(shipped_types()["tool_config"], 0)
    with open_databases(tmp_path) as databases:
        tables = BothFolds(databases, registry)
        with pytest.raises(AssertionError):
            tables.fold(tables.records(version, map(observed, range(3))))


def test_verify_finds_it(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path}/log") as log:
        for number in range(3):
            log.observe("tool_config/a", {"rate_limit": number}, source="agent")
        log.flush()
        report = log.verify()
        assert not report.ok
        assert any("tool_config/a" in str(each) for each in report.mismatches)
