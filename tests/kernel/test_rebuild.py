"""What is rebuilt with the kernel is what Python rebuilds: the root, every entity's bytes, and the counts."""

from __future__ import annotations

from pathlib import Path

import pytest

import refold
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.both_folds import switched
from refold_tests.mixed_log import fill


def rebuilt(port: LogPort, cut: Cut, *, full: bool) -> tuple[str, list[tuple[str, bytes]], list[tuple[int, int]]]:
    """The root, the entities' bytes and the counts of a rebuild in this process."""
    found = rebuild(port, cut, lambda more, total: None, full=full, limits=None, parallel=False)
    rows = sorted(row for part in found.parts.values() for row in part.layers.rows())
    return found.root().hex(), rows, [(part.entities, part.observations) for part in found.parts.values()]


@pytest.mark.parametrize("full", [False, True], ids=["from a snapshot", "from nothing"])
def test_rebuild_is_identical(tmp_path: Path, seed: int, full: bool) -> None:
    with refold.open(f"file:{tmp_path}/log") as log:
        fill(log, seed)
        log.snapshot()
        fill(log, seed + 1)
        cut = log.point().cut
        native = rebuilt(log.port, cut, full=full)
        with switched(on=False):
            python = rebuilt(log.port, cut, full=full)
        assert native == python
        assert log.verify().ok
