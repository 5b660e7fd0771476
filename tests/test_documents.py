"""README and docs run as written: every python block, and every `refold` command of the sh blocks, in order.

A page's blocks share one folder, as a reader's would. `make` and `pip` lines are what got the tests here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from refold_tests.tree import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
REFOLD = [sys.executable, "-P", "-m", "refold.explorer.cli.main"]
CONVERSATION = [
    {"role": "user", "content": "Where is order 7?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "7"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": '{"order_id": "7", "status": "sent"}'},
    {"role": "assistant", "content": "It was sent."},
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs(page: Path, tmp_path: Path) -> None:
    (tmp_path / "conversations.jsonl").write_text(json.dumps(CONVERSATION) + "\n", encoding="utf-8")
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            _run([sys.executable, "-P", "-c", body], tmp_path)
            continue
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith("refold "):
                _run(["bash", "-c", f'refold() {{ {" ".join(REFOLD)} "$@"; }}; {line}'], tmp_path)


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *PAGES[1:]], ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
    for named in re.findall(r"`((?:avro|reducers|streams|agents|explorer|tests|docs|bench|src)/[\w./-]+)`", text):
        assert (ROOT / named).exists(), f"{page.name} names {named}"


def _run(command: list[str], folder: Path) -> None:
    environment = {**os.environ, "COLUMNS": "120"}
    environment.pop("REFOLD_LOG", None)
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    # diff says 1 when it found something.
    assert done.returncode == 0 or (done.returncode == 1 and " diff " in command[-1]), f"{command[-1]}\n{done.stderr}"
