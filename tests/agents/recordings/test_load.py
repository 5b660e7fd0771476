"""A run is read back as it was recorded: its steps, attempts and ends, at any point, alone or among many runs."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording, Step
from refold.agents.keys.ring import MemoryKeyRing
from refold.agents.recordings.load import load, recordings
from refold.agents.vault import ClearVault, Vault, run_key
from refold.avro.errors import CorruptionError, Expired, NotAnswerable, UnknownEntity
from refold_tests.recorded_runs import forked, random_run, write

exactly = msgspec.json.Encoder(order="sorted").encode
"""Encodes so that 50.0 differs from 50."""


@pytest.mark.parametrize("is_sealed", [False, True], ids=["clear", "sealed"])
def test_recording_round_trips(tmp_path: Path, seed: int, is_sealed: bool) -> None:
    rng = random.Random(seed)
    runs = [random_run(rng, f"r-{n}", rng.choice((0, 1, 5, 70)), ended=rng.random() < 0.8) for n in range(12)]
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        vault = Vault(log, MemoryKeyRing()) if is_sealed else ClearVault(log)
        for each in runs:
            write(log, each, vault)
        for each in runs:
            found = load(log, each.run, vault)
            assert found == each
            assert exactly(found) == exactly(each)
        ids = [each.run for each in runs]
        assert list(recordings(log, ids, vault)) == runs
        assert [list(broken(each)) for each in runs] == [[]] * len(runs)


def test_altered_step_is_detected(tmp_path: Path, seed: int) -> None:
    run = random_run(random.Random(seed), "r", 5)
    changed = msgspec.structs.replace(run.steps[2], result="another")
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        write(log, msgspec.structs.replace(run, steps=(*run.steps[:2], changed, *run.steps[3:])))
        assert list(broken(load(log, "r", ClearVault(log)))) == [3]


def test_fork_starts_with_its_parents_steps(tmp_path: Path, seed: int) -> None:
    parent = random_run(random.Random(seed), "parent", 6)
    own = tuple(Step(number=n, name="own", attempts=parent.steps[0].attempts, outcome="succeeded") for n in (4, 5))
    child = forked(parent, "child", 3, *own)
    grandchild = forked(child, "grandchild", 4, msgspec.structs.replace(own[1], name="other"))
    again = forked(child, "again", 3, msgspec.structs.replace(own[0], name="other"))
    first = forked(parent, "first", 0, msgspec.structs.replace(own[0], number=1))
    every = (parent, child, grandchild, again, first)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        for each in every:
            write(log, each)
        for each in every:
            found = load(log, each.run, ClearVault(log))
            assert found == each
            assert list(broken(found)) == []


def test_run_is_read_as_of_a_cut(tmp_path: Path, seed: int) -> None:
    run = random_run(random.Random(seed), "r", 3)
    pending = msgspec.structs.replace(run, status="running", outcome="", ended_at=0)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        write(log, msgspec.structs.replace(pending, steps=run.steps[:2]))
        then = log.point().cut
        write(log, run)
        before = load(log, "r", ClearVault(log), then)
        assert (before.status, before.outcome, before.hash) == ("running", "", "")
        assert before.steps == run.steps[:2]
        assert load(log, "r", ClearVault(log)).outcome == run.outcome


def test_unknown_run_id_suggests_similar_ones(tmp_path: Path, seed: int) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        with pytest.raises(UnknownEntity, match="no run is recorded in this log yet"):
            load(log, "r-1", ClearVault(log))
        for name in ("refund-1", "refund-2", "other"):
            write(log, random_run(random.Random(seed), name, 1))
        with pytest.raises(UnknownEntity, match=r"no run refund is in this log; .* refund-1, refund-2$"):
            load(log, "refund", ClearVault(log))
        with pytest.raises(UnknownEntity, match="lists those"):
            load(log, "xyz", ClearVault(log))


def test_expired_content_lists_what_is_still_known(tmp_path: Path, seed: int) -> None:
    run = random_run(random.Random(seed), "r", 2)
    child = forked(run, "child", 1)
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        ring = MemoryKeyRing()
        vault = Vault(log, ring)
        write(log, run, vault)
        write(log, child, vault)
        ring.destroy(run_key("r"))
        known = f"{run.agent} {run.version}, {run.outcome}, 2 steps, hash {run.hash}"
        with pytest.raises(Expired, match=f"^run r: step/r#1 journal: expired: .* Still known: {known}$"):
            load(log, "r", vault)
        with pytest.raises(Expired, match=r"^run child: step/r#1 journal: expired: .* Still known: .* 1 steps?, hash"):
            list(recordings(log, ["child"], vault))


def test_incomplete_or_cyclic_run_records_are_refused(tmp_path: Path) -> None:
    with refold.open(f"file:{tmp_path / 'log'}") as log:
        write(log, Recording(run="a", parent="b", forked_at=0, patch={"state": []}))
        with pytest.raises(UnknownEntity, match="no run b is in this log"):
            load(log, "a", ClearVault(log))
        write(log, Recording(run="b", parent="a", forked_at=0, patch={"state": []}))
        with pytest.raises(CorruptionError, match="a fork of itself, through a"):
            load(log, "a", ClearVault(log))
        write(log, Recording(run="c"))
        write(log, Recording(run="d", parent="c", forked_at=2, patch={"state": []}))
        with pytest.raises(NotAnswerable, match="diverges from c after step 2, and that run has 0 steps"):
            load(log, "d", ClearVault(log))
        log.observe("run/e", {"agent": "x"})
        log.observe("step/e#1", {"journal": {"1": {"no": "attempt"}}})
        with pytest.raises(CorruptionError, match="step/e#1: its journal holds no valid attempt"):
            load(log, "e", ClearVault(log))
        log.observe("run/f", {"agent": "x", "step_count": 2, "ended_at": 5})
        log.observe("step/f#1", {"name": "x"})
        with pytest.raises(NotAnswerable, match="its step 2 of 2 is missing"):
            load(log, "f", ClearVault(log))
