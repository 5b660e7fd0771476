"""Imports that are killed: nothing is lost or duplicated, and repeating the import completes it."""

from __future__ import annotations

import gzip
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

import refold
from refold_tests.command import environment, refold_command, started
from refold_tests.forked import Forked
from refold_tests.waiting import await_true

pytestmark = pytest.mark.outside

KILLED_AFTER_S = (0.3, 2.0)  # a start takes 0.3 s; each round continues with what the killed one made durable


WAITING = """
import pathlib, time
from refold.explorer.cli.record import import_
from refold.streams.exchange.intake import Intake

class Waiting(Intake):
    def __init__(self, log, advance):
        super().__init__(log, advance, window=1000)

    def flush(self):
        super().flush()
        pathlib.Path("reached").touch()
        while True:  # a signal that arrives just before a sleep does not end it
            time.sleep(0.05)

import_.Intake = Waiting
"""
"""An import waits once a part of it is durable: then it is stopped in the middle, however fast it is."""


@pytest.fixture(scope="module")
def exported(tau_bench_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, int]:
    """Some recorded runs as exported lines, the root of a log that holds them, and their number."""
    folder = tmp_path_factory.mktemp("faults")
    with gzip.open(tau_bench_file) as file:
        (folder / "some.jsonl").write_bytes(b"".join(line for line, _ in zip(file, range(25), strict=False)))
    url = f"file:{folder / 'log'}"
    count = refold_command("import", folder / "some.jsonl", "--format", "tau-bench", "--json", log=url).json["new"]
    assert refold_command("export", folder / "x.jsonl", log=url).status == 0
    return folder / "x.jsonl", refold_command("rebuild", "--json", log=url).json["root"], count


def importing(source: Path, url: str, before: str = "") -> Forked:
    return started(
        "import", source, env=environment(url), cwd=source.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        before=before,
    )  # fmt: skip


@pytest.mark.faults
def test_import_killed_repeatedly_completes(
    exported: tuple[Path, str, int], tmp_path: Path, fault_rounds: int, seed: int
) -> None:
    source, root, count = exported
    chance = random.Random(seed)
    url, path = f"file:{tmp_path / 'log'}", tmp_path / "log"
    held: set[bytes] = set()
    for _ in range(fault_rounds):
        with importing(source, url) as process:
            time.sleep(chance.uniform(*KILLED_AFTER_S))
            process.kill()
        if not (path / "FORMAT").exists():
            continue
        with refold.open(url, read_only=True) as log:
            now = [record.id for part, end in log.port.ends().items() for record in log.port.read(part, 0, end)]
            assert len(now) == len(set(now)), "nothing is recorded twice"
            assert held <= set(now), "nothing that was there is gone"
            held = set(now)
            assert log.verify().ok
            finished = len(held) == count
        if finished:
            assert refold_command("rebuild", "--expect-root", root, log=url).status == 0
            shutil.rmtree(path)
            held = set()
    assert refold_command("import", source, log=url).status == 0
    rebuilt = refold_command("rebuild", "--expect-root", root, "--json", log=url)
    assert (rebuilt.status, rebuilt.json["observations"]) == (0, count)
    assert refold_command("verify", log=url).status == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_import_reports_its_progress(
    exported: tuple[Path, str, int], tmp_path: Path, number: signal.Signals, status: int
) -> None:
    source, root, count = exported
    # The same lines, repeated: all repeats are already known.
    long = tmp_path / "long.jsonl"
    long.write_bytes(source.read_bytes() * 10)
    url, reached = f"file:{tmp_path / 'log'}", tmp_path / "reached"
    with importing(long, url, before=WAITING) as process:
        await_true(reached.exists)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert err.count("\n") == 1
    assert f"of {count * 10:,} observations are recorded; import the same again to finish" in err
    assert json.loads(refold_command("verify", "--json", log=url).out)["ok"]
    assert refold_command("import", source, log=url).status == 0
    assert refold_command("rebuild", "--expect-root", root, log=url).status == 0


def test_concurrent_imports_are_one(exported: tuple[Path, str, int], tmp_path: Path) -> None:
    source, root, count = exported
    url = f"file:{tmp_path / 'log'}"
    with importing(source, url) as one, importing(source, url) as other:
        ends = [each.communicate(timeout=120) for each in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), ends
    rebuilt = refold_command("rebuild", "--expect-root", root, "--json", log=url)
    assert (rebuilt.status, rebuilt.json["observations"]) == (0, count)
    assert refold_command("verify", log=url).status == 0
