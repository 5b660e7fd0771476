"""What an owner does next: a table of cases, and laws over random stories of an agent's life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.agents.supervise.lease import AgentRecord, DesiredState, ObservedState
from refold.agents.supervise.machine import Deed, NextMove, ProcessView, next_move
from refold.agents.supervise.settings import AgentSettings

SECOND = 1_000_000
NOW = 1_000 * SECOND
AGENT = AgentSettings(command=("x",), backoff_s=1, backoff_max_s=4, reset_s=60, retries=3)
HERE, RUNNING, HELD = (
    ProcessView(is_there=True),
    ProcessView(7, is_there=True),
    ProcessView(7, is_there=True, is_at_gate=True),
)


GONE = ProcessView()


def move(
    wanted: str, status: str, process: ProcessView = GONE, *, number: int = 1, agent: AgentSettings = AGENT,
    outcome: str = "", **observed: Any,
) -> NextMove:  # fmt: skip
    given = {"handled": 1, "attempt": 1, "run": "r", **observed}
    record = AgentRecord(desired=DesiredState(wanted, number, "ann"), observed=ObservedState(status, **given))
    return next_move(record, process, agent, NOW, outcome)


def status(found: NextMove) -> str:
    assert found.observed is not None
    return found.observed.status


@pytest.mark.parametrize(
    ("wanted", "before", "process", "deed", "after"),
    [
        ("running", "", ProcessView(), Deed.START, "starting"),
        ("running", "stopped", ProcessView(), Deed.START, "starting"),
        ("running", "unknown", ProcessView(), Deed.START, "starting"),
        ("running", "paused", ProcessView(), Deed.START, "starting"),
        ("running", "starting", HERE, Deed.NOTHING, None),
        ("running", "starting", RUNNING, Deed.NOTHING, "running"),
        ("running", "running", RUNNING, Deed.NOTHING, None),
        ("running", "ended", ProcessView(), Deed.NOTHING, None),
        ("running", "failed", ProcessView(), Deed.NOTHING, None),
        ("paused", "running", RUNNING, Deed.HOLD, "pausing"),
        ("paused", "pausing", RUNNING, Deed.NOTHING, None),
        ("paused", "pausing", HELD, Deed.NOTHING, "paused"),
        ("running", "pausing", RUNNING, Deed.LET_GO, "running"),
        ("running", "paused", HELD, Deed.LET_GO, "running"),
        ("paused", "unknown", ProcessView(), Deed.NOTHING, "paused"),
        ("paused", "starting", HERE, Deed.NOTHING, None),
        ("stopped", "running", RUNNING, Deed.STOP, "stopping"),
        ("stopped", "paused", HELD, Deed.STOP, "stopping"),
        ("stopped", "starting", HERE, Deed.NOTHING, None),
        ("stopped", "stopping", RUNNING, Deed.NOTHING, None),
        ("running", "stopping", RUNNING, Deed.NOTHING, None),
        ("stopped", "waiting", ProcessView(), Deed.NOTHING, "stopped"),
        ("stopped", "unknown", ProcessView(), Deed.NOTHING, "stopped"),
        ("stopped", "failed", ProcessView(), Deed.NOTHING, None),
        ("paused", "ended", ProcessView(), Deed.NOTHING, None),
        ("", "", ProcessView(), Deed.NOTHING, None),
    ],
)
def test_what_follows(wanted: str, before: str, process: ProcessView, deed: Deed, after: str | None) -> None:
    found = move(wanted, before, process)
    assert found.deed == deed
    assert (found.observed.status if found.observed else None) == after


@pytest.mark.parametrize("restart", ["never", "on-failure", "always"])
@pytest.mark.parametrize("exit_status", [0, 1, -9])
def test_after_its_end_the_restart_policy_decides(restart: Any, exit_status: int) -> None:
    agent = AgentSettings(command=("x",), restart=restart)
    found = move(
        "running", "running", ProcessView(exit_status=exit_status), agent=agent, pid=7, process_start=3
    ).observed
    assert found is not None
    expected = {"never": "failed", "on-failure": "waiting", "always": "waiting"} if exit_status else {
        "never": "ended", "on-failure": "ended", "always": "waiting"
    }  # fmt: skip
    assert (found.status, found.exit_status) == (expected[restart], exit_status)
    assert (found.pid, found.process_start) == (0, 0)
    assert found.run == ("" if restart == "always" and not exit_status else "r")
    assert found.why == ("a signal ended it: 9" if exit_status == -9 else f"it exited with {exit_status}")


def test_backoff_grows_after_each_failure_until_it_stays_failed() -> None:
    waits, failures = [], 0
    while True:
        found = move("running", "running", ProcessView(exit_status=1), failures=failures).observed
        assert found is not None
        failures = found.failures
        if found.status == "failed":
            break
        waits.append((found.restart_at - NOW) / SECOND)
    assert waits == [1, 2, 4]
    assert (failures, found.why) == (4, "it exited with 1, 4 times in a row")
    long = move("running", "running", ProcessView(exit_status=1, ran_s=61), failures=3).observed
    assert long is not None
    assert (long.status, long.failures) == ("waiting", 1)


def test_agent_restarts_after_its_backoff_or_on_request() -> None:
    assert move("running", "waiting", restart_at=NOW + 1) == NextMove()
    found = move("running", "waiting", restart_at=NOW)
    assert (found.deed, found.observed and found.observed.why) == (Deed.START, "its wait is over")
    assert move("running", "waiting", restart_at=NOW + 1, number=2).deed == Deed.START


def test_failed_or_ended_agent_restarts_only_on_a_newer_request() -> None:
    for before in ("failed", "ended"):
        assert move("running", before) == NextMove()
        found = move("running", before, number=2, failures=3)
        assert found.observed is not None
        assert (found.deed, found.observed.failures, found.observed.attempt) == (Deed.START, 0, 2)
        assert found.observed.run == ("r" if before == "failed" else "")


def test_ended_or_failed_agent_is_stopped_or_paused_by_a_newer_request() -> None:
    for before in ("ended", "failed"):
        for wanted in ("stopped", "paused"):
            found = move(wanted, before, number=2).observed
            assert found is not None
            assert (found.status, found.run) == (wanted, "" if before == "ended" else "r")


def test_request_without_a_change_is_also_acknowledged() -> None:
    for wanted, process in (
        ("running", RUNNING),
        ("paused", HELD),
        ("paused", ProcessView()),
        ("stopped", ProcessView()),
    ):
        found = move(wanted, wanted, process, number=2, why="before").observed
        assert found is not None
        assert (found.status, found.handled, found.why) == (wanted, 2, "before")


def test_agent_to_be_stopped_is_stopped_however_it_ended() -> None:
    for process in (ProcessView(exit_status=0), ProcessView(exit_status=-9), ProcessView(failure="its keeper is gone")):
        assert status(move("stopped", "stopping", process)) == "stopped"


def test_succeeded_run_is_not_repeated() -> None:
    lost = move("running", "unknown", outcome="succeeded")
    assert (lost.deed, status(lost)) == (Deed.NOTHING, "ended")
    late = move("running", "running", ProcessView(exit_status=1), outcome="succeeded")
    assert status(late) == "ended"
    assert move("running", "unknown", outcome="failed").deed == Deed.START


@pytest.mark.parametrize("restart", ["never", "on-failure", "always"])
@pytest.mark.parametrize("exit_status", [0, 1])
def test_run_that_asks_a_person_waits_for_the_answer(restart: Any, exit_status: int) -> None:
    agent = AgentSettings(command=("x",), restart=restart, retries=0)
    record = AgentRecord(
        desired=DesiredState("running", 1, "ann"), observed=ObservedState("running", run="r", handled=1)
    )
    found = next_move(record, ProcessView(exit_status=exit_status), agent, NOW, "asking").observed
    assert found is not None
    assert (found.status == "asking") == (restart != "never")
    asking = replace(record, observed=found)
    assert next_move(asking, ProcessView(), agent, NOW + 99 * SECOND) == NextMove()
    assert next_move(replace(asking, desired=DesiredState("running", 2, "ann")), ProcessView(), agent, NOW).deed == (
        Deed.START
    )  # fmt: skip


def test_unstartable_agent_is_not_retried() -> None:
    found = move("running", "starting", ProcessView(failure="no such program", is_refused=True)).observed
    assert found is not None
    assert (found.status, found.why) == ("failed", "no such program")


EVENTS = st.lists(
    st.sampled_from(["running", "paused", "stopped", "started", "held", "exit 0", "exit 1", "killed", "time", "owner"]),
    max_size=60,
)


@given(EVENTS, st.sampled_from(["never", "on-failure", "always"]))
@settings(max_examples=300)
def test_laws_of_any_life(events: list[str], restart: Any) -> None:
    """The owner moves until nothing is to be done, after each event. owner: the owner is replaced."""
    agent = AgentSettings(command=("x",), restart=restart, backoff_s=1, backoff_max_s=1, retries=2)
    record = AgentRecord(desired=DesiredState("running", 1, "ann"))
    process, now, starts = ProcessView(), NOW, 0
    for event in ["", *events]:
        if event in ("running", "paused", "stopped"):
            record = replace(record, desired=DesiredState(event, record.desired.number + 1, "ann"))
        elif event == "time":
            now += 2 * SECOND
        elif event == "owner":
            process = ProcessView()
            if record.observed.status in ("starting", "running", "pausing", "paused", "stopping"):
                record = replace(record, observed=record.observed._replace(status="unknown", pid=0))
        elif process.is_there and event == "started":
            process = process._replace(pid=7)
        elif process.is_there and event == "held" and record.observed.status == "pausing":
            process = process._replace(is_at_gate=True)
        elif process.is_there and event in ("exit 0", "exit 1", "killed"):
            process = ProcessView(exit_status={"exit 0": 0, "exit 1": 1, "killed": -9}[event])
        for _ in range(8):
            found = next_move(record, process, agent, now)
            if found.deed == Deed.START:
                assert not process.is_there, "two processes"
                assert record.desired.what == "running"
                starts += 1
                process = ProcessView(is_there=True)
            elif found.deed == Deed.LET_GO:
                process = process._replace(is_at_gate=False)
            elif not process.is_there:
                process = ProcessView()
            if found.observed is not None:
                record = replace(record, observed=found.observed)
            if found == NextMove():
                break
        else:
            raise AssertionError("it never comes to rest")
        said = record.observed
        assert (said.status in ("starting", "running", "pausing", "stopping")) <= process.is_there
        assert not process.is_there or said.status in ("starting", "running", "pausing", "paused", "stopping")
        assert said.attempt == starts
        if said.status == "running":
            assert record.desired.what == "running"
        if record.desired.what == "stopped" and not process.is_there:
            assert said.status in ("stopped", "ended", "failed")
