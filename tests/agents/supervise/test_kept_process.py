"""What a keeper leaves that was killed: it is killed too, but not if the next keeper holds the agent's lock."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from refold.agents.supervise.keeper import KeeperOrder, boottime_s, try_lock
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.machine_processes import MARK
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside


@contextmanager
def marked_process(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with the agent's mark, as one that its keeper left."""
    with subprocess.Popen(["sleep", "600"], env={MARK: str(folder), "PATH": os.environ["PATH"]}) as process:
        yield process
        process.kill()


def of_a_killed_keeper(folder: Path) -> KeptProcess:
    """An agent whose keeper was killed."""
    kept = KeptProcess(
        KeeperOrder(
            ["sleep", "600"], dict(os.environ), str(folder), str(folder), str(folder), boottime_s() + 600, 1, {}
        )
    )
    await_true(lambda: kept.view().pid != 0, "the agent was not started")
    keeper = int(Path(f"/proc/{kept.view().pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(keeper, signal.SIGKILL)
    await_true(lambda: kept.is_gone)
    return kept


@pytest.mark.parametrize("is_locked", [False, True])
def test_what_a_killed_keeper_left_is_killed_unless_another_one_has_the_lock(tmp_path: Path, is_locked: bool) -> None:
    kept = of_a_killed_keeper(tmp_path)
    with marked_process(tmp_path) as left:
        lock = try_lock(str(tmp_path)) if is_locked else None
        assert (lock is not None) == is_locked
        view = kept.view()
        assert (view.is_there, view.failure) == (False, "its keeper was ended by signal 9")
        if lock is None:
            assert left.wait(60) == -signal.SIGKILL
        else:
            os.close(lock)
            left.terminate()
            assert left.wait(60) == -signal.SIGTERM, "it was killed before"
    kept.close()


def test_keeper_without_its_folder_is_gone_all_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    kept = of_a_killed_keeper(folder)
    (folder / "lock").unlink()
    (folder / "output.log").unlink(missing_ok=True)
    folder.rmdir()
    assert not kept.view().is_there
    kept.close()
