"""A kernel that is wrong is found: by the comparison with Python, and by `verify`, which folds with Python too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro import kernel
from refold.avro.kernel import (
    DecidedRecords,
    FoldedGroups,
    KernelStatus,
    NumberedRecords,
    Replayed,
    StoredRecords,
    find_kernel,
)
from refold.avro.observation import Observation, Source
from refold.avro.registry import Registry
from refold.avro.shipped import shipped_types
from refold_tests.both_folds import BothFolds, open_databases
from refold_tests.sample_types import BEGIN


class Wrong:
    """The kernel, but it loses the last record of each entity's share of a batch.

    only: the one of its functions that is wrong; empty for all.
    """

    def __init__(self, real: Any, only: str = "") -> None:
        self._real = real
        self._only = only

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def TypeFolder(self, *given: Any) -> WrongFolder:  # noqa: N802
        return WrongFolder(self._real.TypeFolder(*given), self._only)

    def given(self, checked: list[Any]) -> DecidedRecords:
        is_wrong = self._only in ("", "fold")
        found: DecidedRecords = self._real.given(checked[:-1] or checked if is_wrong else checked)
        return found

    def numbered(self, batch: list[Any], *given: Any) -> NumberedRecords:
        found: NumberedRecords = self._real.numbered(batch, *given)
        if self._only in ("", "fold"):  # the rows of all of them, and one record less
            return (self._real.numbered(batch[:-1] or batch, *given)[0], *found[1:])
        return found

    def grouped(self, batch: Sequence[DecidedRecords]) -> WrongGroups:
        return WrongGroups(self._real.grouped(batch[:-1] or batch if self._only == "decided" else batch))


class WrongGroups:
    """Records by entity in it."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.types = real.types

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def fold(self, folders: Sequence[WrongFolder | None], *given: Any) -> FoldedGroups | None:
        found: FoldedGroups | None = self._real.fold([each and each.real for each in folders], *given)
        return found


class WrongFolder:
    """What folds one type in it."""

    def __init__(self, real: Any, only: str) -> None:
        self.real = real
        self._only = only
        self.fields_folded = real.fields_folded

    def replay(self, entities: Sequence[StoredRecords]) -> list[Replayed | None]:
        if self._only in ("", "replay"):
            entities = [(name, state, records[:-1] or records) for name, state, records in entities]
        found: list[Replayed | None] = self.real.replay(entities)
        return found


def use_wrong(monkeypatch: pytest.MonkeyPatch, only: str = "") -> None:
    """Have a wrong kernel in the place of the real one."""
    status = find_kernel()
    assert status.kernel is not None
    wrong: Any = Wrong(status.kernel, only)
    monkeypatch.setattr(kernel, "_installed", lambda: KernelStatus(wrong, "kernel of a test"))


def observed(number: int) -> Observation:
    patch = {"rate_limit": number}
    return Observation("tool_config/a", BEGIN + number, source=Source("agent", "run", seq=number), patch=patch)


# What each of them makes differ: the fold of records, the fold of what the kernel decided, and the state of a replay.
@pytest.mark.parametrize(
    ("only", "line"), [("fold", "self.python.fold"), ("decided", "_fold_decided"), ("replay", "state or")]
)
def test_comparison_finds_a_wrong_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str, line: str
) -> None:  # fmt: skip
    use_wrong(monkeypatch, only)
    registry = Registry()
    version = registry.add(shipped_types()["tool_config"], 0)
    with open_databases(tmp_path) as databases:
        tables = BothFolds(databases, registry)
        with pytest.raises(AssertionError) as found:
            tables.fold(tables.records(version, map(observed, range(3))))
    assert line in str(found.traceback[-1].statement)


@pytest.mark.parametrize("only", ["", "fold", "replay"])
def test_verify_finds_a_wrong_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    use_wrong(monkeypatch, only)
    with refold.open(f"file:{tmp_path}/log") as log:
        for number in range(3):
            log.observe("tool_config/a", {"rate_limit": number}, source="agent")
        log.flush()
        report = log.verify()
        assert not report.ok
        places = {each.place for each in report.mismatches if each.entity == "tool_config/a"}
        assert ("state" in places) is (only != "replay")
        assert ("kernel" in places) is (only != "fold")
