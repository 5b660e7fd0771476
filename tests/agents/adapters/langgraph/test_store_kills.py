"""A process that puts items is killed at any moment: what was acknowledged is there, every item is whole and found."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.langgraph import RefoldStore
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child

# Of two batches: 3 items and the index each, and a delete.
APPENDS = 9
BATCHES_MAX = 12

# Puts three items a batch in the store at argv[1], deletes one of the batch before, and prints what was acknowledged.
WRITING = """
import sys
from langgraph.store.base import PutOp
from refold.langgraph import RefoldStore
from refold_tests.dying_log import die_at

store = RefoldStore(sys.argv[1])
first = max((each.value["batch"] + 1 for each in store.search((), limit=100_000)), default=0)
die_at(store.log.port, int(sys.argv[2]))
for batch in range(first, first + 1000):
    puts = [PutOp(("m", str(n)), str(batch), {"batch": batch, "text": f"{batch} " * 500}) for n in range(3)]
    store.batch([*puts, PutOp(("m", "0"), str(batch - 1), None)])
    print(batch, flush=True)
"""


def killed(process: Child, lines: int) -> list[int]:
    """Kill a process after it printed this many lines; return every batch that it acknowledged."""
    said = [process.line() for _ in range(lines)]
    process.process.kill()
    assert process.process.stdout is not None
    said += process.process.stdout.read().splitlines(keepends=True)
    process.end()
    return [int(line) for line in said if line.strip()]


def check(url: str, acknowledged: list[int]) -> None:
    with RefoldStore(url) as store:
        found = {(each.namespace[1], int(each.key)): each.value for each in store.search(("m",), limit=100_000)}
        for (_, batch), value in found.items():
            assert value == {"batch": batch, "text": f"{batch} " * 500}
        last = max((batch for _, batch in found), default=-1)
        assert max(acknowledged, default=-1) <= last
        for batch in acknowledged:
            assert ("1", batch) in found
            assert ("2", batch) in found
            assert ("0", batch - 1) not in found
        for batch in range(last + 2):
            for n in "012":
                got = store.get(("m", n), str(batch))
                assert (got is not None) == ((n, batch) in found), "an item that can be got is found"
        assert store.log.verify().mismatches == []


@pytest.mark.faults
def test_kill_between_any_two_observations_leaves_a_whole_item(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    for die_at in random.Random(seed).sample(range(1, APPENDS + 1), min(APPENDS, max(1, fault_rounds // 2))):
        url = f"file:{tmp_path / str(die_at)}"
        process = child(WRITING, url, die_at)
        assert process.process.stdout is not None
        said = process.process.stdout.read().splitlines()
        assert process.end() == -signal.SIGKILL
        check(url, [int(line) for line in said])
        with RefoldStore(url) as store:  # a put of what was interrupted is found
            for n in range(3):
                store.put(("m", str(n)), "0", {"batch": 0, "text": "0 " * 500})
            assert {each.namespace[1] for each in store.search(("m",), limit=1000)} == {"0", "1", "2"}


@pytest.mark.faults
def test_killed_client_of_the_owner_leaves_a_whole_item(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"file:{tmp_path / 'log'}", random.Random(seed)
    acknowledged: list[int] = []
    with RefoldStore(url) as owner:
        for _ in range(max(1, fault_rounds // 3)):
            acknowledged += killed(child(WRITING, url, 0), chance.randrange(1, BATCHES_MAX))
            assert owner.get(("m", "1"), str(acknowledged[-1])) is not None
    check(url, acknowledged)


@pytest.mark.faults
def test_killed_client_on_kafka_leaves_a_whole_item(
    kafka: SharedKafka, prefix: str, child: Callable[..., Child], fault_rounds: int, seed: int
) -> None:
    url, chance = f"kafka://{kafka.bootstrap}/{prefix}?partitions=2", random.Random(seed)
    acknowledged: list[int] = []
    for _ in range(max(1, fault_rounds // 3)):
        acknowledged += killed(child(WRITING, url, 0), chance.randrange(1, BATCHES_MAX))
        check(url, acknowledged)
