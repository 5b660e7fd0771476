"""Find the commit at which an agent stopped matching a recording.

1. The bad commit is replayed and must differ from the recording; the good one must match it.
2. While commits remain between them, the one that halves them best is replayed. If it differs, it is the new bad
   commit; if it matches, it is another good one. A commit that cannot be replayed (it does not import, it hangs, it
   lacks the function) is skipped, and the next best is used.
3. The result is the first bad commit. If the commits before it could not be replayed, it is one of several.

Each commit is checked out into a temporary work tree and replayed in a separate process (probe.py) from that tree, so
modules of one commit are never used for another. The replay has no network and no log. On request, the kernel confines
its process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from refold.agents.bisect.probe import BisectResult
from refold.agents.bisect.repository import FOLDER, Commit, Repository
from refold.agents.confined.process import denied_by_kernel, not_confinable
from refold.agents.journal.record import Recording
from refold.avro.errors import InputError
from refold.streams.temporary import TemporaryFolder

TIMEOUT_S = 300.0
SAID_LINES_MAX = 5

Tested = Callable[[Commit, BisectResult], None]


class BisectionReport(NamedTuple):
    """The result.

    Attributes:
        suspects: The first bad commit; or several, if the commits between could not be replayed.
        finding: How the first of these commits, the oldest one known to be bad, differs.
        tested: All replayed commits with their results, in the order of the search.
    """

    suspects: tuple[Commit, ...]
    finding: BisectResult
    tested: tuple[tuple[Commit, BisectResult], ...]

    @property
    def first_bad(self) -> Commit | None:
        """The first commit that differs; None if it is one of several."""
        return self.suspects[0] if len(self.suspects) == 1 else None


def bisect(
    recording: Recording, entry: str, repository: Repository, good: str, bad: str, *, redactor: str = "",
    settings: Mapping[str, str] = MappingProxyType({}),
    timeout_s: float = TIMEOUT_S, tested: Tested = lambda commit, finding: None, confined: bool = False,
) -> BisectionReport:  # fmt: skip
    """Return the first commit after `good`, up to `bad`, whose agent differs from the recording.

    Args:
        recording: The recording, with the values of its reads (recordings/values.py).
        entry: The agent, as module:function.
        repository: The repository.
        good: A revision that matches the recording.
        bad: A later revision that differs.
        redactor: The recording's redactor, as module:function.
        settings: Environment variables for the agents.
        timeout_s: How long a replay may take, seconds.
        tested: Called for every replayed commit.
        confined: Whether the kernel confines each process.

    Raises:
        InputError: `good` does not match or `bad` does not differ; or `good` is not an ancestor of `bad`.
        NotConfinable: The kernel refuses to confine a process.
    """
    search = _Search(recording, entry, redactor, repository, settings, timeout_s, tested, is_confined=confined)
    return search.run(repository.commit(good), repository.commit(bad))


class _Search:
    def __init__(
        self, recording: Recording, entry: str, redactor: str, repository: Repository,
        settings: Mapping[str, str], timeout_s: float, tested: Tested, *, is_confined: bool,
    ) -> None:  # fmt: skip
        self._recording = recording
        self._entry = entry
        self._redactor = redactor
        self._repository = repository
        self._settings = settings
        self._timeout_s = timeout_s
        self._tell = tested
        self._is_confined = is_confined
        self._found: dict[Commit, BisectResult] = {}

    def run(self, good: Commit, bad: Commit) -> BisectionReport:
        if good.id == bad.id or not self._repository.is_ancestor(good.id, bad.id):
            raise InputError(f"{good.id[:12]} is not an ancestor of {bad.id[:12]}: --good names a commit before --bad")
        finding = self._check_end(bad, "parted", "--bad", "does what was recorded")
        self._check_end(good, "same", "--good", "parts from the recording already")
        goods, unusable = [good.id], set[str]()
        while True:
            left = self._repository.halving(bad.id, goods)
            following = next((each for each in left if each != bad.id and each not in unusable), None)
            if following is None:
                suspects = [bad, *(self._repository.commit(each) for each in left if each != bad.id)]
                return BisectionReport(tuple(suspects), finding, tuple(self._found.items()))
            commit = self._repository.commit(following)
            found = self._probe_commit(commit)
            if found.status == "parted":
                bad, finding = commit, found
            elif found.status == "same":
                goods.append(commit.id)
            else:
                unusable.add(commit.id)

    def _check_end(self, commit: Commit, status: str, option: str, otherwise: str) -> BisectResult:
        found = self._probe_commit(commit)
        if found.status == status:
            return found
        reason = " ".join(found.lines[:SAID_LINES_MAX])
        what = f"cannot be replayed: {reason}" if found.status == "unusable" else f"{otherwise}. {reason}".rstrip(". ")
        raise InputError(f"{option} {commit.id[:12]} ({commit.subject}) {what}; name another commit")

    def _probe_commit(self, commit: Commit) -> BisectResult:
        with (
            TemporaryFolder(FOLDER) as folder,
            self._repository.checked_out(commit.id) as at,
        ):
            found = self._in_child(folder, at)
        self._found[commit] = found
        self._tell(commit, found)
        return found

    def _in_child(self, folder: Path, tree: Path) -> BisectResult:
        recording, answer, trace = (folder / name for name in ("recording.json", "finding.json", "trace"))
        recording.write_bytes(msgspec.json.encode(self._recording))
        probe = [sys.executable, "-P", "-m", "refold.agents.bisect.probe"]
        command = [
            *probe,
            recording,
            self._entry,
            self._redactor,
            tree,
            answer,
            *([trace] if self._is_confined else []),
        ]
        if not tree.is_dir():
            return BisectResult(status="unusable", lines=(f"it has no folder {self._repository.inside}",))
        try:
            done = subprocess.run(
                [str(each) for each in command], cwd=tree, env=self._environment(folder), stdin=subprocess.DEVNULL,
                capture_output=True, timeout=self._timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return BisectResult(status="unusable", lines=(f"it was not done after {self._timeout_s:g} s (--timeout)",))
        if self._is_confined and done.returncode == -signal.SIGSYS:
            return BisectResult(status="parted", lines=(str(denied_by_kernel(trace.read_bytes())),))
        if not answer.exists():
            lines = done.stderr.decode(errors="replace").strip().splitlines()[-SAID_LINES_MAX:]
            return BisectResult(status="unusable", lines=(f"its process ended with {done.returncode}", *lines))
        found = msgspec.json.decode(answer.read_bytes(), type=BisectResult)
        if found.refused:
            raise not_confinable(found.refused)
        return found

    def _environment(self, folder: Path) -> dict[str, str]:
        """Return this process's environment, without the user's own work tree in the import path."""
        top, kept = self._repository.top.resolve(), []
        for each in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            place = Path(each).resolve()
            if each and top != place and top not in place.parents:
                kept.append(each)
        more = {"PYTHONPATH": os.pathsep.join(kept), "PYTHONDONTWRITEBYTECODE": "1"}
        return {**os.environ, **self._settings, **more, **({"TMPDIR": str(folder)} if self._is_confined else {})}
