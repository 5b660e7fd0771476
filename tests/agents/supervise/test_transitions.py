"""Supervisor, keeper and agent killed at each transition that owner.py and keeper.py list.

The supervisors run in this process. One that is killed is left by an exception that nothing of it catches, and its
pipes are closed, as the kernel does it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from refold.agents.heal.apply import Healer
from refold.agents.heal.healings import HealingLog, healings
from refold.agents.heal.plan import HealPlan
from refold.agents.policy.decision_log import ask_person
from refold.agents.supervise import kept_process
from refold.agents.supervise.entries import AgentEntries, OwnedEntries
from refold.agents.supervise.gate import PauseGate
from refold.agents.supervise.kept_process import KeptProcess
from refold.agents.supervise.lease import ACTIVE, LEASE_MS, AgentRecord
from refold.agents.supervise.settings import load_agents
from refold.agents.supervise.supervisor import Supervisor
from refold_tests.dying_keeper import MOMENTS as KEEPER_MOMENTS
from refold_tests.processes import is_gone
from refold_tests.stuck_agent import setting
from refold_tests.supervised import Desk, now
from refold_tests.supervising import Killed, lives, lone_agent, supervisor_settings
from refold_tests.waiting import await_true

# Each test goes through dozens of moments, with processes at each.
pytestmark = [pytest.mark.outside, pytest.mark.timeout(1200)]


class Moment(NamedTuple):
    """A moment of the protocol: before or after the nth call of a method.

    status: for OwnedEntries.status, what it records. route: what is done, and at which status, so that it comes.
    """

    owner: type
    method: str
    status: str
    when: str
    route: tuple[tuple[str, str], ...] = ()
    nth: int = 1


PAUSE, RESUME = ("running", "paused"), ("paused", "running")
STOP, FAIL, DONE = ("running", "stopped"), ("running", "fail"), ("running", "done")
RECORDED: list[tuple[str, tuple[tuple[str, str], ...], int]] = [
    ("starting", (), 1), ("running", (), 1), ("pausing", (PAUSE,), 1), ("paused", (PAUSE,), 1),
    ("running", (PAUSE, RESUME), 2), ("stopping", (STOP,), 1), ("stopped", (STOP,), 1), ("waiting", (FAIL,), 1),
    ("failed", (FAIL,), 1), ("ended", (DONE,), 1),
]  # fmt: skip
DEEDS: list[tuple[type, str, tuple[tuple[str, str], ...], int]] = [
    (OwnedEntries, "claim", (), 1), (OwnedEntries, "granted", (), 1), (KeptProcess, "__init__", (), 1),
    (OwnedEntries, "renew", (("running", "late"),), 1), (KeptProcess, "extend", (("running", "late"),), 1),
    (PauseGate, "close", (PAUSE,), 1), (PauseGate, "open", (PAUSE, RESUME), 2), (KeptProcess, "stop", (STOP,), 1),
    (OwnedEntries, "release", (("running", "end"),), 1),
]  # fmt: skip
MOMENTS = [
    *(Moment(OwnedEntries, "status", status, when, route, count)
      for status, route, count in RECORDED for when in ("before", "after")),
    *(Moment(owner, method, "", when, route, count) for owner, method, route, count in DEEDS
      for when in ("before", "after")),
]  # fmt: skip


class Machine:
    """A machine on which one supervisor after another runs the agent `desk`."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.desk = desk
        self.processes: list[KeptProcess] = []
        self._monkeypatch = monkeypatch
        self._entries = AgentEntries(desk.log, now)
        self._record = AgentRecord()
        self._late_s = 0.0
        begin, extend, processes = KeptProcess.__init__, KeptProcess.extend, self.processes

        def begun(process: KeptProcess, order: Any) -> None:
            begin(process, order._replace(until_s=order.until_s + 3600))
            processes.append(process)

        # The keepers' clock is not put forward, and a slow machine is no lease that is over.
        monkeypatch.setattr(KeptProcess, "__init__", begun)
        monkeypatch.setattr(KeptProcess, "extend", lambda process, until_s: extend(process, until_s + 3600))

    @property
    def record(self) -> AgentRecord:
        """What the log says of the agent."""
        self._record = self._entries.read("desk", self._record)
        return self._record

    @property
    def alive(self) -> list[int]:
        """The agent's processes that run. Fails if two ran at once."""
        return [each for each in lives(self.desk.folder) if not is_gone(each)]

    def late(self, share: float) -> None:
        """Put the supervisors' clock forward by a share of the lease."""
        self._late_s += share * LEASE_MS / 1000

    def supervisor(self, *settings: str) -> Supervisor:
        """Return the next supervisor."""
        by = supervisor_settings(self.desk.url, self.desk.folder, LEASE_MS / 1000, print)
        clock_s = by.clock_s
        heal = [sys.executable, "-S", "-E", "alone.py", str(self.desk.folder)]
        by = by._replace(clock_s=lambda: clock_s() + self._late_s, heal_command=heal)
        return Supervisor(self.desk.log, load_agents(self.desk.folder / "refold.toml"), by)

    def act(self, what: str) -> bool:
        """Do one act of a route. Return whether the supervisor ends."""
        if what in ("fail", "done"):
            (self.desk.folder / what).touch()
        elif what == "late":
            self.late(0.5)
        elif what != "end":
            self.desk.wish(what)
        return what == "end"

    def along(self, route: tuple[tuple[str, str], ...]) -> Callable[[float], bool]:
        """Return what a supervisor asks between its steps: whether it ends. It goes along the route meanwhile."""
        ahead = list(route)

        def is_stopped(wait_s: float) -> bool:
            time.sleep(0.01)
            if ahead and self.record.observed.status == ahead[0][0] and self.alive:
                return self.act(ahead.pop(0)[1])
            return False

        return is_stopped

    def later(self, ticks: int) -> Callable[[float], bool]:
        """Return what a supervisor asks between its steps; after so many of them another one's lease is over."""
        ahead = [False] * ticks + [True] * bool(ticks)

        def is_stopped(wait_s: float) -> bool:
            time.sleep(0.01)
            if ahead and ahead.pop(0):
                self.late(1)
            return False

        return is_stopped

    def armed(self, moment: Moment, deed: Callable[[], None]) -> None:
        """Do a deed at a moment, once."""
        original, calls = getattr(moment.owner, moment.method), 0

        def wrapped(*args: Any, **named: Any) -> Any:
            nonlocal calls
            calls += not moment.status or args[2].status == moment.status
            is_now = calls == moment.nth
            calls += is_now  # once
            if is_now and moment.when == "before":
                deed()
            result = original(*args, **named)
            if is_now and moment.when == "after":
                deed()
            return result

        self._monkeypatch.setattr(moment.owner, moment.method, wrapped)

    def disarmed(self, moment: Moment, original: Any) -> None:
        """Undo `armed`."""
        self._monkeypatch.setattr(moment.owner, moment.method, original)

    def die(self) -> None:
        """Do what the kernel does with a supervisor that is killed: close its pipes."""
        for each in self.processes:
            each.close()
        await_true(lambda: all(each.is_gone for each in self.processes), "a keeper outlived its supervisor")
        self.processes.clear()
        assert not self.alive

    def is_true(self) -> bool:
        """Whether the recorded status is that of the machine."""
        observed, alive = self.record.observed, self.alive
        return alive == ([observed.pid] if observed.status in ("running", "pausing", "paused") and observed.pid else [])

    def settle(self, *, is_new: bool) -> None:
        """Let a supervisor follow what is requested, judge it, and stop the agent. is_new: whether it took over."""
        term = self.record.term
        ticks = 0
        asked = False

        def is_stopped(wait_s: float) -> bool:
            nonlocal ticks, asked
            time.sleep(0.01)
            ticks += 1
            if ticks == 2 and is_new:
                self.late(1)
            record = self.record
            wanted, status = record.desired.what, record.observed.status
            if (is_new and record.term == term) or not self.is_true():
                return False
            if status in ("ended", "failed", "stopped") and record.observed.handled == record.desired.number:
                return True
            if not asked and (status == wanted or (wanted == "stopped" and status != "stopping")):
                asked = True
                self.desk.wish("stopped")
            return False

        self.supervisor().run(is_stopped)
        assert not self.alive


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with Desk(tmp_path) as desk:
        yield Machine(desk, monkeypatch)


