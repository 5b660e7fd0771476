"""Supervisors, keepers and agents as processes: started, restarted, killed and stopped at every moment."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from refold.agents.effects.errors import NotDone
from refold.agents.effects.order import Done
from refold.agents.supervise.listing import AgentRow, agents
from refold.agents.supervise.machine_processes import is_alive, process_start
from refold.avro.errors import InputError
from refold_tests.brokers import SharedKafka
from refold_tests.child import children
from refold_tests.processes import is_gone
from refold_tests.supervised import Desk, Starting, now
from refold_tests.supervising import lives, lone_agent, supervisor
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside

SHORT_S = 1.5
ROUNDS = int(os.environ.get("REFOLD_FAULT_ROUNDS", "10"))


@pytest.fixture
def start() -> Iterator[Starting]:
    with children() as starting:
        yield starting


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path) as found:
        yield found


def ended(desk: Desk) -> None:
    """Wait until nothing of the agent runs."""
    await_true(lambda: all(is_gone(each) for each in lives(desk.folder)))


def test_agent_starts_and_ends_with_its_supervisor(desk: Desk, start: Starting) -> None:
    lone_agent(desk.folder)
    one = supervisor(start, desk.url, desk.folder)
    row = desk.await_status("running")
    assert is_alive(row.pid, process_start(row.pid))
    assert (row.desired, row.attempt, row.has_owner, row.term, row.command[-1]) == (
        "running", 1, True, 1, str(desk.folder)
    )  # fmt: skip
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    row = desk.row
    assert (row.status, row.desired, row.has_owner) == ("stopped", "running", False)
    assert desk.story == ["starting", "running", "stopping", "stopped"]
    ended(desk)
    two = supervisor(start, desk.url, desk.folder)
    row = desk.await_status("running", lives_min=2)
    assert (row.term, row.attempt) == (2, 2)
    assert row.run == desk.row.run
    two.signal(signal.SIGTERM)
    assert two.end() == 0


def test_failing_agent_is_restarted_with_backoff_and_then_stays_failed(desk: Desk, start: Starting) -> None:
    (desk.folder / "refold.toml").write_text(f"""
[agents.desk]
command = [{sys.executable!r}, "-S", "-c", "import sys; print('out'); sys.exit(3)"]
backoff_s = 0.01
retries = 2

[agents.other]
command = ["no-such-program"]
""")
    supervisor(start, desk.url, desk.folder)
    await_true(lambda: [each.status for each in agents(desk.log, now())] == ["failed", "failed"])
    desk_row, other = agents(desk.log, now())
    assert (desk_row.attempt, desk_row.exit_status, desk_row.failures) == (3, 3, 3)
    # A process may end before its owner has seen that it runs.
    story = [each for each in desk.story if each != "running"]
    assert story == ["starting", "waiting", "starting", "waiting", "starting", "failed"]
    assert other.why == "no-such-program: No such file or directory"
    assert (other.attempt, other.exit_status) == (1, None)
    desk.wish("running")
    await_true(lambda: desk.row.attempt == 6 and desk.row.status == "failed")
    assert desk.output() == "out\n" * 6


def test_stop_request_survives_a_restart_of_the_supervisor(desk: Desk, start: Starting) -> None:
    lone_agent(desk.folder)
    one = supervisor(start, desk.url, desk.folder)
    desk.await_status("running")
    desk.wish("stopped")
    desk.await_status("stopped")
    ended(desk)
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    two = supervisor(start, desk.url, desk.folder)
    await_true(lambda: desk.row.term == 2)
    desk.wish("running")
    desk.await_status("running", lives_min=2)
    two.signal(signal.SIGTERM)
    assert two.end() == 0
    assert desk.story[3:] == ["stopped", "starting", "running", "stopping", "stopped"]


def test_agent_that_ignores_sigterm_is_killed_with_its_descendants(desk: Desk, start: Starting) -> None:
    code = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        break
open(sys.argv[1] + "/lives", "a").write("%d\\n" % os.getpid())
time.sleep(600)
"""
    (desk.folder / "refold.toml").write_text(
        f"[agents.desk]\nstop_s = 0.1\ncommand = [{sys.executable!r}, '-S', '-c', '''{code}''', {str(desk.folder)!r}]\n"
    )
    supervisor(start, desk.url, desk.folder)
    desk.await_status("running", lives_min=3)
    desk.wish("stopped")
    assert desk.await_status("stopped").exit_status == -9
    ended(desk)


