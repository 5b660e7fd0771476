"""A page of the documentation, run as written: every python block, and every `refold` command of the sh blocks, in
order and in one folder, as a reader would. A command must succeed, unless the comment `# exits with N` follows it.
`make` and `pip` lines are skipped: the environment is that of the tests, or one that was made for the page
(fresh_environment.py).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXITS = re.compile(r"# exits with (\d+)")
DIFFER = (" diff ", " compare ")
"""These commands exit with 1 if they found something."""

CONVERSATION = [
    {"role": "user", "content": "Where is order 7?"},
    {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c1", "type": "function", "function": {"name": "get_order", "arguments": '{"order_id": "7"}'}}]},
    {"role": "tool", "tool_call_id": "c1", "name": "get_order", "content": '{"order_id": "7", "status": "sent"}'},
    {"role": "assistant", "content": "It was sent."},
]  # fmt: skip


def with_conversation(folder: Path) -> None:
    """Create the file that pages import."""
    (folder / "conversations.jsonl").write_text(json.dumps(CONVERSATION) + "\n", encoding="utf-8")


def run_page(
    page: Path, folder: Path, more: Mapping[str, str] | None = None, python: Path = Path(sys.executable)
) -> int:
    """Run a page in a folder; return the number of commands and blocks.

    more: additional environment variables. python: of the environment that the page is run in.
    """
    # Programs on a page also start `refold` by name.
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "COLUMNS": "120", "PATH": path}
    environment.pop("REFOLD_LOG", None)
    environment["XDG_STATE_HOME"] = str(folder / "state")  # search indexes and spools
    environment |= more or {}
    count = 0
    for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "python":
            count += 1
            _run([str(python), "-P", "-c", body], folder, environment)
            continue
        for line in body.replace("\\\n", " ").splitlines():
            if line.startswith("refold "):
                count += 1
                _run(["bash", "-c", line], folder, environment)
    return count


def _run(command: list[str], folder: Path, environment: Mapping[str, str]) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    said = EXITS.search(command[-1])
    expected = {int(said[1])} if said else {0, 1} if any(each in command[-1] for each in DIFFER) else {0}
    assert done.returncode in expected, f"{command[-1]}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}"
