"""Partitions rebuilt by several processes: the same bytes as by one, whatever happens to the processes."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from refold.avro.errors import CorruptionError
from refold.avro.observation import Observation
from refold.streams import runtime
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.digest import Digests
from refold.streams.job_process import PROCESSES_MAX
from refold.streams.open import file_path
from refold.streams.rebuild.plan import PartitionRange, RebuildPlan
from refold.streams.rebuild.processes import RECORDS_MIN, processes_worth
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.rebuild.result import read_entities, write_entities
from refold.streams.rocks.layout import url_of
from refold.streams.snapshots.layers import Layers
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.spill import ChunkStore
from refold.streams.view import StateView
from refold_tests.child import Child
from refold_tests.encoded_entities import encoded
from refold_tests.epochs import CLOSING, SMALL_EPOCHS, grow, manifests
from refold_tests.forked import fork_server
from refold_tests.histories import TYPE, random_history
from refold_tests.killing_reducer import CALLS, HOLD, MORTAL, SPARES
from refold_tests.opening import open_log, take
from refold_tests.processes import is_gone
from refold_tests.sample_types import OTHER, A, said
from refold_tests.unfindable_reducer import only_found_here

pytestmark = pytest.mark.outside
PATIENCE_S = 60.0


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files of this process and its children go."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def everything(view: StateView) -> tuple[object, ...]:
    """Return a view's whole content, byte for byte, and its sources, without the processes that folded it."""
    source = {key: value for key, value in view.source.items() if key != "apart"}
    return dict(view._rebuilt.rows()), view.root, len(view), view.observations, source


def of_entities(view: StateView) -> dict[str, bytes]:
    return dict(view._rebuilt.rows())


def some_cuts(log: Log, rng: random.Random, count: int) -> Iterator[Cut]:
    ends = log.port.ends()
    yield log.point().cut
    for _ in range(count):
        at = {partition: rng.randint(0, end) for partition, end in ends.items()}
        yield log.point("offset:" + ",".join(f"{partition}={offset}" for partition, offset in at.items())).cut


def children() -> set[int]:
    """Return this process's children, forked ones too, and ended ones that were not waited for."""
    found, parents = set(), {os.getpid(), fork_server().pid}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) in parents:
                found.add(int(stat.parent.name))
    return found


@pytest.fixture
def new_children() -> Callable[[], set[int]]:
    """Return the children started in this test: servers of other tests may be running."""
    before = children()
    return lambda: children() - before


def spread(definition_field: str, count: int) -> list[Observation]:
    """Observations of many entities in all partitions."""
    return [said(f"{A}{number % 50}", number, **{definition_field: f"{number}"}) for number in range(count)]


# The same bytes


@pytest.mark.parametrize("number", range(2))
@pytest.mark.usefixtures("forked_children")
def test_several_processes_give_the_same_as_one(
    tmp_path: Path,
    seed: int,
    number: int,
    temporary: Path,
    new_children: Callable[[], set[int]],
) -> None:
    rng = random.Random(seed + number)
    cold = used = 0
    with open_log(tmp_path, partitions=4, settings=SMALL_EPOCHS) as log:
        take(log, random_history(seed + number, 60), CLOSING)
        grow(log, rng, 6)
        take(log, random_history(seed + number + 1, 60), CLOSING)
        for cut in some_cuts(log, rng, 3):
            for full in (False, True):
                alone = log.rebuild(cut, full=full, parallel=False)
                apart = log.rebuild(cut, full=full, parallel=True)
                assert everything(apart) == everything(alone)
                assert (alone.source["apart"], apart.source["apart"]) == (0, 4)
                assert all(apart[name].tree == alone[name].tree for name in alone)
                epochs: Any = apart.source["snapshot_epochs"]
                used += len(epochs)
                cold += sum(bool(each.cold) for each in manifests(log) if each.epoch.offset in epochs.values())
        until = log.point().cut.until(said(A, 30).observed_at)
        assert everything(log.rebuild(until, parallel=True)) == everything(log.rebuild(until, parallel=False))
        since = said(A, 3_000_000).observed_at
        some = [f"{TYPE}/{each}" for each in range(9)]
        for limits in ({"types": [OTHER.name]}, {"since": since}, {"entities": some}):
            views = [log.rebuild(parallel=each, **limits) for each in (True, False)]
            assert of_entities(views[0]) == of_entities(views[1])
            assert views[0].observations == views[1].observations
        assert list(temporary.iterdir()) == []
    assert used
    assert cold
    assert not new_children()


@pytest.mark.usefixtures("forked_children")
def test_view_outlives_its_processes(tmp_path: Path) -> None:
    """One chunk of a view is in memory at a time; the others are read from the files that the processes wrote."""
    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 300))
        cut = log.point().cut
        first, second = (
            StateView(log.port, cut, rebuild(log.port, cut, parallel=True, memory_bytes=0)) for _ in range(2)
        )
        assert everything(first) == everything(second) == everything(log.rebuild(parallel=False))
        del first
        assert len(list(second)) == 50


