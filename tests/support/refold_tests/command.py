"""The `refold` command in its own process, and the contents of a log, for comparisons."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

import refold
from refold_tests.forked import Forked, fork_server
from refold_tests.reducers import REDUCERS

SOURCE = str(Path(refold.__file__).parent.parent)
_MAIN = "from refold_tests.every_command import main\nmain()"
COMMAND = [sys.executable, "-P", "-m", "refold.explorer.cli.main"]
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a command."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The JSON that it printed with --json. Its exit status must be 0 or 1."""
        assert self.status in (0, 1), self.err
        return json.loads(self.out)

    def refused(self) -> str:
        """Return its one line on standard error. The exit status must be 2, and it must have printed nothing else."""
        assert self.status == 2, (self.status, self.out, self.err)
        assert self.err.startswith("refold: "), self.err
        assert self.err.count("\n") == 1, self.err
        assert self.err.endswith("\n"), self.err
        assert self.out == ""
        return self.err.removeprefix("refold: ").rstrip("\n")


def environment(log: str = "", more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment without the user's refold settings. The tests' reducers are registered."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    kept["REFOLD_REDUCERS"] = REDUCERS
    return {**kept, "PYTHONPATH": SOURCE, **({"REFOLD_LOG": log} if log else {}), **(more or {})}


def refold_command(
    *arguments: object,
    log: str = "",
    folder: Path | None = None,
    given: bytes | None = None,
    more: Mapping[str, str] | None = None,
    before: str = "",
) -> Done:
    """Run a command to its end, in a forked process.

    log: REFOLD_LOG; given: the standard input; before: code that the process runs first.
    """
    with started(
        *arguments, env=environment(log, more), cwd=folder, stdin=DEVNULL if given is None else PIPE, stdout=PIPE,
        stderr=PIPE, text=False, before=before,
    ) as process:  # fmt: skip
        out, err = process.communicate(given, TIMEOUT_S)
    return Done(process.wait(), out.decode(), err.decode())


def new_command(*arguments: object, log: str = "", more: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end in a new interpreter, for tests of what is imported."""
    done = subprocess.run(
        [*COMMAND, *map(str, arguments)], env=environment(log, more), stdin=DEVNULL, capture_output=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def started(
    *words: object, env: Mapping[str, str], cwd: Path | None = None, stdin: int | None = None,
    stdout: int | None = None, stderr: int | None = None, text: bool = True, before: str = "",
) -> Forked:  # fmt: skip
    """Start a command in a process of its own; the streams as for `subprocess.Popen`. before: code that runs first."""
    return fork_server().start(
        f"{before}\n{_MAIN}", ["refold", *map(str, words)], env=env, cwd=cwd, stdin=stdin, stdout=stdout,
        stderr=stderr, text=text,
    )  # fmt: skip


def held(path: Path) -> object:
    """Return everything that the log at `path` contains, for comparisons; None if there is no log."""
    if not (path / "FORMAT").exists():
        return sorted(each.name for each in path.iterdir()) if path.exists() else None
    with refold.open(f"file:{path}", read_only=True) as log:
        port = log.port
        return (
            {
                partition: [record.id for record in port.read(partition, 0, end)]
                for partition, end in port.ends().items()
            },
            [version.definition.fingerprint for version in port.registry],
            list(port.markers()),
            sorted(each.name for each in (path / "blobs").rglob("*")),
        )
