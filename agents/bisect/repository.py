"""A git repository whose history is searched: its commits, each checked out in a separate work tree.

Only `git worktree add`, `remove` and `prune` change anything in it, and they change only git's records of linked work
trees: no branch, no index and no file of the user's own work tree. Hooks do not run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from refold.avro.errors import InputError
from refold.streams.temporary import TemporaryFolder

FOLDER = "refold-bisect-"


class Commit(NamedTuple):
    """A commit.

    Attributes:
        id: The full hash.
        subject: The first line of its message.
    """

    id: str
    subject: str


class Repository:
    """The repository that contains a folder.

    Attributes:
        inside: The given folder, relative to the top of the work tree.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.top = Path(self._git("rev-parse", "--show-toplevel").strip())
        self.inside = self._git("rev-parse", "--show-prefix").strip()

    def commit(self, revision: str) -> Commit:
        """Return the commit of a revision.

        Raises:
            InputError: There is no such commit.
        """
        try:
            found = self._git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}").strip()
        except InputError:
            raise InputError(f"{revision}: no such commit in {self.top}; give a revision as git takes it") from None
        return Commit(found, self._git("log", "-1", "--format=%s", found).strip())

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Return whether commit `older` is an ancestor of `newer`."""
        return self._run("merge-base", "--is-ancestor", older, newer).returncode == 0

    def halving(self, bad: str, good: Iterable[str]) -> list[str]:
        """Return the commits that are ancestors of `bad` and not of any of `good`, including `bad` itself.

        Those that halve the others best come first.
        """
        lines = self._git("rev-list", "--bisect-all", bad, *(f"^{each}" for each in good)).splitlines()
        return [line.split(" ", 1)[0] for line in lines]

    @contextmanager
    def checked_out(self, commit: str) -> Iterator[Path]:
        """Check a commit out into a temporary work tree. Yield the folder there that `inside` names."""
        with TemporaryFolder(FOLDER) as place:
            tree = place / "tree"
            try:
                self._git("worktree", "add", "--detach", "--force", str(tree), commit)
                yield tree / self.inside
            finally:
                self._run("worktree", "remove", "--force", str(tree))
                # Also removes git's records of work trees that killed processes left.
                self._run("worktree", "prune")

    def _git(self, *arguments: str) -> str:
        done = self._run(*arguments)
        if done.returncode:
            message = " ".join(done.stderr.split()) or f"it ended with {done.returncode}"
            raise InputError(f"git {arguments[0]} in {self._folder}: {message.removeprefix('fatal: ')}")
        return done.stdout

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Variables that a hook or an editor set for its own repository would point git to another repository.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            return subprocess.run(
                ["git", "-c", f"core.hooksPath={os.devnull}", *arguments],
                cwd=self._folder, env=environment, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError as error:
            what = "git is not on PATH: install it" if self._folder.is_dir() else f"{self._folder}: no such folder"
            raise InputError(what) from error
