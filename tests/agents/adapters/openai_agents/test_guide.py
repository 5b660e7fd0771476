"""The guide is followed word by word, against a stand-in for the models' provider that counts requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from refold_tests.command import refold_command
from refold_tests.model_server import model_server
from refold_tests.recipes import follow
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside


def test_guide_commands_work(tmp_path: Path) -> None:
    with model_server() as server:
        asked = follow(ROOT / "docs" / "guides" / "openai-agents.md", tmp_path, server)
    refused = refold_command("run", "replay", "trace_o-7", log=f"file:{tmp_path / '.refold'}").refused()
    assert "run trace_o-7 is a trace" in refused
    assert {line for line, requests in asked.items() if requests} == {"python desk.py o-7", "python replayable.py o-8"}
