"""The guide is followed word by word, with a stand-in for Claude Code's command line; and what refold relies on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from claude_agent_sdk.types import SessionStore

from refold.claude_agent_sdk import RefoldSessionStore
from refold_tests.model_server import model_server
from refold_tests.recipes import follow
from refold_tests.tree import ROOT

pytestmark = pytest.mark.outside


def test_guide_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "claude").symlink_to(ROOT / "tests" / "support" / "refold_tests" / "claude_cli.py")
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "config"))
    folder = tmp_path / "reader"
    folder.mkdir()
    with model_server() as server:
        asked = follow(ROOT / "docs" / "guides" / "claude-agent-sdk.md", folder, server)
    assert not any(asked.values()), "the stand-in asks no model"


def test_store_implements_every_method_of_the_sdk() -> None:
    """A new optional method is one to add here."""
    declared = {name for name in vars(SessionStore) if not name.startswith("_")}
    assert declared == {"append", "load", "list_sessions", "list_session_summaries", "delete", "list_subkeys"}
    assert declared <= vars(RefoldSessionStore).keys()
