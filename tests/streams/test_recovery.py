"""Tables that are discarded, lost or incomplete: the same states and answers again, whatever happens meanwhile."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cbor2
import pytest

from refold.avro.ids import identify
from refold.reducers.entity import stored_hash
from refold.streams.client import Log
from refold.streams.log.file import records
from refold.streams.log.file.limits import FileLogLimits
from refold.streams.log.file.log import FileLog
from refold.streams.table import index_backfill
from refold.streams.table.index_gaps import TABLE, read_gaps
from refold.streams.table.limits import TableLimits
from refold_tests.child import Child
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take
from refold_tests.sample_types import A, defined, document, said

LIMITS = FileLogLimits(table=TableLimits(indexed_records=3))


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The indexes are filled one step at each call, and not in the background (open such logs with LIMITS)."""
    steps: list[Callable[[], bool]] = []

    def held(self: index_backfill.Filler) -> None:
        steps[:] = [self._step]

    def step() -> None:
        if steps and not steps[0]():
            steps.clear()

    monkeypatch.setattr(index_backfill.Filler, "_run", held)
    return iter([step]).__next__()  # type: ignore[return-value]


def port_of(log: Log) -> FileLog:
    assert isinstance(log.port, FileLog)
    return log.port


def states(log: Log) -> dict[str, bytes]:
    return dict(log.port.stored_entities())


def indexes(log: Log) -> dict[str, list[tuple[bytes, bytes]]]:
    return {family: list(port_of(log).database.scan(family)) for family in ("timeline", "arrivals", "ids")}


def lose(log: Log, key: bytes = TABLE, value: bytes | None = None) -> None:
    """Remove the table's metadata record, or replace it."""
    write = port_of(log).database.batch()
    if value is None:
        write.delete("meta", key)
    else:
        write.put("meta", key, value)
    port_of(log).database.write(write, sync=True)


def answers(log: Log, names: list[str]) -> list[object]:
    """Every query about some entities, through every index."""
    found: list[object] = []
    for name in names:
        versions = log.state(name).version
        for version in range(1, versions + 1, 7):
            found.append(log.state(name, f"v{version}").state_hash)
        found.append(log.history(name))
        found.append(log.state(name, log.point().cut.until(2_000)).state_hash if versions else None)
    every = [each for partition, end in log.port.ends().items() for each in log.port.read(partition, 0, end)]
    found.append([record and (record.partition, record.offset) for record in map(log.port.find, {e.id for e in every})])
    return found


