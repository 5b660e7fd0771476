"""The fuzzer's short form on a real broker; `make fuzz ARGS=--kafka` continues with other seeds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from refold_tests.brokers import SharedKafka
from refold_tests.fuzz.campaign import IN_MEMORY
from refold_tests.fuzz.kafka import run_round
from refold_tests.fuzz.world import made

SEED = 23


@pytest.mark.fuzz
@pytest.mark.timeout(600)
def test_hostile_records_and_requests_break_no_promise(kafka: SharedKafka, prefix: str, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="refold-fuzz-", dir=IN_MEMORY) as folder:
        written, asked = run_round(kafka.bootstrap, prefix, SEED, made(Path(folder)), tmp_path / "tables")
    assert written > 900
    assert asked