def prepared(machine: Machine, **settings: object) -> None:
    """Begin again: the agent should run."""
    for name in ("fail", "done"):
        (machine.desk.folder / name).unlink(missing_ok=True)
    lone_agent(machine.desk.folder, backoff_s=0.01, backoff_max_s=0.01, **settings)
    machine.desk.wish("running")


def test_supervisor_killed_at_each_transition_is_replaced(machine: Machine) -> None:
    def killed() -> None:
        raise Killed

    for moment in MOMENTS:
        print(moment)
        prepared(machine, **({"retries": 0} if moment.status == "failed" else {}))
        original = getattr(moment.owner, moment.method)
        machine.armed(moment, killed)
        with pytest.raises(Killed):
            machine.supervisor().run(machine.along(moment.route))
        machine.disarmed(moment, original)
        record = machine.record
        has_process = machine.alive or any(not each.is_gone for each in machine.processes)
        assert not has_process or (record.is_open and record.observed.status in ACTIVE), "a process is not recorded"
        machine.die()
        (machine.desk.folder / "fail").unlink(missing_ok=True)
        machine.settle(is_new=record.is_open)


def test_supervisor_killed_while_it_takes_over_is_replaced(machine: Machine) -> None:
    def killed() -> None:
        raise Killed

    ran = Moment(OwnedEntries, "status", "running", "after")
    for takes in [
        Moment(OwnedEntries, method, "", when) for method in ("claim", "granted") for when in ("before", "after")
    ]:
        print(takes)
        prepared(machine)
        for moment in (ran, takes):
            original = getattr(moment.owner, moment.method)
            machine.armed(moment, killed)
            with pytest.raises(Killed):
                machine.supervisor().run(machine.later(ticks=0 if moment is ran else 2))
            machine.disarmed(moment, original)
            machine.die()
        is_told = takes == Moment(OwnedEntries, "granted", "", "after")
        assert machine.record.observed.status == ("unknown" if is_told else "running")
        machine.settle(is_new=True)
        after = [each["after"] for each in machine.desk.row.transitions][-6:]
        assert after == ["running", "unknown", "starting", "running", "stopping", "stopped"]