# By SIGKILL, in processes of their own. test_transitions.py has every moment.
DEATHS = [
    ("claimed", 1),
    ("started", 1),
    ("renewed", 1),
]


def test_supervisors_killed_at_each_moment_are_replaced(desk: Desk, start: Starting) -> None:
    lone_agent(desk.folder)
    for moment, count in DEATHS:
        one = supervisor(start, desk.url, desk.folder, moment=moment, count=count, lease_s=SHORT_S)
        assert one.end() == -signal.SIGKILL
        ended(desk)
        await_true(lambda: not desk.row.has_owner)
        assert desk.row.status in ("", "unknown"), "what it did when its owner was killed is not known"
    for moment in ("stopping",):
        lived = len(lives(desk.folder))
        one = supervisor(start, desk.url, desk.folder, moment=moment, lease_s=SHORT_S)
        desk.await_status("running", lives_min=lived + 1)
        one.signal(signal.SIGTERM)
        assert one.end() == -signal.SIGKILL
        ended(desk)
    lived = len(lives(desk.folder))
    supervisor(start, desk.url, desk.folder)
    row = desk.await_status("running", lives_min=lived + 1)
    assert row.term > len(DEATHS) + 1
    assert is_alive(row.pid, process_start(row.pid))


def stopped_past_its_lease(desk: Desk, start: Starting, lease_s: float) -> None:
    """A supervisor is stopped and continued; meanwhile another one has taken its agent over."""
    lone_agent(desk.folder)
    one = supervisor(start, desk.url, desk.folder, lease_s=lease_s)
    first = desk.await_status("running", lives_min=1)
    two = supervisor(start, desk.url, desk.folder)
    one.signal(signal.SIGSTOP)
    await_true(lambda: is_gone(first.pid), "its keeper did not end the agent")
    await_true(lambda: desk.row.owner.endswith(f"/{two.process.pid}"))
    row = desk.row
    assert row.pid != first.pid, "with its owner, the record says that the earlier process is gone"
    row = desk.await_status("running")
    one.signal(signal.SIGCONT)
    await_true(lambda: "given up" in one.line(), "it did not notice that it lost the agent")
    later = desk.row
    assert (later.pid, later.owner) == (row.pid, row.owner), later
    assert not is_gone(row.pid)
    assert desk.story[-4:] == ["running", "unknown", "starting", "running"]
    lived = len(lives(desk.folder))
    two.signal(signal.SIGTERM)
    assert two.end() == 0
    row = desk.await_status("running", lives_min=lived + 1)
    assert row.owner.endswith(f"/{one.process.pid}"), "it takes back what was given up"


def test_supervisor_stopped_past_its_lease_loses_the_agent(desk: Desk, start: Starting) -> None:
    stopped_past_its_lease(desk, start, SHORT_S)


def test_supervisor_stopped_past_its_lease_on_kafka_loses_the_agent(
    kafka: SharedKafka, prefix: str, tmp_path: Path, start: Starting
) -> None:  # fmt: skip
    with Desk(tmp_path, f"kafka://{kafka.bootstrap}/{prefix}?partitions=2") as desk:
        stopped_past_its_lease(desk, start, 4)


