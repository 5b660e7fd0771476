"""What is rebuilt with the kernel is what Python rebuilds: the root, every entity's bytes, and the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold.avro.observation import Source
from refold.streams.cut import Cut
from refold.streams.log.port import LogPort
from refold.streams.rebuild.rebuild import rebuild
from refold_tests.both_folds import switched

_KINDS = ("tool_config", "run", "step")


def fill(log: Any, seed: int) -> None:
    """Entities of several types, with links, clears, retractions, repeats and late observations."""
    made: list[str] = []
    for number in range(600):
        entity = f"{_KINDS[number % 3]}/{seed}-{number % 41}"
        patch: dict[str, Any] = {"tags": [f"t{number % 5}"]} if number % 11 == 0 else {"duration_ms": number / 4}
        if entity.startswith("tool_config"):
            patch = {"rate_limit": number, "enabled": number % 2 == 0}
        late = 1_700_000_000_000_000 + (number * 1000 if number % 13 else -number)
        made.append(log.observe(entity, patch, source=f"agent-{number % 7}", observed_at=late))
        if number % 50 == 49:
            log.observe(entity, cleared=[next(iter(patch))], source="agent-0")
            log.link(entity, "uses", "tool_config/other", source="agent-0")
        if number % 97 == 96:
            log.observe(entity, retracts=[made[-42]], source="agent-0")  # another entity's: never seen
        if number % 151 == 150:
            log.observe(entity, retracts=[made[-124]], source="agent-0")
    for number in (*range(12), *range(12)):  # each again, when it is no longer among the last ones
        source = Source("agent", f"run {seed}", seq=number)
        log.observe(f"tool_config/again-{seed}", {"rate_limit": number}, source=source, observed_at=number)
    log.flush()


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
