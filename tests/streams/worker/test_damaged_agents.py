"""Agents over changes with batches damaged on a broker's disk: each is named, and skipped once it is set aside."""

from __future__ import annotations

import random
import shlex
from functools import partial
from pathlib import Path

import pytest

from refold.streams.change_reader import ChangeReader
from refold.streams.log.kafka.committed import CommittedOffsets
from refold.streams.log.kafka.fold_position import is_emitted
from refold.testing.kafka import Kafka
from refold_tests.bitrot import rot_batch
from refold_tests.command import refold_command
from refold_tests.folding import await_folded, opened, running, url_of
from refold_tests.rotten_logs import append_batches, records_of
from refold_tests.sample_types import THING
from refold_tests.tree import ROOT
from refold_tests.waiting import await_true
from refold_tests.worker_process import starting

AGENTS_S = 600.0
"""Agents may have to join their group several times."""


@pytest.fixture
def url(rotting: Kafka, request: pytest.FixtureRequest) -> str:
    return url_of(rotting.bootstrap, f"log{abs(hash(request.node.nodeid)) % 10**8}")


AGENT = """
from pathlib import Path

from refold.streams.worker.agents import changes_agent


@changes_agent()
def sees(change, log):
    with Path(__file__).with_suffix(".txt").open("a", encoding="utf-8") as file:
        file.write(f"{change.entity} v{change.to_version}\\n")
"""


@pytest.mark.timeout(1800)
def test_agents_name_a_damaged_batch_of_changes_and_skip_it_once_set_aside(
    rotting: Kafka, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Agents get every other change, also those fetched together with the batch, of any partition."""
    rng = random.Random(seed)
    module = tmp_path / "seeing.py"
    module.write_text(AGENT, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT / 'tests' / 'support'}")
    with opened(url) as log:
        log.register(THING)
        partition, ends = rng.randrange(2), []
        with running(url, tmp_path / "w") as worker:
            for _ in range(4):
                append_batches(log, rng, 1)
                await_folded(log, worker)
                log.refresh()
                ends.append(log.changes_end(partition))
        reader = ChangeReader(log)
        changes = {
            (partition, raw.offset): reader.decode(raw.value)
            for partition, raw in records_of(log, log.topics.changes)
            if is_emitted(raw)
        }
        offsets = [offset for each, offset in changes if each == partition]
        third = min(offset for offset in offsets if offset >= ends[1])
        first, middle = (rot_batch(rotting, log.topics.changes, partition, each) for each in (offsets[0], third))
        assert first.last < ends[0] <= ends[1] <= middle.first <= middle.last < ends[2] <= offsets[-1]
        with starting(url, tmp_path) as start:
            begin = partial(start, "w", "--agents", "seeing")
            for wound in (first, middle):
                status, last = begin().ended(AGENTS_S)
                command = f"refold quarantine add {log.topics.changes}/{partition}/{wound.first}"
                assert (status, f"{command} --log {log.url}" in last) == (2, True), last
                assert "its batch cannot be read" in last
                assert refold_command(*shlex.split(command)[1:], log=url).status == 0
            left = {
                f"{each.entity} v{each.to_version}"
                for (at, offset), each in changes.items()
                if at != partition or not any(wound.first <= offset <= wound.last for wound in (first, middle))
            }
            last_of = {each: max(offset for at, offset in changes if at == each) for each in range(2)}
            group = f"{log.topics.group}.agents.seeing"
            seen = module.with_suffix(".txt")
            again = begin()
            await_true(
                lambda: seen.exists() and {*seen.read_text(encoding="utf-8").splitlines()} >= left, within_s=AGENTS_S
            )
            # Acknowledged offsets are past the batches, so the batches are not read again.
            with CommittedOffsets(log.clients, group, log.topics.changes, stable=False) as asked:
                await_true(
                    lambda: all((at.offset or 0) > last_of[p] for p, at in asked.ask(last_of, 60).items()),
                    within_s=AGENTS_S,
                )
            assert again.stop()[0] == 0
            assert {*seen.read_text(encoding="utf-8").splitlines()} == left
            seen.unlink()
            append_batches(log, rng, 1)
            later = begin()
            await_true(seen.exists, within_s=AGENTS_S)
            assert later.stop()[0] == 0
            assert not {*seen.read_text(encoding="utf-8").splitlines()} & left
