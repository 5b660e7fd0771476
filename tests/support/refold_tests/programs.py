"""The programs that the lines of a page start, most of them without the start of an interpreter (forked.py).

1. The first line of each program, and each line that only a shell understands, is run by bash.
2. Another line that starts `python`, `refold` or `pytest` is forked from a process of the reader's environment, which
   has imported what the page's programs import: most of the time of a line is the import of an SDK. bash expands the
   line's words.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from refold_tests.forked import OWN, Forked, ForkServer, fork_server

_CODES = {
    "refold": "from refold.explorer.cli.main import main\nmain()",
    "python": """
import os, runpy, sys
sys.path.insert(0, os.getcwd())
runpy.run_path(sys.argv[0], run_name="__main__")
""",
    "pytest": "import sys, pytest\nsys.exit(pytest.console_main())",
}
# A reader's folder has none of this project's settings; LangGraph's plugin takes half of pytest's start time.
_PYTEST = ("-c", "none.ini", "-p", "no:langsmith_plugin")
# What a forked process imported earlier cannot be rewritten, which pytest warns of.
_IMPORTED_EARLIER = ("-W", "ignore::pytest.PytestAssertRewriteWarning")
# What more than the words of one program makes, outside of single quotes.
_OF_A_SHELL = re.compile(r"^(?:[^']|'[^']*')*?[|&;<>`]")
_IMPORTS = re.compile(r"^(?:from|import) ([\w.]+)", re.MULTILINE)


class Programs:
    """The programs of a reader's environment, for the lines of one page, which are run in a folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python = python
        self._folder = folder
        self._started: set[str] = set()
        self._server: ForkServer | None = None
        (folder / "none.ini").write_text("[pytest]\n")

    def start(self, line: str, environment: Mapping[str, str]) -> subprocess.Popen[str] | Forked:
        """Start a line of a page, with pipes for its output and its errors."""
        program = line.partition(" ")[0]
        is_new = program != "pytest" and program not in self._started
        self._started.add(program)
        if is_new or program not in _CODES or _OF_A_SHELL.match(line):
            return self._shell(f'pytest() {{ python -P -m pytest {shlex.join(_PYTEST)} "$@"; }}; {line}', environment)
        with self._shell(f"printf '%s\\0' {line}", environment) as expanded:
            words = expanded.communicate()[0].split("\0")[:-1]
        code, arguments = _CODES[program], words
        if words[:2] == ["python", "-c"]:
            code, arguments = words[2], ["-c", *words[3:]]
        elif program == "python":
            arguments = words[1:]
        elif program == "pytest":
            arguments = ["pytest", *_PYTEST, *_IMPORTED_EARLIER, *words[1:]]
        return self._forking().start(
            code, arguments, env=environment, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip

    def _shell(self, text: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", text], cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def _forking(self) -> ForkServer:
        if str(self._python) == sys.executable:
            return fork_server()
        if self._server is None:
            self._server = ForkServer(str(self._python), [OWN], self._imported())
        return self._server

    def _imported(self) -> Sequence[str]:
        code = "\n".join(each.read_text(encoding="utf-8") for each in self._folder.glob("*.py"))
        own = {each.stem for each in self._folder.glob("*.py")}
        imported = [each for each in _IMPORTS.findall(code) if each.partition(".")[0] not in {"refold", *own}]
        return ["refold.agents.log", "refold.streams.open", *imported]

    def close(self) -> None:
        """End the process that forks."""
        if self._server is not None:
            self._server.close()


def kill(process: subprocess.Popen[str] | Forked) -> None:
    """Send SIGKILL to a program, and to what its shell started."""
    if isinstance(process, Forked):
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