@pytest.mark.usefixtures("forked_children")
def test_log_is_written_during_the_rebuild(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    with open_log(tmp_path, partitions=4) as log, open_log(tmp_path, read_only=True) as reader:
        grow(log, rng, 3)
        stop = Event()
        written = [0]

        def write() -> None:
            with open_log(tmp_path) as remote:
                while not stop.is_set():
                    take(remote, [said(f"{A}{rng.randrange(30)}", 1000 + written[0])], CLOSING)
                    written[0] += 1

        writer = Thread(target=write)
        writer.start()
        try:
            before = 0
            for _ in range(4):
                cut = reader.point().cut
                apart = reader.rebuild(cut, parallel=True)
                assert apart.source["apart"] == 4
                assert everything(apart) == everything(reader.rebuild(cut, parallel=False))
                assert written[0] > before
                before = written[0]
        finally:
            stop.set()
            writer.join()


@pytest.mark.parametrize("name", ["per%20cent", "what?", "with space", "a:b"])
def test_child_process_opens_the_log_by_its_url(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    with open_log(Path(name)) as log:
        take(log, spread("start", 20))
        assert file_path(log.port.url) == tmp_path / name / "log"
        assert file_path(url_of(Path(name))) == tmp_path / name
        assert log.rebuild(parallel=True).source["apart"] == 2


SCRIPT = """
import sys
from pathlib import Path
from refold_tests.opening import open_log

print("run", flush=True)
log = open_log(Path(sys.argv[1]))
print(log.rebuild(parallel=True).source["apart"], flush=True)
log.close()
"""


def test_script_without_a_main_guard_runs_once(tmp_path: Path, child: Callable[..., Child]) -> None:
    with open_log(tmp_path) as log:
        take(log, spread("start", 20))
    script = child(f"import runpy; runpy.run_path({str(_written(tmp_path, SCRIPT))!r}, run_name='__main__')", tmp_path)
    assert [script.line() for _ in range(3)] == ["run", "2", ""]
    assert script.end() == 0


def _written(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(text)
    return path


# Faults


@pytest.mark.faults
@pytest.mark.parametrize("number", range(3))
@pytest.mark.usefixtures("forked_children")
def test_killed_process_is_replaced_by_the_parent(
    tmp_path: Path,
    seed: int,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
    temporary: Path,
    new_children: Callable[[], set[int]],
) -> None:
    calls = random.Random(seed + number).randint(1, 100)
    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 400), MORTAL)
        alone = log.rebuild(parallel=False)
        monkeypatch.setenv(SPARES, str(os.getpid()))
        monkeypatch.setenv(CALLS, str(calls))
        progress: list[tuple[int, int]] = []
        for cut in (alone.cut, alone.cut.until(said(A, 400).observed_at)):  # the other is read before it is folded
            progress.clear()
            apart = log.rebuild(cut, parallel=True, progress=lambda more, total: progress.append((more, total)))
            assert everything(apart)[:-1] == everything(alone)[:-1]
            problems: Any = apart.source["fallbacks"]
            assert problems
            assert all("was folded here: the process for it was ended by signal 9" in each for each in problems)
            assert apart.source["replayed"] == alone.source["replayed"] == 400
            # Records that a failed process has read must be read again.
            assert sum(more for more, _ in progress) == progress[-1][1] >= 400
            assert list(temporary.iterdir()) == []
        assert progress[-1][1] > 400
    assert not new_children()


def test_reducer_that_no_child_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 200), only_found_here(tmp_path, monkeypatch))
        alone, apart = log.rebuild(parallel=False), log.rebuild(parallel=True)
        assert everything(apart)[:-1] == everything(alone)[:-1]
        problems: Any = apart.source["fallbacks"]
        assert apart.source["apart"] == 0
        assert 1 <= len(problems) <= 2, "a process that failed gets no more"
        assert all("refold_only_here:longest" in each and "cannot be imported" in each for each in problems)


def test_another_log_at_the_url_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with open_log(tmp_path, partitions=4) as log, open_log(tmp_path / "other", partitions=4) as other:
        take(log, spread("start", 40))
        take(other, spread("start", 90))
        log.port.url = other.port.url
        view = log.rebuild(parallel=True)
        assert everything(view)[:-1] == everything(log.rebuild(parallel=False))[:-1]
        assert "does not reach the cut" in str(view.source["fallbacks"])


@pytest.mark.parametrize("executable", ["/bin/false", "/nowhere/python"])
def test_one_process_is_used_without_an_interpreter(
    tmp_path: Path, executable: str, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 40))
        monkeypatch.setattr(sys, "executable", executable)
        view = log.rebuild(parallel=True)
        assert everything(view)[:-1] == everything(log.rebuild(parallel=False))[:-1]
        assert view.source["fallbacks"]
        assert list(temporary.iterdir()) == []


