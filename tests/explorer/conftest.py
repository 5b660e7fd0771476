"""Where the commands' log is, in tests that run them in this process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture
def log_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the log that commands use unless they are told another: REFOLD_LOG and no more is set."""
    for name in list(os.environ):
        if name.startswith("REFOLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("REFOLD_LOG", f"file:{tmp_path / 'log'}")
    return tmp_path / "log"
