"""Workers on a real broker, as processes that are killed, and what must hold whatever happens to them."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from refold.avro.definition import TypeDefinition
from refold.avro.ids import identify
from refold.avro.observation import Observation
from refold.reducers.entity import stored_hash, stored_version
from refold.streams.change_reader import ChangeReader
from refold.streams.cut import Cut
from refold.streams.log.kafka.log import KafkaLog
from refold.streams.log.kafka.url import parse_url
from refold.streams.log.port import AppendedObservation, LogPort
from refold.streams.rocks.database import Database
from refold.streams.rocks.families import Family
from refold.streams.table import keys
from refold.streams.table.index_gaps import fill, read_gaps
from refold.streams.table.recovery import recover
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.pending_commit import StoredPosition, read_stored
from refold.streams.worker.service import FoldService
from refold_tests.child import Child
from refold_tests.histories import Regime, random_history
from refold_tests.reference import reference_hash, reference_states
from refold_tests.sample_types import THING, reference_definition

PATIENCE_S = 120.0
MORE_S = 5.0

REFUSED = 2
WORKER = """
import json, os, signal, sys
from pathlib import Path
from refold.avro.errors import RefoldError
from refold.streams.snapshots.settings import SnapshotSettings
from refold.streams.table.limits import TableLimits
from refold.streams.worker.config import FoldConfig
from refold.streams.worker.service import FoldService
from refold_tests import kill_points

url, folder, instance, static, moment, count, sent, settings = sys.argv[1:9]
soon = {"commit_ms": 20, "records_max": 50, "session_ms": 4000, "transaction_ms": 5000, "client_id": f"w-{os.getpid()}"}
given = {**soon, **json.loads(settings)}
given["snapshots"] = SnapshotSettings(**given.get("snapshots", {}))
given["table"] = TableLimits(refolded_entities=3)
kill_points.die_at(moment, int(count), signal.Signals(int(sent)))
try:
    config = FoldConfig(url, Path(folder), instance, is_static=static == "1", **given)
    service = FoldService(config)
    signal.signal(signal.SIGTERM, lambda *_: service.drain())
    print("runs", flush=True)
    service.run()
except RefoldError as error:  # as the command line says it
    print(f"{type(error).__name__}: {error}", flush=True)
    sys.exit(2)
print("drained", flush=True)
"""


def history(rng: random.Random, length: int, entities: int = 12) -> list[Observation]:
    """Return observations of THING in arrival order, of several entities, with repeats, late ones and retractions."""
    regime = replace(Regime.draw(rng), entities=entities)
    return random_history(rng.getrandbits(32), length, regime)


def url_of(bootstrap: str, prefix: str, partitions: int = 2) -> str:
    """Return the log's URL."""
    return f"kafka://{bootstrap}/{prefix}?partitions={partitions}"


@contextmanager
def opened(url: str, **settings: Any) -> Iterator[KafkaLog]:
    """Open the log as a client. settings: further arguments of KafkaLog."""
    log = KafkaLog(parse_url(url), **settings)
    try:
        yield log
    finally:
        log.close()


def append(log: KafkaLog, observations: Iterable[Observation]) -> set[bytes]:
    """Append observations of THING; return their ids. They are acknowledged on return."""
    version = log.registry.newest(THING.name)
    ids = set()
    for each in observations:
        observation_id = identify(each)
        log.append(AppendedObservation(each.entity, observation_id, version.codec.encode_observation(each)))
        ids.add(observation_id)
    log.flush()
    return ids


def worker(
    child: Callable[..., Child], url: str, folder: Path, instance: str = "w", *, static: bool = True,
    moment: str = "", count: int = 0, sent: signal.Signals = signal.SIGKILL, before: str = "", **settings: Any,
) -> Child:  # fmt: skip
    """Start a worker process.

    moment, count: it sends itself the signal `sent` the count-th time it reaches this moment (kill_points.py). before:
    code that runs first. settings: of its FoldConfig.
    """
    found = child(before + WORKER, url, folder, instance, int(static), moment, count, int(sent),
                  json.dumps(settings, default=asdict))  # fmt: skip
    said = found.line()
    assert said == "runs", (said, found.end())
    return found


