"""Real recorded runs, with snapshots taken during the import: at every point a rebuild equals the full replay."""

from __future__ import annotations

import datetime as dt
import gzip
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import refold
from refold.explorer.cli.main import run
from refold.reducers.entity import stored_hash, stored_version
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.digest import root_of
from refold.streams.open import process_context
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.command import refold_command

CUTS = 200
FULL = 10
PARTS = 4
CLOSED = 80
SETTINGS = SnapshotSettings(epoch_records=300, changed_min=200)

# One import serves all tests of this file, so xdist runs them on one worker.
pytestmark = [pytest.mark.outside, pytest.mark.xdist_group("snapshots-acceptance")]


@pytest.fixture(scope="module")
def url(tau_bench_file: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The log that the runs were imported into, by PARTS commands. Its owner, in this process, seals epochs in between
    and in the background.
    """
    folder = tmp_path_factory.mktemp("snapshots")
    url = f"file:{folder / 'log'}"
    lines = gzip.decompress(tau_bench_file.read_bytes()).splitlines(keepends=True)
    for part in range(PARTS):
        with refold.open(url, runtime=replace(process_context(), snapshots=SETTINGS)) as log:
            path = folder / f"{part}.jsonl"
            path.write_bytes(b"".join(lines[part::PARTS]))
            assert run(["import", str(path), "--format", "tau-bench", "--log", url]) == 0
            observe_closed(log, part)
            log.flush()
            assert run(["snapshot", "--log", url]) == 0
    return url


def observe_closed(log: Log, part: int) -> None:
    """Record runs that ended in some month. The imported runs have no times, so they are never closed."""
    for number in range(CLOSED):
        ended_at = dt.datetime(2025, 1 + number % 3, 1 + part, tzinfo=dt.UTC)
        fields = {"agent": "closed", "status": "ended", "outcome": "succeeded", "ended_at": ended_at}
        log.observe(f"run/closed-{part}-{number}", fields, observed_at=ended_at)


@pytest.fixture
def log(url: str) -> Iterator[Log]:
    with refold.open(url, read_only=True) as log:
        yield log


def cut_at(log: Log, offsets: dict[int, int]) -> Cut:
    """Return a cut with these offsets and every definition of the log."""
    return Cut(log.port.log_id, offsets, len(log.port.registry), log.port.registry.digest())


def random_offsets(log: Log, rng: random.Random) -> dict[int, int]:
    return {partition: rng.randint(0, end) for partition, end in log.port.ends().items()}


def test_rebuild_at_any_cut_equals_the_full_replay(log: Log, seed: int) -> None:
    """FULL full replays give each partition's state at as many points. Any combination of these points is a cut."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    full: dict[int, dict[int, dict[str, bytes]]] = {partition: {} for partition in log.port.ends()}
    for _ in range(FULL):
        cut = cut_at(log, random_offsets(log, rng))
        rebuilt = rebuild(log.port, cut, full=True)
        assert rebuilt.source()["snapshot_epochs"] == {}
        for partition, offset in cut.offsets.items():
            full[partition][offset] = dict(rebuilt.parts[partition].layers.rows())
    begun = {"base": 0, "delta": 0, "cold": 0}
    for _ in range(CUTS):
        cut = cut_at(log, {partition: rng.choice(sorted(each)) for partition, each in full.items()})
        expected: dict[str, bytes] = {}
        for partition, offset in cut.offsets.items():
            expected |= full[partition][offset]
        found = rebuild(log.port, cut)
        assert dict(found.rows()) == expected
        assert found.entities == len(expected)
        assert found.observations == sum(map(stored_version, expected.values()))
        assert found.root() == root_of((name, stored_hash(packed)) for name, packed in expected.items())
        assert found.source()["fallbacks"] == []
        for part in found.parts.values():
            if part.epoch is not None:
                manifest = log.port.snapshots.manifest(part.epoch)
                begun["base" if manifest.is_base else "delta"] += 1
                begun["cold"] += bool(manifest.cold)
    assert min(begun.values()) > CUTS // 10, begun


def test_command_rebuilds_the_same(url: str, log: Log, seed: int) -> None:
    for number in range(2):
        cut = cut_at(log, random_offsets(log, random.Random(seed + number)))
        found = refold_command("rebuild", "--at", str(cut), "--json", log=url).json
        full = refold_command("rebuild", "--at", str(cut), "--full", "--json", log=url).json
        assert found["source"]["snapshot_epochs"]
        assert full["source"]["snapshot_epochs"] == {}
        for name in ("cut", "root", "entities", "observations"):
            assert found[name] == full[name]


def test_snapshots_verify(url: str) -> None:
    assert refold_command("verify", "--json", log=url).json["mismatches"] == []
