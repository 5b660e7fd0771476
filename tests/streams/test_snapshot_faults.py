"""Snapshots with kills at any moment, and read by others while they are sealed.

Every process is real and every kill is SIGKILL. A seed repeats the writes and the waiting times, but not what
the operating system does.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from refold.avro.errors import StorageError
from refold.avro.ids import identify
from refold.reducers.entity import stored_hash
from refold.streams import runtime
from refold.streams.client import Log
from refold.streams.cut import Cut
from refold.streams.rebuild.rebuild import rebuild
from refold.streams.snapshots.manifest import Epoch
from refold.streams.snapshots.read import read_epoch
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.snapshots.spill import ChunkStore
from refold_tests.child import Child
from refold_tests.full_replay import assert_full_replay
from refold_tests.opening import open_log
from refold_tests.varied_logs import TYPES, hashes_of, mixed_history, random_cut, records_of, reference_at

pytestmark = pytest.mark.faults

LENGTH = 400
CHANGED_MIN = 4
BY_THREAD, BY_PROCESS = 1 << 60, 0
"""The number of entities from which a separate process seals."""

# Goes on where the log ends with what the seed gives, epochs sealed in the background at every few records and at times
# when asked for; says how many observations are durable, and after `sealed` which epochs are.
WRITER = """
import random, sys, time
from pathlib import Path
from refold.avro.ids import identify
from refold.streams import runtime
from refold.streams.snapshots.settings import SnapshotSettings
from refold_tests.opening import open_log
from refold_tests.varied_logs import TYPES, mixed_history

path, seed, length, wait_s = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
runtime.cores = lambda: 2
changed_min, entities_min = map(int, sys.argv[5:7])
log = open_log(path, settings=SnapshotSettings(epoch_records=5, cpu_share=float("inf"), changed_min=changed_min,
                                               process_entities_min=entities_min))
done = sum(log.port.ends().values())
print("open", done, flush=True)
rng, history = random.Random(seed + done), mixed_history(seed, length, 40)
while done < len(history):
    some = history[done : done + rng.choice((1, 3, 9))]
    for each in some:
        log.append(each, identify(each), TYPES[each.type][0], {})
    log.flush()
    done += len(some)
    print("done", done, flush=True)
    if rng.random() < 0.3:
        epochs = log.snapshot()
        print("sealed", *(number for epoch in epochs for number in epoch), flush=True)
    time.sleep(wait_s)
log.close()
print("closed", flush=True)
"""


class Heard:
    """Return a writer's output before it ended: only complete lines count."""

    def __init__(self) -> None:
        self.durable = 0
        self.sealed: set[Epoch] = set()
        self.closed = False

    def line(self, text: str) -> None:
        word, *numbers = text.split()
        if word in {"open", "done"} and numbers:
            self.durable = max(self.durable, int(numbers[0]))
        if word == "sealed" and len(numbers) % 6 == 0:  # of both partitions
            each = iter(map(int, numbers))
            self.sealed.update(Epoch(*one) for one in zip(each, each, each, strict=True))
        self.closed |= word == "closed"


def assert_epochs_are_right(log: Log) -> int:
    """Check that every sealed epoch is readable and equals the full replay to it; returns their number."""
    count = 0
    for partition in range(log.port.partitions):
        for epoch in log.port.snapshots.epochs(partition):
            manifest = log.port.snapshots.manifest(epoch)
            layers = read_epoch(log.port.snapshots, manifest, log.port.partitions, ChunkStore())
            offsets = {**dict.fromkeys(range(log.port.partitions), 0), partition: epoch.offset}
            cut = Cut(log.port.log_id, offsets, epoch.schemas, log.port.registry.digest(epoch.schemas))
            full = rebuild(log.port, cut, full=True)
            assert dict(layers.rows()) == dict(full.rows())
            assert (manifest.root, manifest.observations) == (full.root(), full.observations)
            count += 1
    return count


def assert_rebuilds(log: Log, rng: random.Random, cuts: int) -> None:
    """Check at random cuts and at the end that a rebuild equals the full replay, the table and the naive fold."""
    every = records_of(log)
    for _ in range(cuts):
        assert_full_replay(log.port, random_cut(log, rng, every))
    end = rebuild(log.port, log.point().cut)
    assert dict(end.rows()) == dict(log.port.stored_entities())
    hashes = hashes_of(reference_at(log, log.point().cut, every))
    assert {name: stored_hash(packed) for name, packed in end.rows()} == hashes


