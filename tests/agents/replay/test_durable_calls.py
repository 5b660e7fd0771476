"""Calls are durable while their step continues: a run killed in a long step continues with the answers it has."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.agents.journal.chain import broken
from refold.agents.recorder.observations import step_entity
from refold_tests.child import Child
from refold_tests.long_steps import CALLS, CODE, LANES, agent_of

IN_ORDER = Counter(
    [*(f"look {number}" for number in range(0, CALLS, 2)), *(f"call {number % 4}" for number in range(1, CALLS, 2))]
)  # fmt: skip
IN_LANES = Counter(f"lane {lane}.{turn}" for lane in range(LANES) for turn in range(2))
OUTPUT = [
    *(f"answer of call {number % 4}" if number % 2 else f"answer of look {number}" for number in range(CALLS)),
    *(f"answer of lane {lane}.{turn}" for lane in range(LANES) for turn in range(2)),
]  # fmt: skip


def killed_and_resumed(
    child: Callable[..., Child], folder: Path, rng: random.Random, *, is_barred: bool
) -> tuple[int, Counter[str]]:
    """Return how often it was killed, and the calls it made; check that the run is whole at the end."""
    url, calls = f"file:{folder}/log", folder / "calls"
    ends = sorted(rng.sample(range(1, sum(IN_ORDER.values()) + sum(IN_LANES.values())), k=5))
    print(f"killed behind {ends} calls")
    for place, dies_behind in enumerate(ends):
        how = [*(["barred"] if is_barred else []), *(["resume"] if place else [])]
        found = child(CODE, url, calls, dies_behind, *how)
        assert found.line() == "", "it was to be killed"
        assert found.end() != 0
    with refold.open(url) as log:
        (step,) = log.recording("r1").steps
        assert not step.is_committed
        assert log.replay("r1", agent_of(calls)).is_same  # as far as it got
        output = log.run("tests", resume="r1").drive(agent_of(calls))
        assert output == OUTPUT
        made = Counter(calls.read_text().splitlines())
        recording = log.recording("r1")
        assert recording.outcome == "succeeded"
        assert list(broken(recording)) == []
        (step,) = recording.steps
        assert [bool(each.calls) for each in step.attempts] == [False] * len(ends) + [True]
        assert len(step.calls) == sum(IN_ORDER.values()) + sum(IN_LANES.values())
        assert not log.state(step_entity("r1", 1)).fields.get("answered"), "the journal has the calls"
        again = log.replay("r1", agent_of(folder / "none"))
        assert again.is_same
        assert not (folder / "none").exists(), "nothing is asked in a replay"
    return len(ends), made


@pytest.mark.faults
@pytest.mark.parametrize("turn", range(3))
def test_answered_calls_of_an_interrupted_step_are_not_repeated(
    tmp_path: Path, child: Callable[..., Child], seed: int, turn: int
) -> None:
    print(f"seed {seed}, turn {turn}")
    kills, made = killed_and_resumed(child, tmp_path, random.Random(seed + turn), is_barred=True)
    assert {name: made[name] for name in IN_ORDER} == IN_ORDER
    # Other threads had calls in progress, in addition to the recorded one.
    assert all(1 <= made[name] <= 1 + kills for name in IN_LANES)


@pytest.mark.faults
def test_run_killed_at_any_moment_of_a_long_step_completes_correctly(
    tmp_path: Path, child: Callable[..., Child], seed: int
) -> None:
    print(f"seed {seed}")
    _, made = killed_and_resumed(child, tmp_path, random.Random(seed), is_barred=False)
    assert made.keys() == {*IN_ORDER, *IN_LANES}


LETTERS = """
import os, signal, sys
import refold

@refold.tool(effect="write")
def send(to, *, idempotency_key=""):
    with open(sys.argv[2], "a") as letters:
        print(to, idempotency_key, file=letters)
    return idempotency_key

def agent(run):
    with run.step("letters"):
        keys = []
        for number in range(4):
            keys.append(send("ada"))
            if number + 1 == int(sys.argv[3]):
                run._sink.flush()  # what was answered stands
                os.kill(os.getpid(), signal.SIGKILL)
        return keys

with refold.open(sys.argv[1]) as log:
    run = log.run("a", resume="r") if len(sys.argv) > 4 else log.run("a", id="r")
    print(*run.drive(agent))
    print(log.replay("r", agent).is_same)
"""


def test_equal_writes_of_an_interrupted_step_are_each_sent_once(tmp_path: Path, child: Callable[..., Child]) -> None:
    url, letters = f"file:{tmp_path}/log", tmp_path / "letters"
    for place, dies_behind in enumerate([1, 3]):
        assert child(LETTERS, url, letters, dies_behind, *["resume"] * place).end() == -9
        assert len(letters.read_text().splitlines()) == dies_behind
    last = child(LETTERS, url, letters, 0, "resume")
    keys = last.line().split()
    assert last.line() == "True"
    assert last.end() == 0
    assert len(set(keys)) == 4
    assert letters.read_text().splitlines() == [f"ada {key}" for key in keys]