def test_error_in_the_caller_ends_the_child_processes(
    tmp_path: Path, temporary: Path, new_children: Callable[[], set[int]]
) -> None:
    def interrupted(more: int, total: int) -> None:
        raise KeyboardInterrupt

    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 40))
        with pytest.raises(KeyboardInterrupt):
            log.rebuild(parallel=True, progress=interrupted)
        assert not new_children()
        assert list(temporary.iterdir()) == []
        assert len(log.rebuild(parallel=True)) == 40


REBUILD = """
import sys
from pathlib import Path
from refold_tests.opening import open_log

log = open_log(Path(sys.argv[1]))
print("rebuilding", flush=True)
log.rebuild(parallel=True)
print("rebuilt", flush=True)
"""


def waiting_processes(folder: Path) -> Sequence[int]:
    """Return the processes that wait in the middle of folding, once there are two."""
    deadline = time.monotonic() + PATIENCE_S
    while len(found := [int(each.name) for each in folder.iterdir()]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.mark.faults
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_and_no_file_outlives_the_rebuild(
    tmp_path: Path, number: signal.Signals, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, temporary = tmp_path / "held", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    with open_log(tmp_path, partitions=4) as log:
        take(log, spread("start", 400), MORTAL)
    monkeypatch.setenv(SPARES, "0")
    monkeypatch.setenv(CALLS, "40")
    monkeypatch.setenv(HOLD, str(folder))
    monkeypatch.setenv("TMPDIR", str(temporary))
    rebuilding = child(REBUILD, tmp_path)
    assert rebuilding.line() == "rebuilding"
    processes = waiting_processes(folder)
    assert not any(map(is_gone, processes))
    assert any(each.name.startswith("refold-rebuild-") for each in temporary.iterdir())
    rebuilding.signal(number)
    assert rebuilding.end() != 0
    deadline = time.monotonic() + PATIENCE_S
    while not all(map(is_gone, processes)) or list(temporary.iterdir()):
        assert time.monotonic() < deadline, (list(map(is_gone, processes)), list(temporary.iterdir()))
        time.sleep(0.01)


# Handed over data


def test_incomplete_entities_are_not_accepted(seed: int) -> None:
    rng = random.Random(seed)
    layers = Layers(ChunkStore(chunk_bytes=400))
    for number in range(200):
        layers.put(f"{A}{number}", encoded(f"{A}{number}", number, rng.randbytes(32)))
    with tempfile.TemporaryFile() as file:
        file.write(b"before")
        write_entities(file, layers, layers.rehash(), range(1024))
        end = file.tell()
        file.write(b"behind")
        file.flush()
        taken = Layers(ChunkStore())
        read_entities(file, 6, end, taken)
        assert dict(taken.rows()) == dict(layers.rows())
        assert taken.digests.slot(5) == layers.digests.slot(5)
        for cut in [*(rng.randrange(6, end) for _ in range(200)), end - 1]:
            with pytest.raises(CorruptionError):
                read_entities(file, 6, cut, Layers(ChunkStore()))
        for _ in range(100):
            at = rng.randrange(6, end - 8 - sum(8194 for slot in range(1024) if layers.digests.buckets(slot)))
            byte = os.pread(file.fileno(), 1, at)
            os.pwrite(file.fileno(), bytes([byte[0] ^ 1 << rng.randrange(8)]), at)
            with pytest.raises(CorruptionError):
                read_entities(file, 6, end, Layers(ChunkStore()))
            os.pwrite(file.fileno(), byte, at)


def test_digests_are_grouped_by_slot() -> None:
    digests, copy = Digests(), Digests()
    digests.set(5 << 8 | 7, b"x" * 32)
    copy.set_buckets(5, digests.buckets(5))
    assert (copy.buckets(6), copy.bucket(5 << 8 | 7)) == (b"", b"x" * 32)
    assert copy.slot(5) == digests.slot(5)


# When it pays


def test_several_processes_are_used_when_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def worth(cores: int, *records: int, begun: int = 0, asked: bool | None = None) -> int:
        monkeypatch.setattr(runtime, "cores", lambda: cores)
        cut = Cut(bytes(16), dict(enumerate(records)), 0, bytes(32))
        ranges = {
            partition: PartitionRange(partition, Epoch(partition, begun, 0) if begun else None, end)
            for partition, end in cut.offsets.items()
        }
        return processes_worth(RebuildPlan(cut, ranges), asked)

    half = RECORDS_MIN // 2
    assert worth(2, half, half) == 2
    assert worth(2, half, half - 1) == 0
    assert worth(2, half, half, begun=1) == 0
    assert worth(1, half, half) == 0
    assert worth(64, RECORDS_MIN) == 0
    assert worth(64, *[half] * 3) == 3
    assert worth(64, *[half] * 64) == PROCESSES_MAX
    assert worth(2, half, half, asked=False) == 0
    assert worth(2, 1, 1, asked=True) == 2
    assert worth(1, 1, 1, asked=True) == 1
    assert worth(2, asked=True) == 0
