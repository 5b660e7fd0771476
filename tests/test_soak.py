"""`make soak` runs every test that does more in a soak."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

from refold_tests.tree import ROOT


def test_make_soak_selects_the_hundred_replays_of_a_graph() -> None:
    command = subprocess.run(
        ["make", "--dry-run", "--silent", "soak"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    words = shlex.split(command.replace("\\\n", " "))
    chosen = words[len(words) - words[::-1].index("-m")]
    found = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "--collect-only", "-q", "-m", chosen, "tests/agents/test_langgraph.py"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "REFOLD_SOAK": "1"},
    )
    assert found.stdout.count("::test_graph_is_recorded_in_an_order_independent_of_timing[") == 3, found


def test_only_the_fixture_reads_whether_it_is_a_soak() -> None:
    """A test that asked the environment by itself would not be marked, and so not be selected."""
    name = "REFOLD_" + "SOAK"
    asking = [path for path in (ROOT / "tests").rglob("*.py") if name in path.read_text(encoding="utf-8")]
    assert sorted(path.name for path in asking) == ["conftest.py", "test_soak.py"]
