"""One log, by hand, and its archive."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold_tests.archives import LATER, TYPES, archived
from refold_tests.clock import BEGIN_MS, FileClock
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said


@pytest.fixture
def origin(tmp_path: Path) -> Path:
    """ms from BEGIN_MS: 0 THING, A0, marker `first`; 10 A1; 20 THING's next version, A2; 30 a content."""
    path = tmp_path / "origin"
    path.mkdir()
    clock = FileClock(path / "clock")
    with open_log(path, types=TYPES) as log:
        take(log, [said(A, 0, high=5)])
        log.mark("first")
        clock.set(BEGIN_MS + 10)
        take(log, [said(A, 1)])
        clock.set(BEGIN_MS + 20)
        log.register(LATER[1])
        take(log, [said(A, 2, high=2, extra="x")], LATER[1])
        clock.set(BEGIN_MS + 30)
        log.observe("document/d", {"fields": {"text": "y" * 300_000}}, source="documents")
        log.flush()
        clock.set(BEGIN_MS + 40_000)
    return path


@pytest.fixture
def file(origin: Path, tmp_path: Path) -> Path:
    """The archive of it."""
    with open_log(origin, read_only=True, types=TYPES) as log:
        return archived(log, tmp_path / "x.avro")
