"""Spans of closed entities stay few, however many bases were sealed: a lookup reads a record of each."""

from __future__ import annotations

import random

import pytest

from refold.streams.snapshots.seal import Sealer
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.sealing import MemoryStore, Table

pytestmark = pytest.mark.outside


def test_cold_spans_of_one_month_are_merged() -> None:
    table, store = Table(random.Random(1), 1, month_micros=1), MemoryStore()
    sealer = Sealer(store, bytes(16), 1, settings=SnapshotSettings(changed_min=20))
    manifest = sealer.seal(table.view())
    for number in range(150 * 25):
        table._names = [f"run/{number}"]
        table.change(1.0)
        if number % 25 == 24:
            manifest = sealer.seal(table.view())
    assert len(manifest.index) <= 12
    assert len(manifest.cold) <= 12
