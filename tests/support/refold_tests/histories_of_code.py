"""A git repository with a history of an agent's code, for bisecting."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path


class History:
    """A repository in a folder. Commits get the ids that git gives them, by their subject."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ids: dict[str, str] = {}
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch", "main")
        # Bytecode of a commit would be believed for another whose file is as long and was written in the same second.
        (folder / ".git" / "info").mkdir(exist_ok=True)
        (folder / ".git" / "info" / "exclude").write_text("__pycache__/\n", encoding="utf-8")

    def git(self, *arguments: str) -> str:
        """What a git command prints; it must succeed."""
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
        """Merge a branch into the one that is checked out."""
        self.git("merge", "--quiet", "--no-ff", "--message", subject, branch)
        return self.noted(subject)

    def noted(self, subject: str) -> str:
        """The id of the commit that is checked out, known by its subject from here on."""
        self.ids[subject] = self.git("rev-parse", "HEAD")
        return self.ids[subject]

    def standing(self) -> tuple[str, ...]:
        """All that a user sees of it: what is checked out, staged, changed, its branches and work trees."""
        shown = (
            self.git("rev-parse", "HEAD"), self.git("symbolic-ref", "HEAD"), self.git("status", "--porcelain"),
            self.git("branch", "--all", "--verbose"), self.git("worktree", "list"), self.git("diff"),
            self.git("diff", "--cached"),
        )  # fmt: skip
        hidden = {".git", "__pycache__"}
        files = sorted(path for path in self.folder.rglob("*") if path.is_file() and hidden.isdisjoint(path.parts))
        linked = self.folder / ".git" / "worktrees"
        return (*shown, str([*linked.iterdir()] if linked.exists() else []), *(path.read_text() for path in files))
