"""Reading the records of an agent in a real log: from a checkpoint, and without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import refold
from refold.agents.log import AgentLog
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.lease import AgentRecord, ObservedState
from refold.agents.supervise.listing import agents
from refold.agents.supervise.settings import AgentSettings
from refold.streams.log.port import observation_in
from refold_tests.supervised import now

EVERY = 5
"""After how many records a checkpoint is recorded here."""
SETTINGS = AgentSettings(command=("true",))


@pytest.fixture
def log(tmp_path: Path) -> Iterator[AgentLog]:
    with refold.open(f"file:{tmp_path}/log") as log:
        partition = log.port.partition_of("agent/desk")
        first = next(name for name in map("document/{}".format, count()) if log.port.partition_of(name) == partition)
        log.observe(first, {"kind": "so that the agent's records do not begin at 0"})
        yield log


def owned(log: AgentLog, token: str, record: AgentRecord) -> OwnedEntries:
    mine = OwnedEntries(log, now, "desk", token, f"owner of {token}", 60_000, checkpoint_after=EVERY)
    mine.claim(record)
    return mine


def own_and_renew(log: AgentLog, renewals: int) -> AgentRecord:
    """Own the agent, run it and renew the claim so often; return what the log says."""
    reader = AgentEntries(log, now)
    reader.request("desk", "running", "ann", "")
    mine = owned(log, "a", reader.read("desk"))
    record = reader.read("desk")
    mine.granted(record, SETTINGS)
    mine.status(record, ObservedState("running", attempt=1, pid=7))
    for _ in range(renewals):
        record = reader.read("desk", record)
        mine.renew(record)
    return reader.read("desk", record)


class Counted:
    """Counts the records that are read of a log."""

    def __init__(self, log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        original = log.port.entity_records

        def records(*args: Any) -> Iterator[Any]:
            for each in original(*args):
                self.count += 1
                yield each

        monkeypatch.setattr(log.port, "entity_records", records)


def test_new_reader_reads_a_bounded_number_of_records(log: AgentLog, monkeypatch: pytest.MonkeyPatch) -> None:
    known = own_and_renew(log, 8 * EVERY)
    counted = Counted(log, monkeypatch)
    found = AgentEntries(log, now).read("desk")
    assert found.checkpoint() == known.checkpoint()
    assert (found.beat, found.observed.pid, found.desired.number) == (8 * EVERY, 7, 1)
    assert counted.count <= EVERY + 2


def test_checkpoint_of_an_owner_that_lost_the_agent_misleads_nobody(log: AgentLog) -> None:
    known = own_and_renew(log, EVERY - 4)
    assert known.since_checkpoint == EVERY, "the next renewal has a checkpoint"
    late = OwnedEntries(log, now, "desk", "a", "owner of a", 60_000, checkpoint_after=EVERY)
    owned(log, "b", known)
    late.renew(known)  # it is recorded after the other one was granted, with a checkpoint from before that
    found = AgentEntries(log, now).read("desk")
    assert log.state("agent/desk").fields["checkpoint"]["token"] == "a"
    assert (found.token, found.term, found.beat) == ("b", 2, 0)


def test_log_with_other_positions_is_read_from_its_begin(log: AgentLog, tmp_path: Path) -> None:
    known = own_and_renew(log, 2 * EVERY)
    with refold.open(f"file:{tmp_path}/other") as other:
        for record in log.port.entity_records("agent/desk", known.offset):
            said = observation_in(log.port.registry, record)
            patch = dict(said.patch)
            if "checkpoint" in patch:
                patch["checkpoint"] = json.loads(str(patch["checkpoint"]))
            other.observe(
                said.entity, patch, source=said.source, observed_at=said.observed_at, priority=said.priority,
                cleared=said.cleared, allow_future=True,
            )  # fmt: skip
        other.flush()
        found = AgentEntries(other, now).read("desk")
        assert other.state("agent/desk").fields["checkpoint"] == log.state("agent/desk").fields["checkpoint"]
    assert (found.token, found.beat, found.observed, found.desired) == (
        known.token, known.beat, known.observed, known.desired
    )  # fmt: skip


def test_no_reader_takes_the_status_of_an_earlier_owner_for_one_of_the_next(log: AgentLog) -> None:
    known = own_and_renew(log, 1)
    mine = owned(log, "b", known)
    [row] = agents(log, now())
    assert (row.owner, row.status, row.pid) == ("owner of a", "running", 7), "its lease is not over yet"
    record = AgentEntries(log, now).read("desk")
    mine.granted(record, SETTINGS, record.observed._replace(status="unknown", why="its owner is gone", pid=0))
    [row] = agents(log, now())
    assert (row.owner, row.term, row.status, row.pid) == ("owner of b", 2, "unknown", 0)
    assert [each["after"] for each in row.transitions] == ["running", "unknown"]
