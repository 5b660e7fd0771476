"""Runs within a run, where the kernel confines the process: answered by the recording, and never begun."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.golden.add import golden_of_run
from refold.agents.golden.file import golden_of, text_of
from refold.agents.golden.runner import exercised
from refold.agents.log import AgentLog
from refold.agents.recorder.answers import Departure
from refold_tests.delegating import WORLD, agent

ENTRY = "refold_tests.delegating:agent"
OUTPUT = ["sent a by a clerk", "sent b by a clerk", "sent c by a clerk"]


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentLog]:
    monkeypatch.setenv(WORLD, str(tmp_path / "world"))
    with refold.open(f"file:{tmp_path}/log") as found:
        found.observe("tool_config/acme", {"rate_limit": 12})
        assert found.run("outer", id="r1").drive(agent) == OUTPUT
        yield found
    assert sorted((tmp_path / "world").read_text().splitlines()) == [f"{each} by a clerk" for each in "abc"]


def test_children_are_replayed_confined_with_what_they_read(log: AgentLog) -> None:
    found = log.replay("r1", ENTRY, confined=True)
    assert found.is_same
    assert [each.agent for each in found.now.family] == ["outer", *["worker", "clerk"] * 3]


@pytest.mark.parametrize("expect", ["exact", "outcome = succeeded"])
@pytest.mark.parametrize("confined", [True, False], ids=["confined", "guarded"])
def test_children_are_part_of_a_golden_file(log: AgentLog, tmp_path: Path, expect: str, confined: bool) -> None:
    made = golden_of_run(log.recording("r1"), log._fields, entry=ENTRY, expect=[expect])
    golden = golden_of(text_of(made), "golden")
    assert len(list(golden.run.family)) == 7
    assert all(each.hash for each in golden.run.family)
    assert exercised(golden, tmp_path, ENTRY, confined=confined).passed


def test_a_confined_fork_begins_none_and_goes_through_those_before_it(log: AgentLog) -> None:
    log.fork_confined("r1", ENTRY, at=2, id="after")
    assert log.recording("after").output == OUTPUT
    with pytest.raises(Departure, match="a confined fork begins none"):
        log.fork_confined("r1", ENTRY, at=1, id="before")
    assert log.recording("before").outcome == "failed"
