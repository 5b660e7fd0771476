"""The embedded log with kills at any moment, changed bytes, a compacting owner and readers during heavy writing.

Every process is real and every kill is SIGKILL. A seed repeats the writes and the waiting times, but not what
the operating system does.
"""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from refold.avro.errors import CorruptionError
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.entity import unpack
from refold.streams.client import Log
from refold.streams.log.file.log import FileLog
from refold.streams.log.port import LogPort
from refold.streams.rocks.families import FAMILIES
from refold_tests.child import Child
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take
from refold_tests.reference import reference_hash, reference_root, reference_states
from refold_tests.sample_types import THING, A, reference_definition, said

pytestmark = pytest.mark.faults

# Records the seed's observations, always from the beginning, and prints after each flush how many are done.
WRITER = """
import sys
from pathlib import Path
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take

path, seed, length, at_once = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
log = open_log(path)
print("open", log.port.log_id.hex(), flush=True)
observations = random_history(seed, length)
for done in range(0, len(observations), at_once):
    take(log, observations[done : done + at_once])
    print("done", min(done + at_once, len(observations)), flush=True)
log.close()
print("closed", flush=True)
"""


class Writer:
    """A writer that is killed and restarted; `acknowledged` is how many of its observations were ever flushed."""

    def __init__(self, child: Callable[..., Child], path: Path, seed: int, length: int, at_once: int = 7) -> None:
        self.observations = random_history(seed, length)
        self.acknowledged = 0
        self.log_ids: set[str] = set()
        self._start = partial(child, WRITER, path, seed, length, at_once)
        self.child: Child = self._start()

    def let_live(self, rng: random.Random) -> None:
        """Wait for a moment to end it: while it starts, while it opens the log, or between any two of its flushes."""
        for _ in range(rng.choice((0, 1, rng.randrange(30), rng.randrange(30)))):
            if not self._hear():
                break
        time.sleep(rng.random() * rng.choice((0.002, 0.02, 0.3)))

    def kill(self) -> None:
        """End it now, and collect its output."""
        self.child.process.kill()
        self._hear_out()

    def restart(self) -> None:
        self.child = self._start()

    def finish(self) -> None:
        """Let it finish."""
        assert self._hear_out() == 0
        assert self.acknowledged == len(self.observations)

    def _hear(self) -> str:
        line = self.child.line()
        word, _, rest = line.partition(" ")
        if word == "open":
            self.log_ids.add(rest)
        if word == "done" and rest:  # a kill may cut a line short
            self.acknowledged = max(self.acknowledged, int(rest))
        return line

    def _hear_out(self) -> int:
        while self._hear():
            pass
        return self.child.end()

    def assert_held(self, log: LogPort) -> None:
        """Check that everything acknowledged as durable exists, at its first position."""
        for each in self.observations[: self.acknowledged]:
            found = log.find(identify(each))
            assert found is not None
            assert found.entity == each.entity


def assert_holds(log: Log, observations: Sequence[Observation]) -> None:
    """Check that each of these exists once and nothing else, all tables are right, and the root is the naive fold's."""
    expected = {identify(each) for each in observations}
    stored = [each.id for p, end in log.port.ends().items() for each in log.port.read(p, 0, end)]
    assert set(stored) == expected
    view = log.rebuild()
    assert view.observations == len(expected)
    states = reference_states(reference_definition(THING), list(enumerate(observations)))
    assert view.root == reference_root({name: reference_hash(state) for name, state in states.items()}).hex()
    assert sum(each.version for each in (view[name] for name in view)) == len(expected)
    verdict = log.verify()
    assert verdict.mismatches == []
    assert verdict.root == view.root


