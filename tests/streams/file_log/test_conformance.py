"""The conformance suite for each way to open the embedded log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold_tests.child import Child
from refold_tests.file_logs import Owned, ReadOnly, Remote
from refold_tests.log_conformance import ClockedConformance, FoldedLogConformance
from refold_tests.log_handles import Opened


class TestOwner(FoldedLogConformance, ClockedConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Owned(tmp_path, child)


class TestRemoteWriter(FoldedLogConformance, ClockedConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return Remote(tmp_path, child)


class TestReader(FoldedLogConformance, ClockedConformance):
    @pytest.fixture
    def opened(self, tmp_path: Path, child: Callable[..., Child]) -> Opened:
        return ReadOnly(tmp_path, child)
