"""The embedded log, opened in the ways that these tests need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from refold_tests.child import Child
from refold_tests.file_logs import FileOpened, Owned, Remote


@pytest.fixture
def owned(tmp_path: Path, child: Callable[..., Child]) -> FileOpened:
    """One log, opened by its owner."""
    return Owned(tmp_path, child)


@pytest.fixture(params=[Owned, Remote])
def opened(request: pytest.FixtureRequest, tmp_path: Path, child: Callable[..., Child]) -> FileOpened:
    """One log, opened by its owner; and a second time, next to its owner."""
    found = request.param(tmp_path, child)
    assert isinstance(found, FileOpened)
    return found