def test_import_killed_at_any_moment_loses_and_duplicates_nothing(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    writer = Writer(child, tmp_path, seed, 200)
    for number in range(fault_rounds):
        writer.let_live(rng)
        writer.kill()
        if number % 5 == 0 and (tmp_path / "log" / "FORMAT").exists():
            with open_log(tmp_path, read_only=True) as log:
                writer.assert_held(log.port)
                assert log.verify().mismatches == []
        writer.restart()
    writer.finish()
    with open_log(tmp_path) as log:
        assert_holds(log, writer.observations)


@pytest.mark.parametrize("count", [2, 3])
def test_writers_killed_at_any_moment_take_over_from_one_another(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int, count: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed + count)
    writers = [Writer(child, tmp_path, seed + number, 250) for number in range(count)]
    for number in range(fault_rounds):
        some = rng.sample(writers, 1 if number % 7 else count)  # at times all of them at once
        some[0].let_live(rng)
        if rng.random() < 0.1:  # asleep for a while, before it is ended
            some[0].child.signal(signal.SIGSTOP)
            time.sleep(0.1)
        for writer in some:
            writer.child.process.kill()
        for writer in some:
            writer.kill()
            writer.restart()
        if number % 10 == 0 and (tmp_path / "log" / "FORMAT").exists():
            with open_log(tmp_path, read_only=True) as log:
                for writer in writers:
                    writer.assert_held(log.port)
                assert log.verify().mismatches == []
    for writer in writers:
        writer.finish()
    assert len({each for writer in writers for each in writer.log_ids}) == 1
    with open_log(tmp_path) as log:
        assert_holds(log, [each for writer in writers for each in writer.observations])


REDEFINING = """
import sys
from pathlib import Path
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take
from refold_tests.sample_types import versions

log = open_log(Path(sys.argv[1]))
print("open", flush=True)
observations = random_history(int(sys.argv[2]), 60)
for number, definition in enumerate(versions(int(sys.argv[3]))):
    log.register(definition)
    take(log, observations[number : number + 3], definition)
    print("done", flush=True)
log.close()
"""


def test_definitions_activated_while_processes_are_killed(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    """Two processes register versions of one type, each folding everything again, and one or the other is killed."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    observations = [
        said(f"{A}{number}", number + 1_000 * later, last=value)
        for later, value in enumerate((3, 1, 2))
        for number in range(510)
    ]
    with open_log(tmp_path) as log:
        take(log, observations)
    running = [child(REDEFINING, tmp_path, seed, 20) for _ in range(2)]
    for _ in range(fault_rounds // 2):
        number = rng.randrange(2)
        for _ in range(rng.choice((0, 1, 2, 3))):
            running[number].line()
        time.sleep(rng.random() * 0.1)
        running[number].kill()
        running[number] = child(REDEFINING, tmp_path, seed, 20)
    for each in running:
        each.kill()
    with open_log(tmp_path, read_only=True) as log:
        fingerprints = [each.definition.fingerprint for each in log.port.registry]
        assert len(set(fingerprints)) == len(fingerprints)
    with open_log(tmp_path) as log:
        assert [each.definition.fingerprint for each in log.port.registry][: len(fingerprints)] == fingerprints
        assert log.verify().mismatches == []
        newest = log.port.registry.newest(THING.name).definition
        view = log.rebuild()
        expected = {"latest": 2, "max": 3, "min": 1, "first": 3}[newest.fields["last"].reducer]
        assert {view[f"{A}{number}"].fields["last"] for number in range(510)} == {expected}


def test_concurrent_creators_make_one_log(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(max(3, fault_rounds // 4)):
        path = tmp_path / str(number)
        path.mkdir()
        writers = [Writer(child, path, seed + each, 40, 1) for each in range(3)]
        doomed = rng.choice(writers)
        doomed.let_live(rng)
        doomed.kill()
        for writer in writers:
            if writer is not doomed:
                writer.finish()
        doomed.restart()
        doomed.finish()
        assert len({each for writer in writers for each in writer.log_ids}) == 1
        with open_log(path) as log:
            assert_holds(log, [each for writer in writers for each in writer.observations])
        shutil.rmtree(path)


# Changed bytes


KILLED = WRITER.replace("log.close()", "sys.stdin.readline()")


def tables(log: Log) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every row of every table."""
    assert isinstance(log.port, FileLog)
    return {family: list(log.port.database.scan(family)) for family in FAMILIES}


@pytest.mark.parametrize("ended", ["closed", "killed"])
def test_flipped_byte_is_found_or_unused(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int, ended: str
) -> None:
    """Change any byte of a log that was closed (all in table files) or killed (all in its write-ahead log).

    RocksDB leaves bytes that nothing reads: padding, properties, logs that are in tables already. Whether a byte
    is one of those is checked by reading everything: every row of every table, and the root of a replay.
    """
    print(f"seed {seed}")
    rng = random.Random(seed)
    base = tmp_path / "base"
    base.mkdir()
    writer = child(WRITER if ended == "closed" else KILLED, base, seed, 150, 20)
    while not (line := writer.line()).startswith("closed") and line != f"done {len(random_history(seed, 150))}":
        assert line
    writer.kill()
    with open_log(base, read_only=True) as log:
        rows, root = tables(log), log.rebuild().root
        assert log.verify().mismatches == []
    found = 0
    for number in range(2 * fault_rounds):
        path = tmp_path / str(number)
        shutil.copytree(base, path, ignore=shutil.ignore_patterns("owner.sock"))
        files = sorted(
            each for each in (path / "log" / "db").iterdir() if each.suffix in {".sst", ".log"} and each.stat().st_size
        )
        file = rng.choice(files)
        content = bytearray(file.read_bytes())
        at, bit = rng.randrange(len(content)), 1 << rng.randrange(8)
        content[at] ^= bit
        file.write_bytes(content)
        print(f"{file.name} byte {at} of {len(content)} bit {bit}")
        try:
            with open_log(path, read_only=rng.random() < 0.5) as log:
                verdict = log.verify()
                if verdict.ok:
                    assert tables(log) == rows
                    assert (verdict.root, log.rebuild().root) == (root, root)
                found += not verdict.ok
        except CorruptionError:
            found += 1
        shutil.rmtree(path)
    print(f"{found} of {2 * fault_rounds} found")
    # Most bytes of these files are rows.
    assert found > fault_rounds // 2


# Readers


FLOOD = """
import sys, time
from pathlib import Path
from threading import Event, Thread
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, said

log = open_log(Path(sys.argv[1]))
name, count = sys.argv[2], int(sys.argv[3])
print("open", flush=True)
enough = Event()
Thread(target=lambda: (sys.stdin.readline(), enough.set()), daemon=True).start()
done = 0
while done < count or not enough.is_set():
    # Some batches of one, some of many, repeats among them.
    size = (1, 7, 60)[done % 3]
    take(log, [said(f"{A}{name}{each % 11}", done + each // 2) for each in range(size)])
    done += size
    if done % 500 < size and log.port.database.is_owner:
        for family in ("observations", "state", "timeline", "arrivals", "ids", "changes", "meta"):
            log.port.database.compact(family)
    time.sleep(0.01)  # so that others come to read in between
print("done", flush=True)
sys.stdin.readline()
"""


def assert_consistent(log: LogPort) -> int:
    """Check that the tables match the records below the progress: no batch is partly visible. Returns their number."""
    ends = log.ends()
    records = [each for partition, end in ends.items() for each in log.read(partition, 0, end)]
    assert len(records) == sum(ends.values())
    assert sum(unpack(name, packed).version for name, packed in log.stored_entities()) == len(
        {each.id for each in records}
    )
    for partition in ends:
        assert sum(1 for _ in log.read_changes(partition, 0)) == log.changes_end(partition)
    return len(records)


@pytest.mark.parametrize("writers", [1, 2])
def test_readers_see_whole_batches_while_others_write_and_compact(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int, writers: int
) -> None:
    floods = [child(FLOOD, tmp_path, name, 100 * fault_rounds) for name in "pq"[:writers]]
    assert [each.line() for each in floods] == ["open"] * writers
    ended = Ended(floods)
    seen: list[int] = []
    with open_log(tmp_path, read_only=True) as log:
        while len(set(seen)) < 4 or not ended.all:
            log.port.refresh()
            seen.append(assert_consistent(log.port))
            if len(seen) % 10 == 5:
                assert log.verify().mismatches == []
            if len(set(seen)) == 4:
                ended.enough()
    assert seen == sorted(seen)
    for each in floods:
        each.kill()
    with open_log(tmp_path) as log:
        assert assert_consistent(log.port) >= seen[-1]
        assert log.verify().mismatches == []


def test_owner_reads_while_others_write_through_it(
    tmp_path: Path, child: Callable[..., Child], fault_rounds: int
) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, number) for number in range(50)])
        cut, root = log.point().cut, log.rebuild().root
        floods = [child(FLOOD, tmp_path, name, 50 * fault_rounds) for name in "pq"]
        assert [each.line() for each in floods] == ["open", "open"]
        ended = Ended(floods)
        ended.enough()
        number = 0
        while not ended.all:
            take(log, [said(A, 50 + number)])
            number += 1
            assert log.rebuild(cut).root == root
            assert [row.version for row in log.history(A)] == list(range(1, 51 + number))
            assert log.state(A).version == 50 + number
            view = log.rebuild()
            assert sum(view[name].version for name in view) == view.observations
            if number % 10 == 1:
                assert log.verify().mismatches == []
        for each in floods:
            each.kill()
        assert log.verify().mismatches == []