def test_writer_killed_while_sealing_leaves_whole_epochs_and_continues(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    heard = Heard()
    rounds = 0
    while not heard.closed:
        writer = child(WRITER, tmp_path, seed, LENGTH, 0.0, CHANGED_MIN, (BY_PROCESS, BY_THREAD)[rounds % 2])
        doomed = rounds < fault_rounds
        if doomed:
            for _ in range(rng.randrange(12)):
                heard.line(writer.line() or "nothing")
            time.sleep(rng.random() * rng.choice((0.002, 0.02)))
            writer.process.kill()
        while text := writer.line():
            heard.line(text)
        assert writer.end() == 0 or doomed
        rounds += 1
        if rounds % 6 == 0 and (tmp_path / "log" / "FORMAT").exists():
            with open_log(tmp_path, read_only=True) as log:
                assert sum(log.port.ends().values()) >= heard.durable
                assert_rebuilds(log, rng, 1)
        assert rounds < fault_rounds + 5
    with open_log(tmp_path, settings=SnapshotSettings(changed_min=CHANGED_MIN)) as log:
        assert sum(log.port.ends().values()) == len(mixed_history(seed, LENGTH, 40))
        for epoch in heard.sealed:
            assert epoch in log.port.snapshots.epochs(epoch.partition)
        assert assert_epochs_are_right(log) > 10
        assert_rebuilds(log, rng, 4)
        log.snapshot()
        assert log.verify().mismatches == []
        assert log.rebuild().source["replayed"] == 0


READER = """
import random, sys
from pathlib import Path
from refold.streams.cut import Cut
from refold_tests.full_replay import assert_full_replay, epochs_used
from refold_tests.opening import open_log

path, rng = Path(sys.argv[1]), random.Random(int(sys.argv[2]))
log = open_log(path, read_only=True)
used = set()
print("open", flush=True)
while True:
    log.port.refresh()
    ends = log.port.ends()
    for offsets in (ends, {partition: rng.randint(0, end) for partition, end in ends.items()}):
        cut = Cut(log.port.log_id, offsets, len(log.port.registry), log.port.registry.digest())
        used.update(epochs_used(assert_full_replay(log.port, cut)).values())
    print("same", len(used), flush=True)
"""


def test_reader_rebuilds_exactly_while_the_owner_seals(tmp_path: Path, child: Callable[..., Child], seed: int) -> None:
    print(f"seed {seed}")
    writer = child(WRITER, tmp_path, seed, LENGTH, 0.01, CHANGED_MIN, BY_THREAD)
    while not (text := writer.line()).startswith("sealed"):
        assert text
    readers = [child(READER, tmp_path, seed + number) for number in range(2)]
    for reader in readers:
        assert reader.line() == "open"
    while (text := writer.line()) != "closed":
        assert text
    assert writer.end() == 0
    for reader in readers:
        used = [reader.line() for _ in range(5)]
        assert all(line.startswith("same ") for line in used)
        reader.process.kill()
        while line := reader.line():
            used.append(line)
        assert reader.end() == -9
        assert max(int(line.split()[1]) for line in used if line.count(" ") == 1) > 2


@pytest.mark.parametrize("entities_min", [BY_THREAD, BY_PROCESS])
def test_log_closed_while_sealing_closes(
    tmp_path: Path, seed: int, entities_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment of the background thread; its leftovers disturb nothing."""
    monkeypatch.setattr(runtime, "cores", lambda: 2)
    print(f"seed {seed}")
    rng = random.Random(seed)
    history = mixed_history(seed, LENGTH, 40)
    settings = SnapshotSettings(
        epoch_records=5, cpu_share=math.inf, changed_min=CHANGED_MIN, process_entities_min=entities_min
    )  # fmt: skip
    done = 0
    while done < len(history):
        with open_log(tmp_path, settings=settings) as log:
            for _ in range(rng.randrange(4)):
                some = history[done : done + rng.choice((1, 5, 20))]
                done += len(some)
                for each in some:
                    log.append(each, identify(each), TYPES[each.type][0], {})
                log.flush()
            time.sleep(rng.random() * 0.01)
    with open_log(tmp_path, settings=settings) as log:
        assert_epochs_are_right(log)
        assert_rebuilds(log, rng, 5)
        log.close()
        with pytest.raises(StorageError, match="closed"):
            log.snapshot()
