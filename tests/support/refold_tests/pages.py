"""A page of the documentation, run as written: every python block, and every `refold` command of the sh blocks, in
order and in one folder, as a reader would. A command must succeed, unless the comment `# exits with N` follows it.
`make` and `pip` lines are skipped: the environment is that of the tests, or one that was made for the page
(fresh_environment.py). Most programs are forked (programs.py).
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from refold_tests.programs import Programs, kill

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
    with closing(Programs(python, folder)) as programs:
        for language, body in BLOCK.findall(page.read_text(encoding="utf-8")):
            if language == "python":
                count += 1
                _run(programs, f"python -c {shlex.quote(body)}", environment)
                continue
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith("refold "):
                    count += 1
                    _run(programs, line, environment)
    return count


def _run(programs: Programs, line: str, environment: Mapping[str, str]) -> None:
    with programs.start(line, environment) as process:
        try:
            printed, errors = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                kill(process)
    said = EXITS.search(line)
    expected = {int(said[1])} if said else {0, 1} if any(each in line for each in DIFFER) else {0}
    assert process.returncode in expected, f"{line}\nexit {process.returncode}\n{printed}\n{errors}"
