"""Supervisors heal: the agent of stuck_agent.py is stopped by its policy, and its supervisor continues with its run."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import Healing, HealingLog, healings
from refold.agents.heal.plan import HealPlan
from refold.agents.heal.supervised import CRASHES_MAX, AgentHealing, HealingKind
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.lease import AgentRecord, DesiredState, ObservedState
from refold.agents.supervise.listing import AgentRow, agents
from refold.agents.supervise.machine import Deed, NextMove, ProcessView, next_move
from refold.agents.supervise.settings import AgentSettings
from refold.avro.errors import InputError
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child, children
from refold_tests.processes import is_gone
from refold_tests.stuck_agent import PLAN, paid, placed, setting, stuck
from refold_tests.supervised import Desk, now
from refold_tests.supervising import supervisor
from refold_tests.waiting import await_true

PROGRAM = """
import sys
import refold
import agent

with refold.open() as log:
    log.run("payer", entry="agent.py:agent").drive(agent.agent)
"""
REMEDIES = PLAN.replace('guard = "policy.toml"\n', "")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as found:
        yield found


@pytest.fixture
def start() -> Iterator[Callable[..., Child]]:
    with children() as starting:
        yield starting


def declared(desk: Desk, /, **plans: str) -> None:
    """Write agents by name, each with its plan."""
    placed(desk.folder)
    (desk.folder / "program.py").write_text(PROGRAM)
    tables = []
    for name, plan in plans.items():
        remedies = plan.replace("[[remedy]]", f"[[agents.{name}.heal.remedy]]")
        tables.append(f"""
[agents.{name}]
command = [{sys.executable!r}, "program.py"]
policy = "policy.toml"
backoff_s = 0.1
[agents.{name}.heal]
{remedies}""")
    (desk.folder / "refold.toml").write_text("\n".join(tables))


def row(desk: Desk, name: str) -> AgentRow:
    return next((each for each in agents(desk.log, now()) if each.name == name), None) or pytest.fail(f"no {name}")


def story(each: AgentRow) -> list[str]:
    """Return the statuses that an agent had. A process may end before its owner has seen that it runs."""
    return [change["after"] for change in each.transitions if change["after"] != "running"]


@pytest.mark.outside
def test_supervisor_heals_asks_and_gives_up(desk: Desk, start: Callable[..., Child]) -> None:
    declared(
        desk, healed=REMEDIES, asks=REMEDIES.replace("answers.pay", "approve = true\nanswers.pay"),
        stops="attempts = 1\n[[remedy]]\nname = 'again'\ndo = 'retry'\n",
    )  # fmt: skip
    one = supervisor(start, desk.url, desk.folder)
    statuses = {"healed": "ended", "asks": "asking", "stops": "failed"}

    def is_done() -> bool:
        there = {each.name: each for each in agents(desk.log, now())}
        return all(name in there and there[name].status == status for name, status in statuses.items()) and (
            "not healed" in there["stops"].why
        )

    await_true(is_done)
    healed, asks, stops = (row(desk, name) for name in statuses)
    assert story(healed) == ["starting", "failed", "healing", "ended"]
    assert healed.run.endswith(".2.continued")
    assert desk.log.recording(healed.run).outcome == "succeeded"
    assert stops.why == "not healed: 1 of 1 attempts for a run are used up"
    assert (stops.heals, asks.heals) == (0, 1)
    assert len(paid(desk.folder)) == 1
    [question] = desk.log.questions()
    assert asks.why == f"refold approve {question.id}, or refold deny {question.id}"
    desk.log.answer(question.id, is_approved=True, by="ann")
    await_true(lambda: row(desk, "asks").status == "ended")
    assert story(row(desk, "asks")) == ["starting", "failed", "healing", "asking", "failed", "healing", "ended"]
    assert len(paid(desk.folder)) == 2
    one.signal(signal.SIGTERM)
    assert one.end() == 0


@pytest.mark.outside
def test_successor_of_a_killed_supervisor_continues_the_healing(desk: Desk, start: Callable[..., Child]) -> None:
    declared(desk, desk=REMEDIES)
    code = (desk.folder / "agent.py").read_text()
    waits = """
    WORLD.with_name("writes").touch()
    while not WORLD.with_name("go").exists():
        __import__("time").sleep(0.01)
