"""Workers with and without the native kernel fold one log alternately, each from where the other stopped."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from refold.avro.kernel import SWITCH, find_kernel
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.table.native import NativeFolder
from refold_tests.absent import without
from refold_tests.folding import append, await_folded, check_whole, history, running
from refold_tests.sample_types import A, said

TURNS = 4


def test_workers_with_and_without_the_kernel_alternate(
    log: KafkaLog, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SWITCH, raising=False)
    if find_kernel().kernel is None:
        without("no kernel to fold with: make kernel")
    print(f"seed {seed}")
    disturbed = history(random.Random(seed), 400)
    acknowledged: set[bytes] = set()
    taken: list[int] = []
    fold = NativeFolder.fold

    def counted(folder: NativeFolder, *given: Any) -> dict[str, Any]:
        found = fold(folder, *given)
        taken.append(len(found))
        return found

    monkeypatch.setattr(NativeFolder, "fold", counted)
    for turn in range(TURNS):
        # Observations that the kernel folds, and every kind that it does not.
        plain = [said(f"{A}-{number % 20}", turn * 200 + number) for number in range(200)]
        acknowledged |= append(log, [*plain, *disturbed[turn::TURNS]])
        monkeypatch.setenv(SWITCH, str(turn % 2))
        with running(log.url, tmp_path / "worker") as found:
            await_folded(log, found)
        assert (sum(taken) > 0) == (turn % 2 == 1)
        taken.clear()
    check_whole(log, tmp_path / "worker", acknowledged)
