"""Whatever is killed or refuses: every ended run has its whole trace at last, and no span has two contents."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold_tests.child import Child
from refold_tests.otlp_receiver import Receiver
from refold_tests.otlp_traces import expected, held, send, told_twice
from refold_tests.recorded_runs import random_run, write
from refold_tests.waiting import await_true

SENDER = """
import sys
from threading import Event
from refold.sinks.registry import open_sink
from refold.sinks.run import keep_up
from refold.streams.open import open_port

url, to, changes_max = sys.argv[1:4]
log = open_port(url, read_only=True)
sink = open_sink("otlp", to)
print("runs", flush=True)
keep_up(log, sink, follow=True, stop=Event(), poll_s=0.01, changes_max=int(changes_max))
"""


@pytest.mark.faults
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_kills_restarts_and_refusals_at_any_moment_lose_nothing(
    scheme: str, runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, child: Callable[..., Child], seed: int,
    fault_rounds: int,
) -> None:  # fmt: skip
    rng = random.Random(f"{seed} {scheme}")
    url, position = receiver.url(scheme), tmp_path / "position"
    ended: list[str] = []
    for number in range(max(3, fault_rounds // 2)):
        for _ in range(rng.randrange(1, 5)):
            run = random_run(rng, f"r-{number}-{len(ended)}", rng.randrange(4))
            write(runs, run, runs.vault)
            ended.append(run.run)
        process = child(SENDER, runs.port.url, f"{url}?position={position}", rng.choice((1, 5, 50)))
        assert process.line() == "runs"
        happens = rng.choice(("refuses", "dies", "nothing"))
        if happens == "refuses":
            receiver.mood(status=rng.choice((429, 503, 504)), retry_after=0.02)
            time.sleep(rng.uniform(0, 0.1))  # the moment
            receiver.mood()
        elif happens == "dies":
            time.sleep(rng.uniform(0, 0.1))  # the moment
            receiver.restart()
        time.sleep(rng.uniform(0, 0.2))  # the moment
        process.kill()
    last = send(runs, url, position)
    assert last.position == runs.point().cut
    assert held(receiver) == expected(runs, ended)
    assert told_twice(receiver) == {}


def test_second_sender_waits_for_the_first(
    runs: refold.AgentLog, receiver: Receiver, tmp_path: Path, child: Callable[..., Child]
) -> None:
    position = tmp_path / "position"
    to = f"{receiver.url('http')}?position={position}"
    one, other = (child(SENDER, runs.port.url, to, 50) for _ in range(2))
    assert (one.line(), other.line()) == ("runs", "runs")
    run = random_run(random.Random(1), "r-1", 2)
    write(runs, run, runs.vault)
    await_spans(receiver, expected(runs, ["r-1"]))
    await_position(position, runs)  # killed before it, what was sent comes again from the other
    one.kill()
    write(runs, random_run(random.Random(2), "r-2", 2), runs.vault)
    await_spans(receiver, expected(runs, ["r-1", "r-2"]))
    assert len(receiver.spans) == len(held(receiver)), "both sent"


def await_spans(receiver: Receiver, spans: dict[str, dict[str, object]]) -> None:
    await_true(lambda: held(receiver) == spans, "they did not come", within_s=300)


def await_position(path: Path, runs: refold.AgentLog) -> None:
    end = str(runs.point().cut)
    await_true(
        lambda: path.exists() and json.loads(path.read_text())["cut"] == end, "the position was not put", within_s=300
    )
