"""A git repository with a history of an agent's code, for bisecting."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class History:
    """A repository in a folder. It remembers the ids of commits by their subject."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch", "main")
        # Python would reuse bytecode of another commit if the file has the same length and modification second.
        (folder / ".git" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "info" / "exclude").write_text("__pycache__/\n", encoding="utf-8")

    def git(self, *arguments: str) -> str:
        """Run a git command, which must succeed; return its output."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        who = ["-c", "user.name=tester", "-c", "user.email=tester@localhost", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *who, *arguments], cwd=self.folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, subject: str, files: Mapping[str, str]) -> str:
        """Write these files and commit them."""
        for name, text in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", subject)
        return self.noted(subject)

    def merge(self, subject: str, branch: str) -> str:
        """Merge a branch into the current one."""
        self.git("merge", "--quiet", "--no-ff", "--message", subject, branch)
        return self.noted(subject)

    def noted(self, subject: str) -> str:
        """Remember the current commit's id by its subject, and return it."""
        self.ids[subject] = self.git("rev-parse", "HEAD")
        return self.ids[subject]

    def standing(self) -> tuple[str, ...]:
        """Return everything that a user sees of the repository: what is checked out, staged and changed, branches
        and work trees.
        """
        shown = (
            self.git("rev-parse", "HEAD"), self.git("symbolic-ref", "HEAD"), self.git("status", "--porcelain"),
            self.git("branch", "--all", "--verbose"), self.git("worktree", "list"), self.git("diff"),
            self.git("diff", "--cached"),
        )  # fmt: skip
        hidden = {".git", "__pycache__"}
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and hidden.isdisjoint(path.parts))
        linked = self.folder / ".git" / "worktrees"
        return (*shown, str([*linked.iterdir()] if linked.exists() else []), *(path.read_text() for path in files))