def test_recovered_table_is_byte_identical(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    with open_log(tmp_path) as log:
        observations = random_history(seed, 300)
        for start in range(0, 300, 50):
            take(log, observations[start : start + 50])
            log.snapshot()
        before, indexed = states(log), indexes(log)
        source = log.recover()
        assert source["snapshot_epochs"]
        assert source["replayed"] == 0
        assert states(log) == before
        assert indexes(log) == indexed
        assert read_gaps(port_of(log).database) == {}
        assert log.verify().mismatches == []


def test_folds_and_queries_continue_while_the_indexes_are_filled(
    tmp_path: Path, seed: int, slow: Callable[[], None]
) -> None:
    """Repeats, late ones, retractions and clears meet records that no index holds yet."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    observations = random_history(seed, 260)
    again = [rng.choice(observations) for _ in range(60)]
    coming = [*observations[160:], *again]
    rng.shuffle(coming)
    other = tmp_path / "other"
    other.mkdir()
    with open_log(tmp_path, limits=LIMITS) as log, open_log(other) as plain:
        for each in (log, plain):
            take(each, observations[:160])
        log.recover(wait=False)
        names = sorted(states(log))[:3]
        lacking = sum(gap.end - gap.start for gap in (read_gaps(port_of(log).database) or {}).values())
        assert lacking > 100
        for step, start in enumerate(range(0, len(coming), 4), start=1):
            for each in (log, plain):
                take(each, coming[start : start + 4])
            slow()
            assert states(log) == states(plain)
            if step % 10 == 1:
                assert bool(read_gaps(port_of(log).database)) or step * LIMITS.table.indexed_records >= lacking
                assert answers(log, names) == answers(plain, names)
        while read_gaps(port_of(log).database):
            slow()
        assert indexes(log) == indexes(plain)
        assert log.verify().mismatches == []


@pytest.mark.parametrize("value", [None, cbor2.dumps({"format": 1, "gaps": {}})])
def test_lost_or_older_table_is_remade_on_opening(tmp_path: Path, seed: int, value: bytes | None) -> None:
    observations = random_history(seed, 120)
    with open_log(tmp_path) as log:
        take(log, observations[:80])
        log.snapshot()
        take(log, observations[80:])
        before = states(log)
        port_of(log).database.clear("state")
        port_of(log).database.clear("arrivals")
        lose(log, TABLE, value)
        with open_log(tmp_path, read_only=True) as reader:  # the log itself still answers
            names = sorted(before)
            asked = answers(reader, names)
            assert reader.rebuild().entity_hashes() == reader.rebuild(full=True).entity_hashes()
    with open_log(tmp_path) as log:
        assert states(log) == before
        log.recover()
        assert answers(log, names) == asked
        assert log.verify().mismatches == []


def test_progress_of_an_older_release_is_recounted(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(A, 1), said(f"{A}b", 2)])
        packed = port_of(log).database.get("meta", records.PROGRESS)
        assert packed is not None
        lose(log, records.PROGRESS, cbor2.dumps(cbor2.loads(packed)[:3]))
        lose(log)
    with open_log(tmp_path) as log:
        progress = records.read_progress(port_of(log).database, port_of(log).partitions)
        assert (sum(progress.entities.values()), sum(progress.distinct.values())) == (2, 3)
        view = log.rebuild()
        assert (len(view), view.observations) == (2, 3)


def test_interrupted_activation_is_completed_after_a_recovery(tmp_path: Path) -> None:
    """Its changes are not lost: the table is first rebuilt with the previous definition."""
    newer = defined(document(last={"type": "long", "refold.reducer": "min"}))
    with open_log(tmp_path) as log:
        take(log, [said(A, number, last=value) for number, value in enumerate((3, 1, 2))])
        database = port_of(log).database
        write = database.batch()
        write.put("schemas", records.schema_key(1), records.schema_value(newer, 0))
        write.put("meta", records.REDEFINE, (1).to_bytes(8, "big"))
        write.delete("meta", TABLE)
        database.write(write, sync=True)
    with open_log(tmp_path) as log:
        assert log.state(A).fields["last"] == 1
        changes = list(log.changes())
        assert [change.redefined for change in changes].count(True) == 1
        log.recover()
        assert log.verify().mismatches == []


def test_another_process_can_request_it(tmp_path: Path, child: Callable[..., Child]) -> None:
    owner = child(OWNER, tmp_path)
    assert owner.line() == "open"
    with open_log(tmp_path) as log:
        take(log, [said(A, 0), said(A, 1)])
        assert log.recover()["replayed"] == 2
        assert log.verify().mismatches == []


OWNER = """
import sys
from pathlib import Path
from refold_tests.opening import open_log

log = open_log(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""

RECOVERING = """
import random, sys
from pathlib import Path
from refold.streams.log.file.limits import FileLogLimits
from refold.streams.table.limits import TableLimits
from refold_tests.histories import random_history
from refold_tests.opening import open_log, take

path, seed, number = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
log = open_log(path, limits=FileLogLimits(table=TableLimits(indexed_records=5)))
print("open", flush=True)
observations = random_history(seed, 400)
while True:
    log.recover(wait=False)
    for start in range(number, len(observations), 100):
        take(log, observations[start : start + 10])
        print("done", start, flush=True)
"""


@pytest.mark.faults
def test_kills_while_a_table_is_remade(
    tmp_path: Path, child: Callable[..., Child], seed: int, fault_rounds: int
) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    observations = random_history(seed, 400)
    with open_log(tmp_path) as log:
        take(log, observations[:200])
        log.snapshot()
    said_done: set[int] = set()
    for number in range(fault_rounds):
        running = child(RECOVERING, tmp_path, seed, number * 10 % 100)
        for _ in range(rng.randrange(4)):
            line = running.line()
            if line.startswith("done"):
                said_done.update(range(int(line.split()[1]), int(line.split()[1]) + 10))
        time.sleep(rng.random() * rng.choice((0.005, 0.05)))
        running.kill()
        with open_log(tmp_path, read_only=True) as reader:
            held = {each.id for p, end in reader.port.ends().items() for each in reader.port.read(p, 0, end)}
            assert held >= {identify(observations[each]) for each in said_done}
    with open_log(tmp_path) as log:
        assert {name: stored_hash(packed) for name, packed in states(log).items()} == log.rebuild().entity_hashes()
        log.recover()
        assert log.verify().mismatches == []
