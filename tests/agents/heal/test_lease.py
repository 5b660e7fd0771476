"""The lease on healing: two at once, a holder that is killed, stopped past its lease, or on another machine."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import refold
from refold.agents.heal import lease as leases
from refold.agents.heal.lease import ELSEWHERE, HealedElsewhere, healer_elsewhere, healing_lease
from refold.agents.log import AgentLog
from refold.explorer.cli.main import run
from refold.streams.open import process_context
from refold.streams.runtime_context import RuntimeContext
from refold_tests.child import Child
from refold_tests.stuck_agent import paid, placed, stuck
from refold_tests.waiting import await_true

CODE = """
import os, signal, sys, threading
import refold
from refold.agents.heal.lease import healing_lease

url, lease_ms, sent = sys.argv[1:]
with refold.open(url) as log, healing_lease(log, "r", int(lease_ms)):
    print("has it", flush=True)
    if sent:
        os.kill(os.getpid(), signal.Signals[sent])
    threading.Event().wait()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'log'}"


@pytest.fixture
def log(url: str) -> Iterator[AgentLog]:
    with refold.open(url) as log:
        yield log


def holder(child: Callable[..., Child], url: str, lease_ms: int, sent: str = "") -> Child:
    """Start a process that has the lease, and sends itself a signal."""
    found = child(CODE, url, lease_ms, sent)
    assert found.line() == "has it"
    return found


def test_second_process_is_refused_until_the_first_is_done(log: AgentLog) -> None:
    with (
        healing_lease(log, "r"),
        pytest.raises(HealedElsewhere, match=rf"run r is being healed by \S+/{os.getpid()} since 20"),
        healing_lease(log, "r"),
    ):
        raise AssertionError("it has the lease, too")
    for _ in range(2):
        with healing_lease(log, "r"), healing_lease(log, "another run"):
            pass


def test_command_ends_with_a_status_of_its_own_and_runs_nothing(
    log: AgentLog, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent = placed(tmp_path / "agent")
    stuck(log, tmp_path / "agent", "r")
    before = {row.run for row in log.runs()}
    command = ["heal", "r", "--apply", "--remedies", str(tmp_path / "agent" / "heal.toml"), "--agent", agent]
    with healing_lease(log, "r"):
        assert run([*command, "--log", url]) == ELSEWHERE
        said = capsys.readouterr()
        assert said.err.startswith("refold: run r is being healed by ")
        assert said.out == ""
        assert ({row.run for row in log.runs()}, paid(tmp_path / "agent")) == (before, [])
    assert run([*command, "--log", url]) == 0
    assert len(paid(tmp_path / "agent")) == 1


def test_lease_of_a_killed_process_is_free_at_once(log: AgentLog, url: str, child: Callable[..., Child]) -> None:
    assert holder(child, url, 600_000, "SIGKILL").end() == -signal.SIGKILL
    with healing_lease(log, "r"):
        pass


def test_stopped_process_is_killed_before_its_lease_is_over(
    log: AgentLog, url: str, child: Callable[..., Child]
) -> None:  # fmt: skip
    """It never runs again: nobody continues it."""
    one = holder(child, url, 6_000, "SIGSTOP")
    assert one.end() == -signal.SIGKILL
    with healing_lease(log, "r"):
        pass


def test_process_that_renews_keeps_the_lease(log: AgentLog, url: str, child: Callable[..., Child]) -> None:
    one = holder(child, url, 15_000)
    seen = leases._Lease(log, "r", 1_000, process_context())

    def has_renewed() -> bool:
        seen._read()
        return seen._record.beat >= 4  # for longer than its lease

    await_true(has_renewed)
    one.look()
    with pytest.raises(HealedElsewhere, match=f"/{one.process.pid} since"), healing_lease(log, "r"):
        raise AssertionError("it has the lease, too")
    assert f"is being healed by {process_context().agent.partition('/')[0]}/{one.process.pid} since" in (
        healer_elsewhere(log, "r")
    )
    one.kill()
    assert healer_elsewhere(log, "r") == ""
    with healing_lease(log, "r"):
        assert healer_elsewhere(log, "r") == "", "this process has it"


def test_process_that_lost_the_lease_ends(log: AgentLog, url: str, child: Callable[..., Child]) -> None:
    one = holder(child, url, 20_000)

    def is_taken() -> bool:
        """Claim the lease with its last beat, as if its holder were gone. A renewal that comes first denies that."""
        other = leases._Lease(log, "r", 60_000, process_context())
        other._read()
        other._act("claimed", other._record.beat, after=other._record.token, owner="other", lease_ms=60_000)
        other._read()
        return other._record.token == other._token

    await_true(is_taken)
    assert one.end() == ELSEWHERE


class Elsewhere:
    """As if the tests' process were on another machine than the holder: with clocks of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        self.slept = 0
        self.while_asleep: Callable[[], None] = lambda: None
        monkeypatch.setattr(leases, "boot_id", lambda: "another boot")
        monkeypatch.setattr(leases, "boottime_s", lambda: self.now_s)
        monkeypatch.setattr(leases, "sleep", self.sleep)  # not of time: other threads sleep, too

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s
        self.slept += 1
        self.while_asleep()


@pytest.mark.parametrize("renews", [False, True])
def test_on_another_machine_a_lease_is_over_when_nothing_was_renewed_for_its_time(
    log: AgentLog, monkeypatch: pytest.MonkeyPatch, renews: bool
) -> None:
    ids, now = itertools.count(), [1_000_000]
    around = RuntimeContext(lambda: now[0], lambda: f"id-{next(ids)}", "ann@one/1")
    gone = leases._Lease(log, "r", 30_000, around)
    gone.claim()
    there = Elsewhere(monkeypatch)
    mine = leases._Lease(log, "r", 30_000, RuntimeContext(around.now_micros, around.new_id, "bob@two/2"))
    now[0] += 29_000_000
    with pytest.raises(HealedElsewhere, match="healed by ann@one/1 since 1970-01-01T00:00:01"):
        mine.claim()
    assert there.slept == 0, "the recorded times say enough"
    now[0] += 2_000_000
    if renews:
        there.while_asleep = lambda: gone._act("renewed", 1) if there.slept == 200 else None
        with pytest.raises(HealedElsewhere, match="healed by ann@one/1"):
            mine.claim()
        assert there.slept == 200
    else:
        mine.claim()
        assert 299 <= there.slept <= 302
        assert mine._record.owner == "bob@two/2"
