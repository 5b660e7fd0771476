"""Nested runs in a process that the kernel confines: replayed, and recorded with a fork."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

import refold
from refold.agents.confined.journal import StepBegun, write_line
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import golden_of, text_of
from refold.agents.golden.runner import exercised
from refold.agents.journal.chain import broken
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold.avro.errors import InputError
from refold_tests.delegating_agent import WORLD, agent

ENTRY = "refold_tests.delegating_agent:agent"
OUTPUT = ["sent a by a clerk", "sent b by a clerk", "sent c by a clerk"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentLog]:
    monkeypatch.setenv(WORLD, str(tmp_path / "world"))
    with refold.open(f"file:{tmp_path}/log") as found:
        found.observe("tool_config/acme", {"rate_limit": 12})
        assert found.run("outer", id="r1").drive(agent) == OUTPUT
        yield found
    assert sorted((tmp_path / "world").read_text().splitlines()) == [f"{each} by a clerk" for each in "abc"]


def test_child_runs_replay_confined_with_their_reads(log: AgentLog) -> None:
    found = log.replay("r1", ENTRY, confined=True)
    assert found.is_same
    assert [each.agent for each in found.now.family] == ["outer", *["worker", "clerk"] * 3]


@pytest.mark.parametrize("expect", ["exact", "outcome = succeeded"])
@pytest.mark.parametrize("confined", [True, False], ids=["confined", "guarded"])
def test_child_runs_are_part_of_a_golden_file(log: AgentLog, tmp_path: Path, expect: str, confined: bool) -> None:
    made = golden_of_run(log.recording("r1"), log._fields, entry=ENTRY, expect=[expect])
    golden = golden_of(text_of(made), "golden")
    assert len(list(golden.run.family)) == 7
    assert all(each.hash for each in golden.run.family)
    assert exercised(golden, tmp_path, ENTRY, confined=confined).passed


def shape(log: AgentLog, run: str) -> object:
    """Return what a run and its nested runs did, without what depends on their ids."""
    found = log.recording(run)
    return [(each.agent, each.kind, each.input, each.outcome, each.output, each.caller_step, each.user, each.redacted,
             [(step.name, step.outcome, [call.asked.name for call in step.calls]) for step in each.steps])
            for each in found.family]  # fmt: skip


@pytest.mark.parametrize("at", [0, 1, 2])
def test_confined_fork_has_the_same_child_runs_as_an_unconfined_one(log: AgentLog, at: int) -> None:
    log.fork_confined("r1", ENTRY, at=at, id="confined")
    assert log.fork("r1", at=at, id="plain", policy="recorded").drive(agent) == OUTPUT
    assert shape(log, "confined") == shape(log, "plain")
    confined = log.recording("confined")
    assert confined.output == OUTPUT
    for each in confined.family:
        assert list(broken(each)) == []
        assert each.status == "ended"
        for call in (call for step in each.steps for call in step.calls if call.asked.kind == "run"):
            within = each.children[call.answer["run"]]
            assert call.answer == {"run": within.run, "outcome": within.outcome, "hash": within.hash}
            assert within.hash
    assert log.replay("confined", ENTRY).is_same
    assert log.replay("confined", ENTRY, confined=True).is_same
    assert log.compare("confined", "plain") is None


def test_log_lines_of_runs_in_threads_are_complete() -> None:
    names = ("one", "two", "three", "four")
    with os.fdopen(os.memfd_create("lines"), "w+b", buffering=0) as out:

        def write(name: str) -> None:
            for number in range(3000):
                write_line(out, StepBegun(number, name, 1, 0))

        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(write, names))
        out.seek(0)
        found = [msgspec.json.decode(line, type=StepBegun) for line in out.read().splitlines()]
    for name in names:
        assert [each.number for each in found if each.name == name] == list(range(3000))


def test_diverging_child_in_a_confined_fork_ends_both_runs(log: AgentLog) -> None:
    with pytest.raises(Departure, match="does not hold"):
        log.fork_confined("r1", f"{ENTRY.partition(':')[0]}:other", at=1, id="other")
    assert (log.recording("other").status, log.recording("other").outcome) == ("ended", "failed")
    (row,) = [each for each in log.runs(agent="worker").rows if log.recording(each.run).caller == "other"]
    assert (row.outcome, log.recording(row.run).status) == ("failed", "ended")


def test_killed_child_in_a_confined_fork_is_failed(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELEGATED_DIES", "c")
    with pytest.raises(InputError, match="by signal 9"):
        log.fork_confined("r1", ENTRY, at=1, id="killed")
    monkeypatch.delenv("DELEGATED_DIES")
    callers = {"killed"}
    for agent_name in ("worker", "clerk"):
        (found,) = [
            each for each in map(log.recording, (row.run for row in log.runs(agent=agent_name).rows))
            if each.caller in callers
        ]  # fmt: skip
        assert (found.status, found.outcome) == ("ended", "failed")
        callers = {found.run}
    assert log.recording("killed").outcome == "failed"
