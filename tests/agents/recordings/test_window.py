"""A window of a run has the steps of the whole recording."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

import refold
from refold.agents.journal.record import Recording, Step
from refold.agents.recordings.window import LongRun
from refold.agents.vault import ClearVault
from refold_tests.recorded_runs import forked, random_run, write


def own_steps(run: Recording, after: int, count: int) -> list[Step]:
    return [msgspec.structs.replace(run.steps[0], number=after + each) for each in range(1, count + 1)]


def test_windows_are_slices_of_the_recording(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        ended = random_run(chosen, "ended", 23)
        going = random_run(chosen, "going", 11, ended=False)
        child = forked(ended, "child", 9, *own_steps(ended, 9, 4))
        grandchild = forked(child, "grandchild", 11, *own_steps(child, 11, 3))
        for run in (ended, going, child, grandchild):
            write(log, run)
        cut = log.point().cut
        for run in (ended, going, child, grandchild):
            whole = log.recording(run.run)
            long = LongRun(log, ClearVault(log), run.run, cut)
            assert long.has_windows
            assert long.count == len(whole.steps)
            for _ in range(6):
                first = chosen.randint(1, long.count)
                last = chosen.randint(first, long.count + 3)
                found = long.window(first, last)
                assert found.steps == whole.steps[first - 1 : last]
                assert found.is_whole
                assert found.total == long.count
            head = msgspec.structs.replace(whole, steps=(), children={}, forks=())
            assert long.window(1, 1).head == head


def test_imported_run_has_no_windows(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        log.observe("run/i", {"agent": "a", "imported_from": "openai"}, source="a")
        assert not LongRun(log, ClearVault(log), "i", log.point().cut).has_windows
