"""Workers with and without the native kernel fold one log in one group: each takes partitions from the one before."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.kernel import SWITCH, find_kernel
from refold.streams.log.kafka.log import KafkaLog
from refold_tests.absent import without
from refold_tests.child import Child
from refold_tests.folding import append, await_folded, check_whole, fold_all, history, worker
from refold_tests.sample_types import A, said

TURNS = 4
PARTITIONS = 4
# A worker's first lines: whether it uses the kernel. At its end it prints how many records the kernel folded, and how
# many there were.
COUNTED = """
import os
os.environ["{switch}"] = "{value}"
import atexit
from collections import Counter
from refold.streams.table.batch_fold import BatchFold
folded = Counter()
fold = BatchFold.fold
def counted(writer, arrived, *given, **named):
    before = writer.kernel_records
    fold(writer, arrived, *given, **named)
    folded.update(kernel=writer.kernel_records - before, all=len(arrived))
BatchFold.fold = counted
atexit.register(lambda: print("folded", folded["kernel"], folded["all"], flush=True))
"""


@pytest.fixture
def partitions() -> int:
    return PARTITIONS


def folded(found: Child) -> tuple[int, int]:
    """Let a worker finish; return how many records its kernel folded, and how many it folded in all."""
    found.signal(signal.SIGTERM)
    assert found.line() == "drained"
    said, by_kernel, count = found.line().split()
    assert (said, found.end()) == ("folded", 0)
    return int(by_kernel), int(count)


def test_workers_with_and_without_the_kernel_take_partitions_from_each_other(
    log: KafkaLog, tmp_path: Path, child: Callable[..., Child], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if find_kernel().kernel is None:
        without("no kernel to fold with: make kernel")
    print(f"seed {seed}")
    disturbed = history(random.Random(seed), 400)
    acknowledged: set[bytes] = set()
    before: Child | None = None
    for turn in range(TURNS):
        # Observations that the kernel folds, and every kind that it does not.
        plain = [said(f"{A}-{number % 20}", turn * 200 + number) for number in range(200)]
        arriving = [*plain, *disturbed[turn::TURNS]]
        # The next worker joins, and gets some of the partitions while the other one folds the rest.
        uses_kernel = turn % 2 == 1
        begun = COUNTED.format(switch=SWITCH, value=int(uses_kernel))
        found = worker(child, log.url, tmp_path / str(turn % 2), f"w{turn}", static=False, before=begun)
        acknowledged |= append(log, arriving[: len(arriving) // 2])
        await_folded(log, found, *([] if before is None else [before]))
        if before is not None:
            by_kernel, count = folded(before)
            assert count > 0
            assert (by_kernel > 0) == (not uses_kernel)
        acknowledged |= append(log, arriving[len(arriving) // 2 :])
        await_folded(log, found)
        before = found
    assert before is not None
    assert folded(before)[0] > 0
    for folder in ("0", "1"):  # each has tables that the other may be past
        fold_all(log, tmp_path / folder)
        check_whole(log, tmp_path / folder, acknowledged)