def drain(found: Child) -> None:
    """Let a worker finish, and check that it did."""
    found.signal(signal.SIGTERM)
    assert found.end() == 0


def committed(log: KafkaLog) -> dict[int, int]:
    """Return the group's committed offsets."""
    log.refresh()
    return {each: log._decided.through(each) for each in range(log.partitions)}


class Looked(Protocol):
    """A worker whose health can be checked."""

    def look(self) -> None:
        """Fail if the worker is not as it should be."""


def await_folded(log: KafkaLog, *workers: Looked) -> None:
    """Return once everything in the log is decided. Fail if a worker ended, or if it takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    log.refresh()
    ends = log.ends()
    while any(offset < ends[each] for each, offset in committed(log).items()):
        assert time.monotonic() < deadline, (committed(log), ends)
        for each in workers:
            each.look()
        time.sleep(0.05)


def await_sealed(log: KafkaLog, *workers: Child | Running, more: Callable[[], object] = lambda: None) -> None:
    """Return once each partition has an epoch at its end.

    more: appends further records; called from time to time. A worker that another one fenced seals again only after its
    next commit.
    """
    await_folded(log, *workers)
    deadline = time.monotonic() + PATIENCE_S
    more_at = time.monotonic() + MORE_S
    while True:
        log.refresh()
        last = {each: max((found.offset for found in log.snapshots.epochs(each)), default=0) for each in log.ends()}
        if last == log.ends():
            return
        assert time.monotonic() < deadline, (last, log.ends())
        for each in workers:
            assert not isinstance(each, Running) or each.problem is None, each.problem
        if time.monotonic() > more_at:
            more()
            more_at = time.monotonic() + MORE_S
        time.sleep(0.05)


def await_status(running: Running, holds: Callable[[Mapping[str, Any]], bool], partition: int) -> None:
    """Return once a worker's status of a partition meets the condition."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(running.service.status().get(partition, {})):
        assert running.problem is None, running.problem
        assert time.monotonic() < deadline, running.service.status()
        time.sleep(0.05)


