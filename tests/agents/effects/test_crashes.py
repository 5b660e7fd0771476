"""SIGKILL at every boundary of a task of nine effects, whose external service drops, refuses and delays calls."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.journal.record import Recording
from refold.agents.journal.self_replay import state_at
from refold.avro.errors import InputError
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.nine_steps import FINISHED, LEASE_S, SLOW, STEPS, UNKNOWN, Lives, order_of, run_order
from refold_tests.third_party import ThirdParty, third_party

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

# Before and after a read of the log, `intended`, a read, the call, `done`.
BOUNDARIES = 10
# Also the step's begin, the write of earlier records before the call, and the step's end.
BOUNDARIES_OF_A_RUN = 16
SLOW_S = LEASE_S / 5


def assert_once(service: ThirdParty, keys: list[str]) -> None:
    """Check that each of the nine was carried out once, one after the other."""
    seen = service.seen()
    assert {key: seen["counts"].get(key, 0) for key in keys} == dict.fromkeys(keys, 1)
    assert [key for key in seen["order"] if key in keys] == keys


def settled_by_hand(url: str, service: ThirdParty, run: str) -> None:
    """Settle what the last process left unknown: one effect is listed, and is settled by what the service says."""
    with refold.open(url) as log:
        ledger = log.effects
        unknown = ledger.list(status="unknown", run=run)
        assert len(unknown) == 1
        assert unknown[0].attempts >= 1
        time.sleep(max(0.0, unknown[0].until / 1e6 - time.time()))  # its request may be in progress until then
        settled = ledger.settle_by(unknown[0].key, service.probe, by="ann", note="asked the service")
        assert settled.status in ("done", "failed")
        with suppress(InputError):  # nothing is left to settle
            ledger.settle_by(unknown[0].key, service.probe, by="ben")


def campaign(
    url: str, child: Callable[..., Child], seed: int, rounds: int, *, is_run: bool, kills: int = STEPS
) -> None:
    """Run one task in each round. It is killed once in each of so many steps, at another boundary each time.

    Every second process has a probe, and settles by itself what the one before left unknown.
    """
    boundaries = BOUNDARIES_OF_A_RUN if is_run else BOUNDARIES
    rng = random.Random(seed)
    ends: Counter[int] = Counter()
    with third_party(child, seed, faults=0.3, slow_s=SLOW_S) as service:
        lives = Lives(child, url, service.port, is_run=is_run)
        for number in range(rounds):
            task, run = f"task-{number}", f"run-{number}"
            first, steps = rng.randrange(boundaries), sorted(rng.sample(range(1, STEPS + 1), kills))
            plan = [(step, (first + step * 3) % boundaries) for step in steps]
            print(f"round {number}: {plan}")
            while True:
                dies_in, dies_at = plan[0] if plan else (0, 0)
                is_probing = (len(plan) + number) % 2 == 1
                status = lives.live(task, run, dies_in=dies_in, dies_at=dies_at, is_probing=is_probing)
                ends[status] += 1
                if status == UNKNOWN:
                    settled_by_hand(url, service, run)
                elif status == FINISHED and not plan:
                    break
                elif status != SLOW:
                    plan = plan[1:]
            orders = [(run_order if is_run else order_of)(task, run, step) for step in range(1, STEPS + 1)]
            assert_once(service, [each.key for each in orders])
            with refold.open(url) as log:
                own = log.effects.list(run=run)
                assert [each.status for each in own] == ["done"] * STEPS
                assert {each.times_done for each in own} == {1}
                if is_run:
                    assert_recorded(log.recording(run))
    print(f"ends: {ends}")
    assert ends[-signal.SIGKILL] >= rounds * kills // 2


def assert_recorded(recording: Recording) -> None:
    """Check that the run is whole: nine committed steps, an unbroken chain, the state that the last one left."""
    assert (recording.outcome, len(recording.steps)) == ("succeeded", STEPS)
    assert all(each.is_committed for each in recording.steps)
    assert list(broken(recording)) == []
    assert state_at(recording, STEPS) == {"paid": STEPS}


@pytest.mark.parametrize("is_run", [False, True], ids=["ledger", "run"])
def test_kill_at_every_boundary_on_a_file_log(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int, is_run: bool
) -> None:
    print(f"REFOLD_SEED={seed}")
    campaign(f"file:{tmp_path / 'log'}", child, seed, max(1, fault_rounds // 6), is_run=is_run)


def test_kill_at_every_boundary_on_kafka(
    kafka: SharedKafka, prefix: str, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    print(f"REFOLD_SEED={seed}")
    monkeypatch.setenv("REFOLD_KEYS", "none")
    url = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2"
    campaign(url, child, seed, max(1, fault_rounds // 12), is_run=True, kills=5)


AT_ONCE = """
import os, signal, sys
import refold
from refold_tests.nine_steps import new_ledger, order_of

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

log = refold.open(sys.argv[1])
new_ledger(log).perform(order_of("task", "run", 1), kill if sys.argv[2] == "sent" else lambda key: "paid")
kill()
"""


@pytest.mark.parametrize(("moment", "status"), [("sent", "intended"), ("returned", "done")])
def test_each_record_is_durable_before_the_next_action(
    tmp_path: Path, child: Callable[..., Child], moment: str, status: str
) -> None:
    """`intended` is stored before the tool is called, `done` before its caller continues."""
    url = f"file:{tmp_path / 'log'}"
    assert child(AT_ONCE, url, moment).end() == -signal.SIGKILL
    with refold.open(url) as log:
        assert [each.status for each in log.effects.list()] == [status]