class Ended:
    """Tells without waiting whether children have reported that they are done. They continue until told to stop."""

    def __init__(self, floods: Sequence[Child]) -> None:
        self._untold = list(floods)
        self._left = len(floods)
        for each in floods:
            Thread(target=self._hear, args=(each,), daemon=True).start()

    def _hear(self, each: Child) -> None:
        assert each.line() == "done"
        self._left -= 1

    def enough(self) -> None:
        while self._untold:
            self._untold.pop().say("enough")

    @property
    def all(self) -> bool:
        return not self._left


def test_stale_reader_continues_under_a_compacting_owner(tmp_path: Path) -> None:
    observations = [said(f"{A}{number % 50}", number) for number in range(6_000)]
    with open_log(tmp_path) as owner:
        assert isinstance(owner.port, FileLog)
        take(owner, observations[:2_000])
        with open_log(tmp_path, read_only=True) as reader:
            cut, root, rows = reader.point().cut, reader.rebuild().root, tables(reader)
            partition = reader.port.partition_of(A)
            reads = reader.port.read(partition, 0, cut.offsets[partition])
            first = next(reads)
            for start in range(2_000, 6_000, 500):
                take(owner, observations[start : start + 500])
                for family in FAMILIES:
                    owner.port.database.compact(family)
                assert tables(reader) == rows
            assert [first, *reads] == list(owner.port.read(partition, 0, cut.offsets[partition]))
            assert reader.rebuild(cut).root == root
            assert reader.rebuild().root == owner.rebuild().root != root
            assert reader.verify().mismatches == []