def test_supervisor_stopped_right_after_a_renewal_leaves_the_next_owners_process_alone(
    desk: Desk, start: Starting
) -> None:  # fmt: skip
    lone_agent(desk.folder)
    one = supervisor(start, desk.url, desk.folder, moment="extended", lease_s=4, sent="SIGSTOP")
    await_true(lambda: desk.row.has_owner)
    two = supervisor(start, desk.url, desk.folder)
    await_true(lambda: desk.row.owner.endswith(f"/{two.process.pid}"), "nobody took the agent over")
    row = desk.await_status("running")
    one.signal(signal.SIGCONT)
    await_true(lambda: "given up" in one.line(), "it did not notice that it lost the agent")
    assert not is_gone(row.pid), "it killed the process of the next owner"
    later = desk.row
    assert (later.status, later.pid, later.owner) == ("running", row.pid, row.owner), later


def test_waiting_supervisor_takes_over_at_once_from_an_ending_one(desk: Desk, start: Starting) -> None:
    lone_agent(desk.folder)
    one = supervisor(start, desk.url, desk.folder)
    desk.await_status("running", lives_min=1)
    supervisor(start, desk.url, desk.folder)
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    assert desk.await_status("running", lives_min=2).term == 2


def _judge(desk: Desk) -> None:
    """Wait until the recorded state is that of the machine."""

    def is_true() -> bool:
        row = desk.row
        alive = [each for each in lives(desk.folder) if not is_gone(each)]
        return (row.status == "running" and alive == [row.pid]) or (row.status != "running" and not alive)

    await_true(is_true, f"what is recorded stays false: {desk.row}")


class Killing:
    """Kills agents, keepers and supervisors of a desk at random moments, and replaces the supervisors."""

    def __init__(self, desk: Desk, start: Starting, record_property: Callable[[str, object], None]) -> None:
        seed = int(os.environ.get("REFOLD_SEED", str(random.SystemRandom().getrandbits(32))))
        print(f"seed {seed}")
        record_property("seed", seed)
        self.chance = random.Random(seed)
        self._desk = desk
        self._begin = partial(supervisor, start, desk.url, desk.folder, lease_s=SHORT_S)
        self._running = [self._begin() for _ in range(2)]

    def kill(self, program: str) -> None:
        """Kill one process, or stop a supervisor past its lease. program: a part of the agent's command line."""
        victim = self.chance.choice(["agent", "keeper", "supervisor", "stopped supervisor"])
        row = self._desk.row
        one = next((each for each in self._running if row.owner.endswith(f"/{each.process.pid}")), None)
        if victim == "agent":
            _kill(row.pid, program)
        elif victim == "keeper":
            _kill(_parent(row.pid), "refold.agents.supervise.keeper")
        elif one is None:
            return  # the owner changed
        elif victim == "supervisor":
            one.kill()
            self._running.remove(one)
            self._running.append(self._begin())
        else:
            one.signal(signal.SIGSTOP)
            await_true(partial(is_gone, row.pid), "its keeper did not end the agent of a stopped supervisor")
            one.signal(signal.SIGCONT)


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_supervisors_keepers_and_agents_killed_at_random_moments(
    desk: Desk, start: Starting, record_property: Callable[[str, object], None]
) -> None:
    lone_agent(desk.folder, restart="always", backoff_s=0.01, backoff_max_s=0.1)
    killing = Killing(desk, start, record_property)
    for _ in range(ROUNDS):
        desk.await_status("running", lives_min=1)
        time.sleep(killing.chance.random() * 0.5)
        killing.kill("alone.py")
        lives(desk.folder)
    desk.wish("stopped")
    desk.await_status("stopped")
    _judge(desk)
    desk.wish("running")
    desk.await_status("running")
    _judge(desk)


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_agent_killed_at_random_moments_makes_each_write_once(
    desk: Desk, start: Starting, record_property: Callable[[str, object], None]
) -> None:
    declare(desk, orders=10 * ROUNDS)
    (desk.folder / "go").touch()
    killing = Killing(desk, start, record_property)
    for number in range(ROUNDS):
        await_true(partial(_has_paid, desk, 10 * number))
        time.sleep(killing.chance.random() * 0.2)
        killing.kill("desk.py")

    await_true(lambda: _has_paid(desk, 10 * ROUNDS) and desk.row.status == "ended")
    assert paid(desk) == [str(order) for order in range(10 * ROUNDS)]
    assert {each.status for each in desk.log.effects.list()} == {"done"}


