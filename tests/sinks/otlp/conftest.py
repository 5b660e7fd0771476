"""A log with runs, and a receiver of their traces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold_tests.otlp_receiver import Receiver, receiving


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[refold.AgentLog]:
    """An embedded log that this process owns."""
    with refold.open(f"file:{tmp_path / 'log'}?partitions=4") as log:
        yield log


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    """A receiver of this test's own."""
    with receiving(tmp_path / "receiver") as found:
        yield found