"""
    (desk.folder / "agent.py").write_text(code.replace('    reach("before the write")\n', waits))
    one = supervisor(start, desk.url, desk.folder, lease_s=2)
    await_true(lambda: (desk.folder / "writes").exists() and bool(desk.row.pid))
    healing = desk.row
    assert healing.status == "healing"
    one.kill()
    await_true(lambda: is_gone(healing.pid), "the process that heals outlived its supervisor")
    assert paid(desk.folder) == []
    (desk.folder / "go").touch()
    supervisor(start, desk.url, desk.folder)
    await_true(lambda: desk.row.status == "ended")
    # With so short a lease a slow machine may lose the agent before it fails, and while it is healed.
    told = story(desk.row)
    after = told[len(told) - told[::-1].index("failed") :]
    assert set(after[:-1]) == {"healing", "unknown"}
    assert after[-4:] == ["healing", "unknown", "healing", "ended"]
    assert [key.split(":")[0] for key in paid(desk.folder)] == [healing.run]
    assert [each.status for each in healings(desk.log, healing.run)] == ["refuted", "healed"]


@pytest.mark.outside
def test_supervisor_heals_on_kafka(
    kafka: SharedKafka, prefix: str, tmp_path: Path, start: Callable[..., Child]
) -> None:
    with Desk(tmp_path, f"kafka://{kafka.bootstrap}/{prefix}") as desk:
        declared(desk, desk=REMEDIES)
        one = supervisor(start, desk.url, desk.folder)
        await_true(lambda: desk.row.status == "ended")
        assert story(desk.row) == ["starting", "failed", "healing", "ended"]
        assert desk.log.recording(desk.row.run).outcome == "succeeded"
        assert [key.split(":")[0] for key in paid(desk.folder)] == [desk.row.run.partition(".")[0]]
        one.signal(signal.SIGTERM)
        assert one.end() == 0


# What the owner decides, without processes

HEALED = AgentSettings(command=("x",), heal={"attempts": 1}, backoff_s=1)
GONE = ProcessView()


def decided(
    status: str, process: ProcessView = GONE, outcome: str = "", agent: AgentSettings = HEALED, **more: Any
) -> NextMove:
    observed = ObservedState(status, run="r", handled=1, attempt=1)._replace(**more)
    record = AgentRecord(desired=DesiredState("running", 1, "ann"), observed=observed)
    return next_move(record, process, agent, 5_000_000, outcome)


def observed_of(found: NextMove) -> ObservedState:
    assert found.observed is not None
    return found.observed


def test_run_is_healed_when_its_agent_is_not_started_again() -> None:
    ended = ProcessView(exit_status=1)
    once = AgentSettings(command=("x",), heal={"attempts": 1}, restart="never")
    for agent, outcome, status, heals in (
        (HEALED, "denied", "failed", 1),  # at once: it would be denied again
        (HEALED, "failed", "waiting", 0),
        (HEALED, "unended", "waiting", 0),
        (once, "failed", "failed", 1),
        (once, "unended", "failed", 1),
        (once, "", "failed", 0),  # it made no run
        (AgentSettings(command=("x",)), "denied", "waiting", 0),  # there are no remedies
    ):
        found = observed_of(decided("running", ended, outcome, agent))
        assert (found.status, found.heals) == (status, heals), (agent, outcome)


def test_healing_is_started_when_it_is_due_and_continued_after_a_stop() -> None:
    assert decided("failed", heals=0).deed == Deed.NOTHING
    assert decided("failed", heals=1, restart_at=5_000_001).deed == Deed.NOTHING
    assert decided("asking", heals=1).deed == Deed.NOTHING
    for status, restart_at in (("failed", 5_000_000), ("unknown", 0), ("stopped", 0)):
        found = decided(status, heals=1, restart_at=restart_at)
        assert (found.deed, observed_of(found).status, observed_of(found).run) == (Deed.START, "healing", "r")
    named = observed_of(decided("healing", ProcessView(7, is_there=True), heals=1))
    assert (named.status, named.pid) == ("healing", 7)


@pytest.fixture
def healing(desk: Desk) -> AgentHealing:
    """The healings of an agent whose run `r` its policy stopped."""
    placed(desk.folder)
    stuck(desk.log, desk.folder, "r")
    found = AgentHealing(desk.log, HEALED, ["heal"], lambda: 5_000_000, lambda: 0.0)
    assert found.settings_for("r").command == ("heal", "", "r")
    return found


def test_healing_that_crashes_is_tried_again_and_then_given_up(healing: AgentHealing) -> None:
    observed = ObservedState("healing", run="r", heals=1)
    seen = []
    while observed.heals:
        observed = healing.after(observed, -9, "")
        seen.append((observed.status, observed.heals, observed.restart_at))
    assert [each[:2] for each in seen] == [*(("failed", each) for each in range(2, CRASHES_MAX + 1)), ("failed", 0)]
    assert all(before < after for (*_, before), (*_, after) in pairwise(seen[:-1])), "each wait is longer"
    assert observed.why == f"not healed: healing came to no result {CRASHES_MAX} times: it exited with -9"
    assert healing.counts == {}


def test_run_that_another_process_heals_is_tried_again_later(healing: AgentHealing) -> None:
    found = healing.after(ObservedState("healing", run="r", heals=1), 3, "")
    assert (found.status, found.heals, found.restart_at) == ("failed", 1, 6_000_000)


def attempt(desk: Desk, status: str, healed_by: str = "other") -> Healing:
    """Record an attempt that has come to a status."""
    healer = Healer(desk.log, HealPlan(), setting(desk.folder))
    number = len(healings(desk.log, "r")) + 1
    made = HealingLog.begin(
        desk.log, now, healer.diagnosis("r"), None, None, attempt=number, run_attempts=1, at_step=2
    )  # fmt: skip
    made.note(status, "so it is", **({"healed_by": healed_by} if status in ("healed", "failed") else {}))
    return made.healing


@pytest.mark.parametrize(("status", "after", "heals", "run"), [
    ("healed", "ended", 0, "other"), ("failed", "failed", 1, "other"), ("rejected", "failed", 1, "r"),
    ("stopped", "failed", 0, "r"), ("waiting", "asking", 1, "r"), ("resuming", "failed", 2, "r"),
])  # fmt: skip
def test_newest_attempt_decides(
    desk: Desk, healing: AgentHealing, status: str, after: str, heals: int, run: str
) -> None:
    attempt(desk, status)
    found = healing.after(ObservedState("healing", run="r", heals=1), 1, "")
    assert (found.status, found.heals, found.run) == (after, heals, run)
    is_counted = status not in ("waiting", "resuming")
    assert healing.counts == ({HealingKind("loop", "", status): 1} if is_counted else {})


@pytest.mark.parametrize(("status", "healed_by", "after"), [
    ("healed", "other", "ended"), ("healed", "r", "ended"), ("failed", "other", "failed"), ("failed", "r", None),
    ("rejected", "", None), ("resuming", "", None), ("stopped", "", None),
])  # fmt: skip
def test_result_that_no_owner_recorded_is_not_healed_again(
    desk: Desk, healing: AgentHealing, status: str, healed_by: str, after: str | None
) -> None:
    """Its owner was killed meanwhile, or a person healed the run."""
    attempt(desk, "refuted")
    attempt(desk, status, healed_by=healed_by)
    found = healing.known_result(ObservedState("unknown", run="r", heals=1))
    assert (found and (found.status, found.run)) == (after and (after, healed_by))
    assert healing.counts == ({HealingKind("loop", "", status): 1} if after else {}), "the others were counted"


def test_agent_that_always_runs_begins_anew_after_it_was_healed(desk: Desk) -> None:
    placed(desk.folder)
    stuck(desk.log, desk.folder, "r")
    always = AgentSettings(command=("x",), heal={"attempts": 1}, restart="always", backoff_s=2)
    healing = AgentHealing(desk.log, always, ["heal"], lambda: 5_000_000, lambda: 0.0)
    attempt(desk, "healed")
    found = healing.after(ObservedState("healing", run="r", heals=1), 0, "")
    assert (found.status, found.run, found.heals, found.restart_at) == ("waiting", "", 0, 7_000_000)


def test_run_that_a_supervisor_runs_is_healed_by_nobody_else(desk: Desk) -> None:
    """Not even an attempt that was begun before continues, until the agent is stopped."""
    placed(desk.folder)
    stuck(desk.log, desk.folder, "r")
    entries = AgentEntries(desk.log, now)
    owned = OwnedEntries(desk.log, now, "desk", "token", "ann@one/1", 60_000)
    owned.claim(entries.read("desk"))
    owned.granted(entries.read("desk"), HEALED)

    def held(supervised: str = "") -> str:
        plan = HealPlan.load(desk.folder / "heal.toml")
        healer = Healer(desk.log, plan, replace(setting(desk.folder), supervised=supervised))
        found = healer.diagnosis("r").held
        if found:
            with pytest.raises(InputError, match=re.escape(found)):
                healer.apply("r")
        return found

    def records(status: str) -> None:
        owned.status(entries.read("desk"), ObservedState(status, run="r"))

    for status in ("starting", "running", "pausing", "paused", "stopping"):
        records(status)
        assert held() == (
            f"run r is run by the agent desk of ann@one/1, which is {status}; stop it first: refold agents stop desk"
        )
    assert healings(desk.log) == []
    attempt(desk, "proved")
    assert held()
    assert [each.status for each in healings(desk.log)] == ["proved"]
    assert held(supervised="desk") == "", "it is this process"
    records("healing")
    assert held() == "", "its healing has a lease of its own"
    records("stopped")
    assert held() == ""