def _has_paid(desk: Desk, orders: int) -> bool:
    """Return whether so many orders are paid. Settle the payments that nobody knows to be made."""
    for effect in desk.log.effects.list(status="unknown"):  # it was killed between the payment and its record
        arguments: Any = desk.log.effects.arguments(effect)
        order = str(arguments["kwargs"]["order"])
        with suppress(InputError):  # it is settled
            desk.log.effects.settle(effect.key, Done("paid") if order in paid(desk) else NotDone(), by="ann")
    return len(paid(desk)) >= orders


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def _kill(pid: int, program: str) -> None:
    """Kill a process, if it is still there and still runs a program: its id may be another one's meanwhile."""
    try:
        if pid and program in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode():
            os.kill(pid, signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):
        return


SDK = """
import os, sys, time, refold
folder = sys.argv[1]

@refold.tool(effect="write")
def pay(order):
    with open(folder + "/paid", "a") as paid:
        paid.write(f"{order}\\n")
    return "paid"

def agent(run):
    for order in range(int(sys.argv[2])):
        with run.step("pay"):
            pay(order=order)
            while order == 1 and not os.path.exists(folder + "/go"):
                time.sleep(0.02)
    return "all paid"

with refold.open() as log:
    log.run("desk").drive(agent)
"""


def paid(desk: Desk) -> list[str]:
    return (desk.folder / "paid").read_text().split() if (desk.folder / "paid").exists() else []


def declare(desk: Desk, orders: int = 4) -> None:
    """Declare an agent that records itself and pays so often."""
    (desk.folder / "desk.py").write_text(SDK)
    (desk.folder / "refold.toml").write_text(
        f"[agents.desk]\ncommand = [{sys.executable!r}, '-P', 'desk.py', {str(desk.folder)!r}, '{orders}']\n"
        f"backoff_s = 0.01\nbackoff_max_s = 0.05\n[agents.desk.env]\nPYTHONPATH = 'env:PYTHONPATH'\n"
    )


def paused(desk: Desk) -> AgentRow:
    """Return the agent once it waits after its second payment."""
    await_true(lambda: len(paid(desk)) == 2)
    desk.wish("paused")
    desk.awaits_gate()
    (desk.folder / "go").touch()  # the second step ends, and the third does not begin
    row = desk.await_status("paused")
    assert paid(desk) == ["0", "1"]
    return row


def test_paused_agent_waits_at_a_step_and_continues_under_another_supervisor(desk: Desk, start: Starting) -> None:
    declare(desk)
    one = supervisor(start, desk.url, desk.folder)
    row = paused(desk)
    assert row.pid
    one.signal(signal.SIGTERM)
    assert one.end() == 0
    assert (desk.row.status, desk.row.desired) == ("stopped", "paused")
    supervisor(start, desk.url, desk.folder)
    await_true(lambda: desk.row.term == 2 and desk.row.status == "paused")
    assert desk.row.pid == 0, "it is paused without a process"
    desk.wish("running")
    assert desk.await_status("ended").run == row.run
    assert paid(desk) == ["0", "1", "2", "3"]
    assert desk.log.recording(row.run).outcome == "succeeded"


def test_killed_agent_resumes_its_run_and_pays_once(desk: Desk, start: Starting) -> None:
    declare(desk)
    supervisor(start, desk.url, desk.folder)
    row = paused(desk)
    _kill(row.pid, "desk.py")
    await_true(lambda: desk.row.pid == 0)
    desk.wish("running")
    row = desk.await_status("ended")
    assert row.attempt == 2
    assert paid(desk) == ["0", "1", "2", "3"]
