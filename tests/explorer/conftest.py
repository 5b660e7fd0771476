"""Helpers that run commands in this process, and the log that they use."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.explorer.cli.main import run
from refold_tests.reducers import REDUCERS


@pytest.fixture
def log_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the log that commands use by default. The tests' reducers are registered."""
    for name in list(os.environ):
        if name.startswith("REFOLD_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("REFOLD_REDUCERS", REDUCERS)
    monkeypatch.setenv("REFOLD_LOG", f"file:{tmp_path / 'log'}")
    return tmp_path / "log"


@pytest.fixture
def ask(log_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Run a command in this process. Return its JSON with --json, else its text; standard error if it was refused."""

    def run_it(*arguments: object, status: int = 0) -> Any:
        found = run([str(each) for each in arguments])
        out, err = capsys.readouterr()
        assert found == status, (out, err)
        return err if status == 2 else json.loads(out) if "--json" in arguments else out

    return run_it
