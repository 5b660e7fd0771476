"""The sealing process ends with its owner, however the owner ends."""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

import pytest

from refold_tests.child import children
from refold_tests.processes import is_gone

OWNER = """
import random, sys, time
from refold.streams import runtime
from refold.streams.snapshots.sealing_process.sealer import ProcessSealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.sealing import MemoryStore, Table
from refold_tests.world import LOG_ID

runtime.cores = lambda: 2
sealer = ProcessSealer(MemoryStore(), LOG_ID, 1, settings=SnapshotSettings(process_entities_min=0))
table = Table(random.Random(1), 2_000)
while True:
    for _ in range(500):
        table.change(0.5)
    sealer.seal(table.view())
    print(sealer._child._process.pid, flush=True)
"""


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_sealing_process_ends_with_its_owner(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed at a random moment; the process leaves nothing behind."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    rng = random.Random(seed)
    with children() as start:
        owner = start(OWNER)
        pid = int(owner.line())
        time.sleep(rng.random() * 0.3)
        owner.kill()
    deadline = time.monotonic() + 30
    while not is_gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