AGENT_MOMENTS = [moment for moment in MOMENTS if moment.status in ("running", "pausing", "paused", "stopping")]


def test_agent_killed_at_each_transition_is_recorded_and_restarted(machine: Machine) -> None:
    for moment in AGENT_MOMENTS:
        print(moment)
        prepared(machine)
        original = getattr(moment.owner, moment.method)
        killed: list[int] = []

        def kill(killed: list[int] = killed) -> None:
            killed.append(machine.processes[-1].view().pid)
            os.kill(killed[0], signal.SIGKILL)

        machine.armed(moment, kill)
        goes = machine.along(moment.route)

        def is_stopped(wait_s: float, goes: Any = goes, killed: list[int] = killed) -> bool:
            goes(wait_s)
            record = machine.record
            has_followed = record.observed.status == record.desired.what and machine.is_true()
            return bool(killed) and has_followed and record.observed.handled == record.desired.number

        machine.supervisor().run(is_stopped)
        machine.disarmed(moment, original)
        assert not machine.alive


def test_keeper_killed_at_each_transition_leaves_no_process(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_process, "_KEEPER", "refold_tests.dying_keeper")
    prepared(machine)
    folder = machine.desk.folder
    (folder / "moments").write_text("\n".join([*KEEPER_MOMENTS, ""]))
    (folder / "fail").touch()

    def is_stopped(wait_s: float) -> bool:
        time.sleep(0.01)
        observed = machine.record.observed
        if observed.attempt > len(KEEPER_MOMENTS):
            (folder / "fail").unlink(missing_ok=True)
        return observed.status == "running" and observed.attempt > len(KEEPER_MOMENTS) and machine.is_true()

    machine.supervisor().run(is_stopped)
    assert not machine.alive
    whys = [each["why"] for each in machine.desk.row.transitions if each["after"] == "waiting"]
    assert [why for why in whys if "keeper" in why] == ["its keeper was ended by signal 9"] * 5
    assert "it exited with 3" in whys, "a keeper that said how the agent ended is believed"


