"""New definitions while records are folded: each change is `redefined` once, also if the worker is killed meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import refold
from refold.avro.observation import Observation
from refold.streams.change_reader import ChangeReader
from refold.streams.worker.service import FoldService
from refold_tests.brokers import SharedKafka
from refold_tests.child import Child
from refold_tests.folding import (
    append,
    await_folded,
    check_whole,
    drain,
    fold_all,
    history,
    last_changes,
    opened,
    running,
    stored_states,
    url_of,
    worker,
)
from refold_tests.kill_points import MOMENTS
from refold_tests.sample_types import THING, versions

pytestmark = pytest.mark.timeout(900)


def test_definitions_registered_midway_refold_every_entity(
    kafka: SharedKafka, prefix: str, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    with opened(url_of(kafka.bootstrap, prefix)) as log:
        log.register(THING)
        acknowledged: set[bytes] = set()
        definitions = list(versions(4))[1:]
        for definition in definitions:
            acknowledged |= append(log, history(rng, 80))
            fold_all(log, tmp_path)
            log.register(definition)
            fold_all(log, tmp_path)
            check_whole(log, tmp_path, acknowledged, definition)
        fold_all(log, tmp_path / "anew")
        check_whole(log, tmp_path / "anew", acknowledged, definitions[-1])


def test_types_registered_while_a_worker_runs_are_activated_before_their_first_record(
    kafka: SharedKafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record may arrive before the worker has read `.schemas`: here it never reads it without a reason."""
    monkeypatch.setattr(FoldService, "_follow_definitions", lambda _: None)
    url = url_of(kafka.bootstrap, prefix)
    types: dict[str, dict[str, object]] = {
        "tool_config": {"rate_limit": 1}, "document": {"fields": {"a": 1}}, "action": {"tool": "search"},
        "runbook": {"title": "on call"}, "audit_event": {"actor": "a"}, "evaluation": {"passed": True},
    }  # fmt: skip
    with opened(url) as port:
        with running(url, tmp_path) as folding, refold.open(url) as log:
            await_folded(port, folding)
            for number in range(4):
                for name, patch in types.items():
                    log.observe(f"{name}/{number}", patch)
            log.flush()
            await_folded(port, folding)
            states = log.rebuild(full=True).entity_hashes()
        assert len(states) == 4 * len(types)
        assert {name: found for name, (_, found) in last_changes(port).items()} == states
        assert {name: found for name, (_, found) in stored_states(tmp_path, port.partitions).items()} == states


@pytest.mark.faults
def test_kills_while_definitions_are_activated(
    kafka: SharedKafka, prefix: str, tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    url = url_of(kafka.bootstrap, prefix)
    definitions = list(versions(fault_rounds + 1))
    with opened(url) as log:
        log.register(definitions[0])
        observations: list[Observation] = history(rng, 200, entities=40)
        acknowledged = append(log, observations)
        fold_all(log, tmp_path)  # by the first definition, so that each later one has entities to fold again
        for number in range(fault_rounds):
            killed = worker(child, url, tmp_path, moment=rng.choice(MOMENTS), count=rng.randrange(1, 12))
            log.register(definitions[number + 1])
            deadline = time.monotonic() + 60
            while killed.process.poll() is None and time.monotonic() < deadline:
                acknowledged |= append(log, rng.choices(observations, k=3))
                time.sleep(0.05)
            killed.kill()
        last = worker(child, url, tmp_path)
        await_folded(log, last)
        drain(last)
        fold_all(log, tmp_path)
        check_whole(log, tmp_path, acknowledged, definitions[-1])
        reader = ChangeReader(log)
        redefined = [reader.decode(each.data) for each in log.read_changes(0, 0) if reader.decode(each.data).redefined]
        assert len(redefined) > len(definitions) / 4
