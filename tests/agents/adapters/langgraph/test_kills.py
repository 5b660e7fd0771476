"""A process that writes checkpoints is killed at any moment: what was acknowledged exists, everything else exists as a
whole or not at all."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import empty_checkpoint

from refold.langgraph import RefoldSaver
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child

LINES_MAX = 60
APPENDS = 28

# Continues the thread `t` of the log at argv[1], and prints what was acknowledged.
WRITING = """
import json, sys
from langgraph.checkpoint.base import empty_checkpoint
from refold.langgraph import RefoldSaver
from refold_tests.dying_log import die_at

def say(*what):
    print(json.dumps(what), flush=True)

saver = RefoldSaver(sys.argv[1])
found = saver.get_tuple({"configurable": {"thread_id": "t"}})
config = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}} if found is None else found.config
first = 0 if found is None else found.metadata["step"] + 1
say("begun", first)
die_at(saver.log.port, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
for number in range(first, first + 1000):
    values = {"messages": [f"message {each} " * 40 for each in range(number + 1)], "number": number}
    versions = dict.fromkeys(values, number + 1)
    checkpoint = {**empty_checkpoint(), "channel_values": values, "channel_versions": versions}
    config = saver.put(config, checkpoint, {"source": "loop", "step": number}, versions)
    say("put", number)
    saver.put_writes(config, [("messages", [number] * 200), ("number", number)], f"task {number}")
    say("writes", number)
    if number % 5 == 4:
        saver.copy_thread("t", f"copy {number}")
        say("copied", number)
"""


def on(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


def killed(process: Child, lines: int) -> list[list[Any]]:
    """Kill a process after it printed this many lines; return everything that it acknowledged."""
    said = [process.line() for _ in range(lines)]
    process.process.kill()
    assert process.process.stdout is not None
    said += process.process.stdout.read().splitlines()
    process.end()
    return [json.loads(line) for line in said if line.endswith("]")]


def check(url: str, acknowledged: list[list[Any]]) -> None:
    with RefoldSaver(url) as saver:
        found = {each.metadata["step"]: each for each in saver.list(on("t"))}
        assert [*found] == [*range(len(found) - 1, -1, -1)], "each is there once, and none is left out"
        latest = saver.get_tuple(on("t"))
        assert (-1 if latest is None else latest.metadata["step"]) == len(found) - 1, "the latest is the last listed"
        for number, each in found.items():
            values = each.checkpoint["channel_values"]
            assert values == {"messages": [f"message {m} " * 40 for m in range(number + 1)], "number": number}
            writes = [(f"task {number}", "messages", [number] * 200), (f"task {number}", "number", number)]
            assert each.pending_writes in ([], writes)
        for what, number in acknowledged:
            if what != "begun":
                assert number in found, (what, number)
            if what == "writes":
                assert found[number].pending_writes
            if what == "copied":
                assert saver.get_tuple(on(f"copy {number}")) is not None
        for number in range(4, len(found), 5):
            copied = [each.metadata["step"] for each in saver.list(on(f"copy {number}"))]
            assert copied in ([], [*range(number, -1, -1)]), "a copy is whole or not there"
        assert saver.log.verify().mismatches == []


@pytest.mark.faults
def test_killed_owner_loses_no_acknowledged_checkpoint(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"file:{tmp_path / 'log'}", random.Random(seed)
    acknowledged: list[list[Any]] = []
    for _ in range(max(2, fault_rounds // 2)):
        acknowledged += killed(child(WRITING, url), chance.randrange(1, LINES_MAX))
        check(url, acknowledged)


@pytest.mark.faults
def test_kill_between_any_two_observations_leaves_a_whole_checkpoint(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    """Kill it after each of the first APPENDS: those of five steps and of most of a copy."""
    for die_at in random.Random(seed).sample(range(1, APPENDS + 1), min(APPENDS, fault_rounds)):
        url = f"file:{tmp_path / str(die_at)}"
        process = child(WRITING, url, die_at)
        assert process.process.stdout is not None
        said = process.process.stdout.read().splitlines()
        assert process.end() == -signal.SIGKILL
        check(url, [json.loads(line) for line in said])
        with RefoldSaver(url) as saver:  # it continues from there
            found = saver.get_tuple(on("t"))
            config = on("t") if found is None else found.config
            saver.put(config, {**empty_checkpoint(), "channel_values": {"number": -1}}, {"step": -1}, {})
            again = saver.get_tuple(on("t"))
            assert again is not None
            assert again.checkpoint["channel_values"] == {"number": -1}


@pytest.mark.faults
def test_killed_client_of_the_owner_leaves_a_whole_checkpoint(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"file:{tmp_path / 'log'}", random.Random(seed)
    acknowledged: list[list[Any]] = []
    for _ in range(max(1, fault_rounds // 4)):
        with RefoldSaver(url) as owner:
            assert owner.log.port.has_tables
            acknowledged += killed(child(WRITING, url), chance.randrange(1, LINES_MAX))
            check(url, acknowledged)


@pytest.mark.faults
def test_killed_client_on_kafka_leaves_a_whole_checkpoint(
    kafka: SharedKafka, prefix: str, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", random.Random(seed)
    acknowledged: list[list[Any]] = []
    for _ in range(max(1, fault_rounds // 6)):
        acknowledged += killed(child(WRITING, url), chance.randrange(1, LINES_MAX))
        check(url, acknowledged)