class Running:
    """A worker in a thread of this process."""

    def __init__(self, config: FoldConfig) -> None:
        self.config = config
        self.service = FoldService(config)
        self.problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Fail if the worker has ended."""
        assert self.problem is None, self.problem

    def drain(self) -> None:
        """Let the worker finish. Raise the error that ended it, if any."""
        self.service.drain()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        if self.problem is not None:
            raise self.problem

    def failed(self) -> Exception:
        """Wait until the worker ends by itself, and return its error."""
        self._thread.join(PATIENCE_S)
        assert self.problem is not None
        return self.problem

    def _run(self) -> None:
        try:
            self.service.run()
        except Exception as problem:
            self.problem = problem


@contextmanager
def running(url: str, folder: Path, **settings: Any) -> Iterator[Running]:
    """Run a worker in this process. At the end it is drained, unless it has ended by itself."""
    soon = {"commit_ms": 20, "session_ms": 4_000, "transaction_ms": 5_000, "client_id": f"w-{uuid.uuid4().hex}"}
    found = Running(FoldConfig(url, folder, "w", **{**soon, **settings}))
    try:
        yield found
    finally:
        found.service.drain()
    if found.problem is None:
        found.drain()


def fold_all(log: KafkaLog, folder: Path, **settings: Any) -> None:
    """Let a worker take over all partitions, and fold everything in the log."""
    with running(log.url, folder, **settings) as found:
        deadline = time.monotonic() + PATIENCE_S
        while not (
            len(status := found.service.status()) == log.partitions
            and all(each.get("caught_up") for each in status.values())
        ):
            assert found.problem is None, found.problem
            assert time.monotonic() < deadline, status
            time.sleep(0.02)
        await_folded(log, found)


def tables(folder: Path, partitions: int) -> dict[int, Database]:
    """Open the tables in a folder that no worker uses."""
    return {each: Database.open(folder / str(each), kind="table") for each in range(partitions)}


def check_changes(
    log: KafkaLog, acknowledged: set[bytes], definition: TypeDefinition = THING
) -> dict[str, tuple[int, bytes]]:
    """Check that every acknowledged observation was folded once, and that the changes are an unbroken chain.

    Returns:
        Version and hash of each entity after its last change.
    """
    log.refresh()
    read = {p: list(log.read(p, 0, end)) for p, end in log.ends().items()}
    ids = {each.id for records in read.values() for each in records}
    assert acknowledged <= ids
    places = [(each.offset, log.registry.decode(each.data)) for records in read.values() for each in records]
    states = reference_states(reference_definition(definition), places)
    hashes = {name: (state["version"], reference_hash(state)) for name, state in states.items()}
    assert last_changes(log) == hashes
    return hashes


def check_whole(log: KafkaLog, folder: Path, acknowledged: set[bytes], definition: TypeDefinition = THING) -> None:
    """Check that every acknowledged observation was folded once, that the tables match a full replay, and that the
    changes are an unbroken chain.
    """
    hashes = check_changes(log, acknowledged, definition)
    ends = log.ends()
    assert stored_states(folder, log.partitions) == hashes
    for partition, database in tables(folder, log.partitions).items():
        with database:
            stored = read_stored(database)
            assert stored is not None
            assert stored.at.offset <= ends[partition]
            assert (stored.entities, stored.distinct) == totals(hashes, log, partition)
            assert_indexes(database, log, partition, stored)


def totals(hashes: Mapping[str, tuple[int, bytes]], log: LogPort, partition: int) -> tuple[int, int]:
    """Return how many entities and distinct observations a partition has."""
    mine = [version for name, (version, _) in hashes.items() if log.partition_of(name) == partition]
    return len(mine), sum(mine)


def last_changes(log: KafkaLog) -> dict[str, tuple[int, bytes]]:
    """Return version and hash of each entity after its last change. Every chain must be without a gap or a repeat."""
    log.refresh()
    reader = ChangeReader(log)
    last: dict[str, tuple[int, bytes | None]] = {}
    for partition in range(log.partitions):
        for each in log.read_changes(partition, 0):
            change = reader.decode(each.data)
            assert log.partition_of(change.entity) == partition
            version, state_hash = last.get(change.entity, (0, None))
            assert (change.from_version, change.hash_before) == (version, state_hash), (change, each.offset)
            assert change.to_version == change.from_version + len(change.steps)
            assert [step.version for step in change.steps] == [*range(change.from_version + 1, change.to_version + 1)]
            assert change.steps or (change.redefined and change.hash_after != change.hash_before)
            last[change.entity] = (change.to_version, change.hash_after)
    return {name: (version, state_hash or b"") for name, (version, state_hash) in last.items()}


def stored_states(folder: Path, partitions: int) -> dict[str, tuple[int, bytes]]:
    """Return version and hash of every entity in the tables."""
    found = {}
    for database in tables(folder, partitions).values():
        with database:
            for key, packed in database.scan("state"):
                found[keys.entity_of(key)] = (stored_version(packed), stored_hash(packed))
    return found


INDEXES: Sequence[Family] = ("state", "timeline", "arrivals", "ids")


def assert_indexes(database: Database, log: KafkaLog, partition: int, stored: StoredPosition) -> None:
    """Check that the table, with its indexes filled, equals one that is built from the log."""
    folder = database.path.parent / f"anew-{partition}-{time.monotonic_ns()}"
    cut = Cut(log.log_id, {partition: stored.at.offset}, stored.at.schemas, log.registry.digest(stored.at.schemas))
    with Database.create(folder, kind="table") as anew:
        recover(anew, log, cut, lambda rebuilt, write: None)
        for each in (anew, database):
            gaps = read_gaps(each)
            assert gaps is not None
            while gaps:
                write = each.batch()
                gaps = fill(each, log.read, log.registry, gaps, 1_000, write)
                each.write(write, sync=False)
        for family in INDEXES:
            assert list(database.scan(family)) == list(anew.scan(family)), family