# A healing is recorded here by the test; its process only shows that it is there. heal/test_killed.py kills a real one.
HEAL_MOMENTS = [
    Moment(OwnedEntries, "status", status, when, nth=nth)
    for status, nth, when in [
        ("failed", 1, "before"), ("failed", 1, "after"), ("healing", 1, "after"), ("healing", 2, "before"),
        ("healing", 2, "after"), ("asking", 1, "before"), ("asking", 1, "after"), ("failed", 2, "after"),
        ("healing", 3, "after"), ("ended", 1, "before"), ("ended", 1, "after"),
    ]
]  # fmt: skip


def night(machine: Machine, outlasts: int) -> Callable[[float], bool]:
    """Return what a supervisor asks between its steps. Meanwhile the agent's run fails, a person is asked about its
    healing and agrees, and it is healed. outlasts: after so many steps another supervisor's lease is over; 0: never.
    """
    log, ticks = machine.desk.log, 0

    def end(name: str) -> None:
        """Let the process that runs end."""
        (machine.desk.folder / name).touch()
        await_true(lambda: not machine.alive)
        (machine.desk.folder / name).unlink()

    def look() -> None:
        raise LookupError

    def fail(run: str) -> None:
        with suppress(LookupError):
            log.run("desk", id=run).drive(lambda run: run.step("look", look))

    def heal(run: str) -> None:
        made = healings(log, run)
        assert not made or made[-1].status != "healed", "a healed run is healed again"
        if not made:
            diagnosis = Healer(log, HealPlan(), setting(machine.desk.folder)).diagnosis(run)
            begun = HealingLog.begin(log, now, diagnosis, None, None, attempt=1, run_attempts=1, at_step=0)
            ask_person(log, f"{run}.question", "heal", run, "desk", "refold heal", "", now(), [begun.healing.last])
            begun.note("waiting", "so it is", question=f"{run}.question")
        elif not log.questions():
            HealingLog(log, now, made[-1]).note("healed", "so it is", healed_by=f"{run}.continued")

    def is_stopped(wait_s: float) -> bool:
        nonlocal ticks
        time.sleep(0.01)
        ticks += 1
        if ticks == outlasts:
            machine.late(1)
        observed = machine.record.observed
        if observed.status == "running" and machine.alive:
            if not log.states([f"run/{observed.run}"]):
                fail(observed.run)
            end("fail")
        elif observed.status == "healing" and observed.pid and machine.alive:
            heal(observed.run)
            end("done")
        elif observed.status == "asking":
            for question in log.questions():
                log.answer(question.id, is_approved=True, by="ann")
            machine.late(0.05)  # a question is looked up once a second
        return False

    return is_stopped


def test_supervisor_killed_while_it_heals_is_replaced(machine: Machine) -> None:
    def killed() -> None:
        raise Killed

    for moment in HEAL_MOMENTS:
        print(moment)
        prepared(machine, restart="never")
        with (machine.desk.folder / "refold.toml").open("a") as file:
            file.write("[agents.desk.heal]\nattempts = 1\n")
        original = OwnedEntries.status
        machine.armed(moment, killed)
        with pytest.raises(Killed):
            machine.supervisor().run(night(machine, outlasts=0), is_until_done=True)
        machine.disarmed(moment, original)
        machine.die()
        machine.supervisor().run(night(machine, outlasts=2), is_until_done=True)
        row = machine.desk.row
        assert (row.status, row.heals) == ("ended", 0), row
        [healed] = healings(machine.desk.log, row.run.removesuffix(".continued"))
        assert (healed.status, healed.healed_by) == ("healed", row.run)
        assert not machine.alive
